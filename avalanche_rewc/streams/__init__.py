"""The paper's data as Avalanche benchmarks."""

from avalanche_rewc.streams.cifar100 import SplitCIFAR100
from avalanche_rewc.streams.counts import NonCanonicalCounts
from avalanche_rewc.streams.cub200 import SplitCUB200
from avalanche_rewc.streams.dataset import TensorClassificationDataset
from avalanche_rewc.streams.digits import SplitDigits
from avalanche_rewc.streams.feature_file import KINDS, FeatureFile, FeatureKind, load_features
from avalanche_rewc.streams.features import SplitFeatures, SplitPaperFeatures
from avalanche_rewc.streams.mnist import DisjointMNIST
from avalanche_rewc.streams.root import resolve_data_root
from avalanche_rewc.streams.split import SplitBenchmark
from avalanche_rewc.streams.stanford40 import SplitStanford40

__all__ = [
    "KINDS",
    "DisjointMNIST",
    "FeatureFile",
    "FeatureKind",
    "NonCanonicalCounts",
    "SplitBenchmark",
    "SplitCIFAR100",
    "SplitCUB200",
    "SplitDigits",
    "SplitFeatures",
    "SplitPaperFeatures",
    "SplitStanford40",
    "TensorClassificationDataset",
    "load_features",
    "resolve_data_root",
]
