"""SPEED.md shows what the kept result file says; the rivals compute what they are said to; nothing asserts a time."""

import copy
import json
import sys
from functools import partial

import pytest
import torch
from avalanche.training import EWC
from torch import nn

from avalanche_rewc import REWC
from avalanche_rewc.core import consolidate
from benchmarks.names import UserError
from benchmarks.speed import __main__ as command
from benchmarks.speed import consolidation, data, page, parts
from benchmarks.speed import growth as growth_of
from benchmarks.speed import steps as step_times
from benchmarks.speed.bars import bars
from benchmarks.speed.consolidation import estimate
from benchmarks.speed.memory import peak_of
from benchmarks.speed.networks import NETWORKS
from benchmarks.speed.paper_form import in_paper_form
from benchmarks.speed.ratio import ratio
from benchmarks.speed.rivals import loop, vmap
from benchmarks.speed.steps import strategy_of
from benchmarks.speed.timing import interleaved


def test_the_page_is_up_to_date():
    assert command.main(["page", "--check"]) == 0, "run python -m benchmarks.speed page"


def test_a_page_that_is_not_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "PAGE", tmp_path / "SPEED.md")
    with pytest.raises(UserError, match=r"run python -m benchmarks\.speed page"):
        command.main(["page", "--check"])


STEP = "step / Naive: VGG-16 at 64 px, batch 16"


def steps(*, rounds=12, **times):
    """Times of a step over Naive's, the same in all rounds or, if two are given, from the one to the other."""
    found = {"naive": [1.0] * rounds, "ewc online": [1.0] * rounds}
    for name, value in times.items():
        low, high = value if isinstance(value, tuple) else (value, value)
        found[name] = [low + (high - low) * i / (rounds - 1) for i in range(rounds)]
    return {"found": {"vgg16": found}, "quick": True}


def test_worst_cases_are_found():
    measured = {"steps@1": steps(rewc=1.2, paper=3.0), "steps@2": steps(rewc=1.1, paper=3.0)}
    found = {bar.what: bar for bar in bars(measured)}
    assert (found[STEP].reached.median, found[STEP].holds) == (pytest.approx(1.2), "no")
    assert found[STEP].where.endswith("1 thread")
    paper = found["the paper's two-layer form / step: VGG-16"]
    assert paper.holds == "yes"
    assert paper.reached.median == pytest.approx(3 / 1.2)


def test_steps_with_memory_that_is_kept_count_too():
    found = {bar.what: bar for bar in bars({"steps@1": steps(rewc=1.0), "steps-kept@1": steps(rewc=1.2)})}
    assert found[STEP].holds == "no"
    assert found[STEP].where.endswith("1 thread, memory kept")


def test_pairs_of_many_rounds_stand_in_place_of_those_of_few():
    measured = {
        "steps@1": steps(rewc=(1.0, 1.4), paper=2.0, **{"rewc original": 1.5}),
        "steps-close@1": steps(rounds=40, rewc=1.1),
        "steps@2": steps(rewc=1.0),
    }
    found = {bar.what: bar for bar in bars(measured)}
    assert (found[STEP].reached.median, found[STEP].holds) == (pytest.approx(1.1), "yes")
    assert found[STEP].where.endswith("1 thread")
    # A pair that was not timed again is taken from where it is.
    original = found['step with space="original" / Avalanche\'s online EWC']
    assert original.reached.median == pytest.approx(1.5)
    assert found["the paper's two-layer form / step: VGG-16"].reached.median == pytest.approx(2 / 1.2, rel=1e-2)


def test_bases_alone_are_the_products_of_a_step(monkeypatch):
    """Two layers: both bases forward and back, but no gradient of the data."""
    network = NETWORKS["mlp-32"]
    steps_of = step_times.ways_of(network)
    applied = []
    monkeypatch.setattr(step_times, "apply_to_rows", lambda x, matrix: applied.append((x.shape, matrix.left.shape)))
    steps_of["bases alone"]()()
    assert applied == [((1, 32, 512), (1, 512, 64))] * 7
    assert "bases alone" not in step_times.ways_of(NETWORKS["lenet"])


