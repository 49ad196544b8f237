"""Extract VGG-16 features of a picture set into a feature file: `python -m avalanche_rewc.features extract --help`."""

from avalanche_rewc.features.extraction import extract
from avalanche_rewc.features.extractor import FeatureExtractor
from avalanche_rewc.features.sets import FeatureInputs, open_set

__all__ = ["FeatureExtractor", "FeatureInputs", "extract", "open_set"]
