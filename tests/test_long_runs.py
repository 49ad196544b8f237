"""Runs that are long, and constructors that are called with anything: nothing grows, nothing leaks, nothing crashes."""

import dataclasses
import gc
import math
import os
import random
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training.plugins import EvaluationPlugin
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from avalanche_rewc import REWC, REWCPlugin
from avalanche_rewc.core.memory import Memory
from avalanche_rewc.options import UNORDERED_BASES, Options
from tests.tally import SOAK, tally
from tests.toy import Growing, Tensors, blob_stream, settings

OPEN_FILES = Path("/proc/self/fd")
STATUS = Path("/proc/self/status")
EXPERIENCES = 1000 if SOAK else 100
COMBINATIONS = 200_000 if SOAK else 10_000


def stored_bytes(memories: list[Memory]) -> int:
    tensors = []
    for memory in memories:
        tensors += [*memory.importances.values(), *memory.anchors.values()]
        tensors += [tensor for rotation in memory.rotations.values() for tensor in rotation.tensors()]
        tensors += [factor for pair in memory.factors.values() for factor in pair]
    return sum(t.untyped_storage().nbytes() for t in tensors)


def resident_bytes() -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def permuted_digits(experiences, samples=60):
    """Pictures of digits, their pixels in another order in every experience."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), digits.target
    for index in range(experiences):
        generator = torch.Generator().manual_seed(index)
        chosen = torch.randperm(len(x), generator=generator)[:samples]
        pixels = torch.randperm(64, generator=generator)
        yield as_classification_dataset(Tensors(x[chosen][:, pixels], y[chosen.numpy()]))


class Work(TorchDispatchMode):
    """Counts what torch is asked to do: a step that costs more asks for more, whatever else the machine does."""

    def __init__(self):
        super().__init__()
        self.calls, self.numbers = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        self.calls += 1
        self.numbers += sum(t.numel() for t in torch.utils._pytree.tree_leaves(found) if isinstance(t, torch.Tensor))
        return found


class Steps:
    """The work of every experience's second step, and how many hooks and states hang on model and optimizer then."""

    def __init__(self):
        self.found, self.work = [], None

    def before_training_iteration(self, strategy, **kwargs):
        if strategy.clock.train_exp_iterations == 1:
            self.work = Work()
            self.work.__enter__()

    def after_training_iteration(self, strategy, **kwargs):
        if self.work is not None:
            self.work.__exit__(None, None, None)
            modules = list(strategy.model.modules())
            hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in modules)
            states = sum(len(state) for state in strategy.optimizer.state.values())
            self.found.append((self.work.calls, self.work.numbers, hooks, states, len(modules)))
            self.work = None