def test_the_least_that_a_step_takes():
    none_and_bases = steps(**{"rewc none": 1.2, "bases alone": 0.3})
    assert page.Page({"steps-kept@1": none_and_bases}, draw=False).floor("vgg16") == "1.50 with 1 thread"
    assert page.Page({"steps-kept@1": steps()}, draw=False).floor("vgg16") == "*not measured yet*"


def test_a_part_is_measured_in_its_own_environment(monkeypatch, tmp_path):
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\necho "{\\"keeps\\": \\"$MALLOC_TRIM_THRESHOLD_\\"}"\n')
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    found = {part: parts.run(part, 1, True, "wall")["found"]["keeps"] for part in ("steps", "steps-kept")}
    assert found == {"steps": "", "steps-kept": parts.KEEPING_MEMORY["MALLOC_TRIM_THRESHOLD_"]}


def test_a_limit_within_the_interval_is_undecided():
    found = {bar.what: bar for bar in bars({"steps@1": steps(rewc=(1.0, 1.25))})}
    assert found[STEP].reached.median < 1.15
    assert found[STEP].holds == "undecided"


def test_a_line_that_fails_for_sure_is_no_however_noisy_another_is():
    noisy = steps(rewc=(0.9, 1.9))
    found = {bar.what: bar for bar in bars({"steps@1": noisy, "steps@2": steps(rewc=1.2)})}
    assert found[STEP].holds == "no"
    assert found[STEP].where.endswith("2 threads")


def test_a_ratio_is_taken_within_rounds():
    """A machine that is twice as slow in half of the rounds does not change it; ratios of medians would be off."""
    slow = [1.0, 2.0] * 6
    found = ratio([1.1 * t for t in slow], slow)
    assert (found.median, found.low, found.high) == pytest.approx((1.1, 1.1, 1.1))


@pytest.mark.parametrize(("rounds", "skipped"), [(2, 0), (6, 0), (10, 1), (12, 2), (60, 21)])
def test_the_interval_of_a_median(rounds, skipped):
    """By the tables of the sign test."""
    found = ratio([float(i) for i in range(rounds)], [1.0] * rounds)
    assert (found.low, found.high) == (skipped, rounds - 1 - skipped)


def test_what_was_timed_once_has_no_interval():
    assert str(ratio([3.0], [1.0, 2.0, 3.0])) == "1.50"


def test_a_rival_takes_part_in_its_better_batch_size(monkeypatch):
    clock = iter(range(1000))
    cost = {32: 5, 256: 2}
    spent = []

    def rival(generator, batch_size):
        spent.append(batch_size)
        for _ in range(cost[batch_size]):
            next(clock)

    monkeypatch.setattr(consolidation, "now", lambda: next(clock) / 100)
    once, _, size = consolidation._best(rival, [32, 256])
    assert size == 256
    assert spent == [32, 256, 32, 256]
    once()
    assert spent[-1] == 256
    spent.clear()
    monkeypatch.setattr(consolidation, "SLOW", 0.01)
    assert consolidation._best(rival, [32, 256])[2] == 32, "too slow for another try"
    assert spent == [32]


def test_few_samples_are_one_batch():
    assert consolidation._sizes(8) == [8]
    assert consolidation._sizes(200) == [32, 200]
    assert consolidation._sizes(800) == [32, 256]


def test_a_peak_is_above_the_model():
    """In a process of its own: an earlier and larger one does not hide it."""
    big = torch.ones(2**27)  # half a GiB in this process
    found = peak_of("lenet", "sampled", 200)
    del big
    assert 0.001 < found["GiB"] < 0.3
    assert found["model GiB"] == pytest.approx(61706 * 4 / 2**30)


