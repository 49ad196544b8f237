"""Streams by name: the data, the network, and the paper's protocol for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from avalanche_rewc.models import FeatureMLP, FisherMLP, LeNet, VGG16GlobalPool
from avalanche_rewc.streams import (
    DisjointMNIST,
    SplitBenchmark,
    SplitCIFAR100,
    SplitCUB200,
    SplitDigits,
    SplitPaperFeatures,
    SplitStanford40,
    resolve_data_root,
)
from benchmarks.config import RunConfig
from benchmarks.machine import Machine
from benchmarks.names import UserError, unknown

VGG16_FILE = "vgg16_features.npz"
"""ImageNet weights of VGG-16's convolutions are taken from here under the data root, else from torchvision."""

FINE_GRAINED: dict[str, Any] = {"epochs": 50, "batch_size": 32, "weight_decay": 1e-5, "lr_drop_epoch": 40}


@dataclass(frozen=True)
class StreamSpec:
    """A stream, its network and how the paper trains on it."""

    description: str
    open: Callable[..., SplitBenchmark]
    network: Callable[..., nn.Module]
    protocol: Mapping[str, Any]
    """Fields of `RunConfig` that differ from stream to stream."""
    samples_per_class: int = 200
    """Samples of a class that a Fisher estimate uses: the library's default, fewer where each one takes long. Written
    out, as the methods' options are."""
    in_memory: bool = True
    """Samples are ready tensors, the same each time they are read."""
    convolutions: bool = False
    stream_options: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)


def _vgg16(config: RunConfig, machine: Machine, classes: int) -> nn.Module:
    local = resolve_data_root(machine.data_root) / VGG16_FILE
    weights: str | Path = local if local.is_file() else "imagenet"
    hidden = config.model["hidden"]
    return VGG16GlobalPool(weights, hidden=(hidden[0], hidden[1]), initial_out_features=classes)


def _mlp(config: RunConfig, machine: Machine, classes: int) -> nn.Module:
    return FeatureMLP(config.model["inputs"], config.model["hidden"], initial_out_features=classes)


def _digits(n_experiences: int, *, data_root: str | None, **options: Any) -> SplitBenchmark:
    return SplitDigits(n_experiences, **options)  # comes with scikit-learn


def _features(name: str) -> Callable[..., SplitBenchmark]:
    def open_features(n_experiences: int, **options: Any) -> SplitBenchmark:
        return SplitPaperFeatures(name, n_experiences, **options)

    return open_features


STREAMS: dict[str, StreamSpec] = {
    "digits": StreamSpec(
        "scikit-learn's 8×8 digits, MLP 64-64-64; small, for a first look and for tests",
        _digits,
        _mlp,
        {"epochs": 20, "batch_size": 32, "learning_rate": 1e-3},
        model={"inputs": 64, "hidden": [64, 64]},
    ),
    "mnist": StreamSpec(
        "the paper's disjoint MNIST, LeNet, 5 epochs",
        DisjointMNIST,
        lambda config, machine, classes: LeNet(classes),
        {"epochs": 5, "batch_size": 100, "learning_rate": 1e-3},
        convolutions=True,
    ),
    "mnist-mlp": StreamSpec(
        "MNIST of 28×28 with the 784-10-10-10 network of the paper's Fisher figure",
        DisjointMNIST,
        lambda config, machine, classes: FisherMLP(initial_out_features=classes),
        {"epochs": 5, "batch_size": 100, "learning_rate": 1e-3},
        stream_options={"padding": 0},
    ),
    "cifar100-features": StreamSpec(
        "the paper's CIFAR-100: VGG-16 pool5 features, fc 256-256-100, 50 epochs",
        _features("cifar100"),
        _mlp,
        {"epochs": 50, "batch_size": 256, "learning_rate": 1e-3},
        model={"inputs": 512, "hidden": [256, 256]},
    ),
    "cub200-features": StreamSpec(
        "CUB-200 with a frozen backbone: VGG-16 features, fc 512-512-200, 50 epochs",
        _features("cub200"),
        _mlp,
        {"learning_rate": 1e-3, **FINE_GRAINED},
        model={"inputs": 512, "hidden": [512, 512]},
    ),
    "stanford40-features": StreamSpec(
        "Stanford-40 with a frozen backbone: VGG-16 features, fc 512-512-40, 50 epochs",
        _features("stanford40"),
        _mlp,
        {"learning_rate": 1e-3, **FINE_GRAINED},
        model={"inputs": 512, "hidden": [512, 512]},
    ),
    "cifar100": StreamSpec(
        "CIFAR-100's pictures with LeNet (not in the paper, which uses features)",
        SplitCIFAR100,
        lambda config, machine, classes: LeNet(classes, in_channels=3),
        {"epochs": 20, "batch_size": 100, "learning_rate": 1e-3},
        convolutions=True,
    ),
    "cub200": StreamSpec(
        "the paper's CUB-200: box crops of 224×224, VGG-16 fine-tuned (needs a GPU at full size)",
        SplitCUB200,
        _vgg16,
        {"learning_rate": 1e-3, **FINE_GRAINED},
        samples_per_class=5,
        in_memory=False,
        convolutions=True,
        stream_options={"size": 224, "canonical": True},
        model={"hidden": [512, 512], "convolutions_lr": 1e-5},
    ),
    "stanford40": StreamSpec(
        "the paper's Stanford-40: 224×224 crops of 256×256, VGG-16 fine-tuned (needs a GPU at full size)",
        SplitStanford40,
        _vgg16,
        {"learning_rate": 1e-3, **FINE_GRAINED},
        samples_per_class=40,
        in_memory=False,
        convolutions=True,
        stream_options={"size": 224, "resize": 256, "canonical": True},
        model={"hidden": [512, 512], "convolutions_lr": 1e-5},
    ),
}


def find_stream(name: str) -> StreamSpec:
    """A stream by name."""
    if name not in STREAMS:
        raise unknown("stream", name, STREAMS)
    return STREAMS[name]


def open_stream(config: RunConfig, machine: Machine) -> SplitBenchmark:
    """The stream of a run. Held-out samples follow the run's seed, so that selection averages over draws."""
    try:
        return find_stream(config.stream).open(
            config.n_experiences,
            data_root=machine.data_root,
            seed=config.seed if config.class_order == "shuffled" else None,
            validation=config.validation,
            validation_seed=config.seed,
            **config.stream_options,
        )
    except (FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from error


def make_network(config: RunConfig, machine: Machine, classes: int) -> nn.Module:
    """A fresh network with a head for the first task's classes."""
    return find_stream(config.stream).network(config, machine, classes)
