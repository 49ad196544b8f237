"""SPEED.md shows what the kept result file says; the rivals compute what they are said to; nothing asserts a time."""

import copy
import json

import pytest
import torch
from torch import nn

from avalanche_rewc.core import consolidate
from benchmarks.names import UserError
from benchmarks.speed import __main__ as command
from benchmarks.speed import page, parts
from benchmarks.speed.bars import bars
from benchmarks.speed.consolidation import estimate
from benchmarks.speed.networks import NETWORKS
from benchmarks.speed.paper_form import in_paper_form
from benchmarks.speed.rivals import loop, vmap
from benchmarks.speed.steps import strategy_of
from benchmarks.speed.timing import interleaved


def test_the_page_is_up_to_date():
    assert command.main(["page", "--check"]) == 0, "run python -m benchmarks.speed page"


def test_a_page_that_is_not_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "PAGE", tmp_path / "SPEED.md")
    with pytest.raises(UserError, match=r"run python -m benchmarks\.speed page"):
        command.main(["page", "--check"])


def test_worst_cases_are_found():
    times = {"naive": 1.0, "rewc": 1.2, "ewc online": 1.0, "paper": 3.0}
    measured = {
        "steps@1": {"found": {"vgg16": times}, "quick": True},
        "steps@2": {"found": {"vgg16": times | {"rewc": 1.1}}, "quick": True},
    }
    found = {bar.what: bar for bar in bars(measured)}
    naive = found["step / Naive: VGG-16 at 64 px, batch 16"]
    assert (naive.reached, naive.holds) == (1.2, False)
    assert naive.where.endswith("1 thread")
    paper = found["the paper's two-layer form / step: VGG-16"]
    assert paper.holds
    assert paper.reached == pytest.approx(3 / 1.2)


def test_measured_parts_are_kept_and_not_measured_again(monkeypatch, tmp_path, capsys):
    kept = tmp_path / "speed.json"
    runs = []

    def run(part, threads, quick, clock):
        runs.append((part, threads))
        return {"quick": quick, "clock": clock, "versions": {}, "found": {"torch": 1.0}}

    monkeypatch.setattr(page, "KEPT", kept)
    monkeypatch.setattr(page, "PAGE", tmp_path / "SPEED.md")
    monkeypatch.setattr(command, "run", run)
    command.main(["data", "--quick"])
    assert runs == [("data", 1), ("data", 2)]
    command.main(["data", "--quick"])
    assert len(runs) == 2, "measured before"
    command.main(["data"])
    assert len(runs) == 4, "a quick measurement does not stand for a whole one"
    assert json.loads(kept.read_text())["schema"] == parts.SCHEMA
    kept.write_text(json.dumps({"schema": 0}))
    with pytest.raises(UserError, match="another format"):
        command.main(["data"])
    capsys.readouterr()


def test_every_candidate_has_its_turns():
    counts = {"a": 0, "b": 0}

    def turn(name):
        counts[name] += 1

    found = interleaved({name: lambda name=name: turn(name) for name in counts}, 0, at_least=3, warm_up=1)
    assert counts == {"a": 4, "b": 4}
    assert set(found) == set(counts)


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


def test_the_papers_form_computes_what_the_layer_did():
    network = NETWORKS["lenet"]
    torch.manual_seed(0)
    model = network.make().double().eval()
    x, y = network.samples(8)
    memory = estimate(model, x.double(), y, torch.Generator().manual_seed(0), "sampled")
    form, penalty = in_paper_form(copy.deepcopy(model), memory, 1.0)
    torch.testing.assert_close(form(x.double()), model(x.double()))
    assert float(penalty().detach()) == pytest.approx(0, abs=1e-20)


def test_strategies_are_made_alike():
    from avalanche.training import Naive

    strategy = strategy_of(Naive, NETWORKS["lenet"])
    assert isinstance(strategy.model, nn.Module)
    assert strategy.train_mb_size == 100