def test_tables_show_spreads_batch_sizes_and_sizes_in_models():
    seconds = {"consolidate": [1.0] * 6, "vmap": [1.1, 1.2, 1.3] * 2, "nngeometry": [12.0]}
    own = {"samples": 100, "seconds": seconds, "batch": {"vmap": 256, "nngeometry": 32}, "refused": {"loop": "why"}}
    peak = {"network": "vgg16-224", "fisher": "exact", "samples": 4, "GiB": 1.5, "model GiB": 0.05}
    found = {
        "steps@1": steps(rewc=(1.0, 1.25))["found"],
        "consolidation@1": {"lenet": own},
        "memory@2": {"peaks": [peak], "stored": {"lenet": {"rewc last": [2.0, 2.0]}}},
        "data@2": {"train": 60, "test": 10, "epochs": 5, "seconds": {"torch": [10.0], "naive": [11.0]}},
    }
    shown = page.Page({key: {"found": value, "quick": False} for key, value in found.items()}, draw=False)
    assert "| 12 | 1000.0 | 1.00 | 1.12 (1.05–1.20) |" in shown.steps(1)
    table = shown.consolidation(1)
    assert "| consolidate, ms per sample | 10.00 |" in table
    assert "| torch.func.vmap | 1.20 (1.10–1.30, b 256) |" in table
    assert "| nngeometry EKFAC | 12.00 (once, b 32) |" in table
    assert "| one sample at a time | why |" in table
    assert "| VGG-16 at 224 px, exact Fisher | 4 | 51.2 | 1536 | 30.0 |" in shown.peaks()
    assert "| naive | 11.0 | 1.10 |" in shown.data()
    assert shown.experiment() == "60 training and 10 test pictures, 5 epochs of each experience (2 threads, 1 rounds)"
    assert "≤ 2 GiB | 1.50 | exact, 4 samples | yes |" in shown.bars()
    assert "undecided, by the median yes |" in shown.bars()


def growth(late, eigenvectors, widths=("64", "128")):
    """Early steps take 1 s; a consolidation 1 s, and 4 s of twice the width; of these, shares that are eigenvectors."""
    return {
        "experiences": [1.0] * 20,
        "steps": {"lenet": {"early": [1.0] * 6, "early again": [1.01] * 6, "late": [late] * 6}},
        "widths": {
            width: {"consolidation": [seconds], "eigenvectors": [share * seconds]}
            for width, seconds, share in zip(widths, (1.0, 4.0 * late), eigenvectors, strict=True)
        },
        "samples": {"200": [0.5], "200, exact": [2.4], "400": [1.0], "800": [2.0], "1600": [4.4], "a step": [0.1]},
        "classes": {"one pass": [0.01], "200": [2.4 * late], "200, certain": [1.0]},
    }


def test_growth_is_shown_and_judged_with_one_thread_and_with_two():
    found = {"growth@2": growth(1.2, (0.6, 0.7)), "growth@1": growth(1.0, (0.6, 0.4))}
    measured = {key: {"found": value, "quick": False} for key, value in found.items()}
    judged = {bar.what: (pytest.approx(bar.reached.median), bar.where, bar.holds) for bar in bars(measured)}
    late = "LeNet, batch 100, 20 learned, 2 threads"
    assert judged["step after many experiences / after the first"] == (1.2, late, "no")
    assert judged["width, against the cube"] == (0.6, "MLP 64 to 128, 2 threads", "yes")
    assert judged["200 samples / an epoch of 30 000 on MNIST"][:2] == (0.08, "LeNet, exact Fisher, 1 thread")
    assert judged["samples 400 to 800, against linear"][0::2] == (1.0, "yes")
    assert judged["samples 800 to 1600, against linear"][0::2] == (1.1, "no")
    classes = "exact Fisher of 200 classes, bases and all / 200 backward passes"
    assert judged[f"{classes}: a random network"] == (1.44, "MLP 256, 2 threads", "no")
    assert judged[f"{classes}: one that is certain of its samples"][0::2] == (0.5, "yes")
    shown = page.Page(measured, draw=False)
    assert "| LeNet, batch 100, 2 threads | 20 | 1.20 | 1.01 |" in shown.late_steps()
    assert shown.overtaking() == "nowhere with 1 thread, from a width of 64 on with 2 threads"
    assert "| 128 | 4.000 | 0.40 | 4.800 | 0.70 |" in shown.widths()
    assert "| 1600 | 4.4000 | 4.4000 |" in shown.growth("samples")


