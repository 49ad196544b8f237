"""The paper's networks, each with a head that grows with the classes."""

from avalanche_rewc.models.head import TruncatedNormalClassifier, truncated_normal_
from avalanche_rewc.models.lenet import LeNet
from avalanche_rewc.models.mlp import FeatureMLP, FisherMLP
from avalanche_rewc.models.vgg16 import VGG16GlobalPool
from avalanche_rewc.models.weights import VGG16Weights, load_vgg16_weights

__all__ = [
    "FeatureMLP",
    "FisherMLP",
    "LeNet",
    "TruncatedNormalClassifier",
    "VGG16GlobalPool",
    "VGG16Weights",
    "load_vgg16_weights",
    "truncated_normal_",
]