@pytest.mark.skipif(not STATUS.exists(), reason="reads the memory of the process from /proc")
@pytest.mark.parametrize("mode", ["last", "online"] if SOAK else ["last"])
def test_many_experiences_in_flat_memory_and_time(mode):
    """Time is counted, not measured: the operations of a step, and of how many numbers, from the second experience on,
    the first with a penalty. The quarters' seconds go into the report."""
    torch.manual_seed(0)
    model = network()
    quiet = EvaluationPlugin(loggers=[])
    common = settings(model, torch.optim.Adam(model.parameters(), 1e-3), evaluator=quiet, train_epochs=1)
    decay = {"decay_factor": 0.9} if mode == "online" else {}
    steps = Steps()
    strategy = REWC(ewc_lambda=100.0, mode=mode, **{**common, "train_mb_size": 20}, plugins=[steps], **decay)
    stored, resident, files, seconds, objects = [], [], [], [], []
    with tally(f"experiences in one run, {mode}") as counts:
        for dataset in permuted_digits(EXPERIENCES):
            (experience,) = benchmark_from_datasets(train=[dataset]).train_stream
            start = time.perf_counter()
            strategy.train(experience)
            seconds.append(time.perf_counter() - start)
            stored.append(stored_bytes(strategy.rewc.memories))
            counts.add()
            if counts.tried % (EXPERIENCES // 4) == 0:
                gc.collect()
                objects.append(len(gc.get_objects()))
                resident.append(resident_bytes())
                files.append(len(os.listdir(OPEN_FILES)))
        counts.details["stored bytes"] = stored[-1]
        counts.details["resident MB grown"] = max(0, resident[-1] - resident[0]) >> 20
        counts.details["open files grown"] = files[-1] - files[0]
        first, last = seconds[5 : EXPERIENCES // 4], seconds[-EXPERIENCES // 4 :]
        counts.details["milliseconds an experience, first quarter"] = round(1000 * sum(first) / len(first))
        counts.details["milliseconds an experience, last quarter"] = round(1000 * sum(last) / len(last))
        counts.details["operations in a step"] = steps.found[-1][0]
        counts.details["objects grown"] = objects[-1] - objects[0]
        assert len(strategy.rewc.memories) == 1
        assert len(steps.found) == EXPERIENCES
        assert steps.found[1][0] > steps.found[0][0]  # the penalty is counted
        assert set(steps.found[1:]) == {steps.found[1]}  # to the operation
        assert objects[-1] - objects[0] < EXPERIENCES  # less than one for each
        assert set(stored) == {stored[0]}  # to the byte
        assert resident[-1] - resident[0] < 16 * 2**20  # in the last three quarters
        assert files[-1] <= files[0]
        assert all(torch.isfinite(p).all() for p in model.parameters())


class Unprintable:
    def __repr__(self):
        raise ZeroDivisionError("no name")


ODD = [
    None, True, False, 0, 1, -1, 3, 10**400, -(10**400), 10**5000, 0.0, -0.0, 0.5, 1.0, 1.5, 1e308, -1e-300,
    math.nan, math.inf, -math.inf, Fraction(1, 3), Decimal("0.5"), 2j, "", "all", "al", "none", "last", "exact",
    "eigen", "random", "rotated", "separate", "online", "1", "\0", "ä" * 1000, b"all", [], ["body.0"], ["body.0", 3],
    (), ("head",), {"head"}, {}, {"a": 1}, [[]], range(3), object(), object, Unprintable(), lambda *args: args, print,
    np.float64(0.5), np.int64(3), np.bool_(True), np.nan, np.array([1, 2]), np.array("all"), np.str_("all"),
    torch.tensor(1.0), torch.tensor([1, 2]), torch.float32, int, RuntimeError("no"), Ellipsis, NotImplemented,
]  # fmt: skip
GOOD = {
    "ewc_lambda": [0, 1, 100.0, np.float64(3), Fraction(1, 2)],
    "layers": ["all", "all_but_last", "conv", "linear", "none", ["body.0"], lambda name, module: True],
    "conv_basis": ["channel", "patch"],
    "space": ["rotated", "original"],
    "fisher": ["sampled", "exact", "empirical"],
    "samples_per_class": [1, 40, None, np.int64(5)],
    "mode": ["last", "separate", "online"],
    "decay_factor": [None, 0, 0.5, 1.0],
    "basis": ["eigen", "identity", "authors", "printed", "random", "random_input", lambda a, g: (a, g)],
    "rank": [1, 64, None, np.int64(5)],
    "seed": [None, 0, 1, 2**70],
    "normalize": [True, False],
}


def test_random_options_are_taken_or_refused_by_name():
    """Never another exception than a ValueError that names an option, and none for what is documented."""
    draw = random.Random(None if SOAK else 0)
    with tally("combinations of options") as counts:
        for _ in range(COMBINATIONS):
            options = {name: draw.choice(good) for name, good in GOOD.items()}
            options["decay_factor"] = draw.choice([0, 0.5, 1.0]) if options["mode"] == "online" else None
            if options["basis"] in UNORDERED_BASES:
                options["rank"] = None
            odd = draw.sample(sorted(GOOD), draw.choice([0, 1, 1, 2, 3]))
            options.update({name: draw.choice(ODD) for name in odd})
            refusal = ""
            try:
                plugin = REWCPlugin(**options)
            except ValueError as error:
                refusal = str(error)
            if refusal:
                counts.add("of these refused")
                assert odd
                pairs = ({"mode", "decay_factor"}, {"basis", "rank"})
                to_blame = set(odd).union(*(pair for pair in pairs if pair & set(odd)))
                assert any(name in refusal for name in to_blame), refusal
                assert len(refusal) < 2000
            else:
                counts.add("of these taken")
                assert plugin.options.ewc_lambda == options["ewc_lambda"]
        assert counts.details["of these taken"] > COMBINATIONS // 10
        assert counts.details["of these refused"] > COMBINATIONS // 10


def test_every_option_is_an_option_of_the_random_ones():
    """One that is added later must not be forgotten above."""
    assert set(GOOD) == {field.name for field in dataclasses.fields(Options)}


def test_options_that_are_taken_work():
    """Random combinations of good ones, in three experiences."""
    draw = random.Random(None if SOAK else 0)
    with tally("combinations of options trained with") as counts:
        for _ in range(500 if SOAK else 25):
            options = {name: draw.choice(good) for name, good in GOOD.items()}
            options["decay_factor"] = draw.choice([0, 0.5, 1.0]) if options["mode"] == "online" else None
            if options["basis"] in UNORDERED_BASES:
                options["rank"] = None
            if callable(options["basis"]):
                options["basis"] = lambda a, g: tuple(torch.eye(f.shape[-1]).expand_as(f).contiguous() for f in (a, g))
            strategy = REWC(**options, **settings(Growing(), train_epochs=1))
            for experience in blob_stream(3, per_class=5, dtype=torch.float32).train_stream:
                strategy.train(experience)
            counts.add(options["mode"])
            for memory in strategy.rewc.memories:
                assert all(torch.isfinite(f).all() and (f >= 0).all() for f in memory.importances.values()), options
            assert all(torch.isfinite(p).all() for p in strategy.model.parameters()), options


@pytest.mark.skipif(not OPEN_FILES.exists(), reason="counts open files in /proc")
def test_no_file_or_process_is_left_open():
    """Also with workers that load the samples."""
    import multiprocessing

    def learn():
        strategy = REWC(ewc_lambda=1.0, **settings(network(), train_epochs=1))
        for dataset in permuted_digits(2, samples=10):
            (experience,) = benchmark_from_datasets(train=[dataset]).train_stream
            strategy.train(experience, num_workers=1)

    learn()
    gc.collect()
    before = len(os.listdir(OPEN_FILES))
    others = set(multiprocessing.active_children())  # of tests before this one
    for _ in range(20 if SOAK else 1):
        learn()
    gc.collect()
    assert len(os.listdir(OPEN_FILES)) <= before
    assert set(multiprocessing.active_children()) <= others