def test_cells_stand_under_their_own_number_of_threads():
    """Also if not all was measured with both."""
    found = {"growth@1": growth(1.0, (0.1, 0.1)), "growth@2": growth(1.0, (0.1, 0.1), widths=("128", "256"))}
    shown = page.Page({key: {"found": value, "quick": True} for key, value in found.items()}, draw=False)
    assert "| 64 | 1.000 | 0.10 |  |  |" in shown.widths()
    assert "| 256 |  |  | 4.000 | 0.10 |" in shown.widths()


def test_growth_measures_what_it_says(monkeypatch):
    """Smallest sizes: who has learned how much, and a time of everything that the page and the lines ask for."""
    learned = []
    prepared = growth_of.in_training

    def remembered(strategy, experiences):
        learned.append(len(experiences) - 1)
        return prepared(strategy, experiences)

    monkeypatch.setattr(growth_of, "in_training", remembered)
    monkeypatch.setattr(growth_of, "SAMPLES", (200, 400, 800, 1600))
    found = growth_of.measure((8, 16), experiences=3, rounds=1, steps=2)
    assert learned == [1, 1, 3, 1, 1, 3, 0], "early, early again and late of two networks; a step of Naive"
    assert {len(times) for times in found["steps"]["lenet"].values()} == {2}
    measured = {"growth@1": {"found": found, "quick": True}}
    assert len(list(bars(measured))) == 7
    assert "| 16 |" in page.Page(measured, draw=False).widths()


def test_whole_experiments_are_timed():
    found = data.measure(2, 200, 100, 1)
    assert {len(seconds) for seconds in found["seconds"].values()} == {2}
    assert set(found["seconds"]) == {"torch", "naive", "naive, TensorBatches", "rewc, TensorBatches"}


def test_measured_parts_are_kept_and_not_measured_again(monkeypatch, tmp_path, capsys):
    kept = tmp_path / "speed.json"
    runs = []

    def run(part, threads, quick, clock):
        runs.append((part, threads))
        return {
            "quick": quick,
            "clock": clock,
            "versions": {},
            "found": {"train": 1, "test": 1, "epochs": 1, "seconds": {"torch": [1.0]}},
        }

    monkeypatch.setattr(page, "KEPT", kept)
    monkeypatch.setattr(page, "PAGE", tmp_path / "SPEED.md")
    monkeypatch.setattr(command, "run", run)
    command.main(["data", "--quick", "--threads", "2"])
    assert runs == [("data", 2)]
    command.main(["data", "--quick"])
    assert runs == [("data", 2), ("data", 1)], "with two threads measured before"
    command.main(["data", "--threads", "2"])
    assert list(parts.read(kept)) == ["data@2"], "nothing of the quick ones is left"
    assert len(runs) == 3, "a quick measurement does not stand for a whole one"
    assert json.loads(kept.read_text())["schema"] == parts.SCHEMA
    assert '"torch": [ 1.0 ]' in kept.read_text(), "the rounds in one line"
    kept.write_text(json.dumps({"schema": 0}))
    with pytest.raises(UserError, match="another format"):
        command.main(["data"])
    capsys.readouterr()


def test_rivals_are_compared_with_the_same_kind_of_fisher():
    seconds = {"consolidate": [1.0], "consolidate-exact": [4.0], "vmap": [3.0], "loop": [9.0], "loop-exact": [6.0]}
    seconds |= {"consolidate-patch": [2.0], "consolidate-patch-whole": [10.0], "nngeometry": [7.0]}
    found = {"lenet": {"samples": 100, "seconds": seconds, "batch": {}, "refused": {}}}
    measured = {"consolidation@1": {"found": found, "quick": False}}
    reached = {bar.what: bar.reached.median for bar in bars(measured)}
    assert reached["the fastest rival / consolidation: LeNet"] == 3.0
    assert reached["the same, exact Fisher: LeNet"] == 1.5
    assert reached["libraries of patch bases / we with patch bases: LeNet"] == 3.5
    assert reached["libraries of patch bases / we with whole patch bases: LeNet"] == 0.7
    assert reached["one sample at a time / consolidation: LeNet"] == 9.0


def test_every_candidate_has_its_turns():
    turns = []
    candidates = {name: lambda name=name: turns.append(name) for name in "abc"}
    found = interleaved(candidates, 0, at_least=70, at_most=60, warm_up=1)
    assert {name: len(seconds) for name, seconds in found.items()} == dict.fromkeys("abc", 70)
    rounds = ["".join(turns[i : i + 3]) for i in range(3, len(turns), 3)]
    assert len(rounds) == 70
    assert set(rounds) == {"abc", "acb", "bac", "bca", "cab", "cba"}, "anyone may come after anyone"


@pytest.mark.parametrize("rival", [loop, vmap])
def test_rivals_compute_the_same(rival):
    """With the same draws; otherwise their times would say nothing."""
    network = NETWORKS["lenet"]
    torch.manual_seed(0)
    model = network.make().double().eval()
    x, y = network.samples(6)
    x = x.double()
    theirs = rival(model, x, y, torch.Generator().manual_seed(0))
    labels = torch.multinomial(model(x).softmax(-1), 1, generator=torch.Generator().manual_seed(0))[:, 0]
    if rival is loop:  # it draws sample by sample
        generator = torch.Generator().manual_seed(0)
        draws = [torch.multinomial(model(x[i : i + 1]).softmax(-1), 1, generator=generator)[0] for i in range(6)]
        labels = torch.cat(draws)
    ours = consolidate(model, lambda: [((x,), labels)], fisher="empirical", normalize=False)
    for name, importance in ours.importances.items():
        # a sum of squares is the same in every basis; the bases themselves have free signs and null spaces
        torch.testing.assert_close(theirs.importances[name].sum(), importance.sum())
    for name, (a, g) in theirs.factors.items():
        torch.testing.assert_close(a, ours.factors[name][0][0])
        torch.testing.assert_close(g, ours.factors[name][1][0])


@pytest.mark.parametrize("way", ["loop", "loop, exact", "vmap"])
def test_rivals_compute_every_number_of_the_library(way):
    """With more samples than features, so that no basis is free, and its second pass in the paper's form."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 5), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(5, 4)).double().eval()
    x = torch.randn(60, 2, 4, 4, dtype=torch.float64)
    exact, at_once = way == "loop, exact", 32 if way == "vmap" else 1
    rival = vmap if way == "vmap" else partial(loop, exact=exact)
    theirs = rival(model, x, x, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    draws = [torch.multinomial(model(batch).softmax(-1), 1, generator=generator)[:, 0] for batch in x.split(at_once)]
    labels = torch.cat(draws)
    kind = "exact" if exact else "empirical"
    ours = consolidate(model, lambda: [((x,), labels)], fisher=kind, normalize=False)
    assert set(ours.rotations) == {"0.weight", "3.weight"}
    for name, importance in ours.importances.items():
        torch.testing.assert_close(theirs.importances[name], importance)


def test_the_papers_form_computes_what_the_layer_did():
    network = NETWORKS["lenet"]
    torch.manual_seed(0)
    model = network.make().double().eval()
    x, y = network.samples(8)
    memory = estimate(model, x.double(), y, torch.Generator().manual_seed(0), "sampled")
    form, penalty = in_paper_form(copy.deepcopy(model), memory, 1.0)
    torch.testing.assert_close(form(x.double()), model(x.double()))
    assert float(penalty().detach()) == pytest.approx(0, abs=1e-20)


def test_strategies_start_from_the_same_weights():
    ours, theirs = (strategy_of(kind, NETWORKS["lenet"], ewc_lambda=1.0) for kind in (REWC, EWC))
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert ours.train_mb_size == theirs.train_mb_size == NETWORKS["lenet"].batch_size


def test_every_way_of_a_step_is_timed():
    found = step_times.measure("mlp-32", 0, 2)
    assert {len(seconds) for seconds in found.values()} == {2}
    assert {"naive", "rewc", "rewc original", "paper", "ewc online", "ewc separate after 20"} <= set(found)


def test_only_some_ways_of_a_step_are_timed():
    assert list(step_times.measure("mlp-32", 0, 2, step_times.CLOSE)) == list(step_times.CLOSE)
