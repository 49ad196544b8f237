"""One run: its numbers, that they repeat, and the protocol behind them."""

import json

import pytest
import torch

from benchmarks import execute as module
from benchmarks.baselines import DropLearningRate
from benchmarks.execute import attempt, execute, numbers
from benchmarks.fisher import pack, unpack
from benchmarks.machine import Machine
from benchmarks.metrics import averages, backward_transfer
from benchmarks.names import UserError
from benchmarks.strategies import make_strategy
from tests.benchmarks.small import config


def test_the_same_configuration_gives_the_same_numbers_bit_for_bit():
    run = config("rewc", 100, n_experiences=5)
    first = execute(run)
    torch.manual_seed(1234)  # whatever was drawn before
    torch.rand(7)
    assert numbers(execute(run)) == numbers(first)
    assert numbers(execute(run.but(seed=1)))["accuracy"] != first["accuracy"]


def test_the_result_says_all():
    run = config("lwf", 2)
    result = json.loads(json.dumps(execute(run)))
    assert result["key"] == run.key
    assert result["config"] == run.to_dict()
    assert result["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert {"python", "avalanche-lib", "avalanche-rewc", "commit"} <= set(result["versions"])
    assert result["machine"]["threads"] == 1
    assert result["seconds"]["total"] > sum(result["seconds"]["training"]) > 0
    assert result["loss"][1][0] > 0
    assert result["validation"] is None


def test_held_out_samples_are_evaluated_like_test_samples():
    run = config("rewc", 2, validation=0.2)
    result = json.loads(json.dumps(execute(run)))
    held_out = result["validation"]
    assert [value is not None for value in held_out["accuracy"][0]] == [True, False]
    assert held_out["average_accuracy"] == pytest.approx(sum(held_out["accuracy"][1]) / 2)
    assert held_out["accuracy"] != result["accuracy"]
    assert result["accuracy"] != execute(run.but(validation=0.0))["accuracy"], "other samples were trained on"


def test_importances_are_recorded():
    first, last = execute(config("rewc-none", 2))["importances"]
    assert first["count"] < last["count"], "the head has grown"
    assert 0 < first["max"] <= first["sum"] < first["max"] * first["count"]
    assert first["squares"] <= first["sum"] * first["max"]
    assert execute(config())["importances"] == [None, None]


def test_every_task_learned_is_evaluated_after_every_task():
    accuracy = execute(config("naive", n_experiences=5))["accuracy"]
    for k, row in enumerate(accuracy):
        assert [value is not None for value in row] == [task <= k for task in range(5)]


def test_averages_and_transfer():
    accuracy = [[0.9, None, None], [0.5, 0.7, None], [0.3, 0.6, 0.9]]
    assert averages(accuracy) == pytest.approx([0.9, 0.6, 0.6])
    assert backward_transfer(accuracy) == pytest.approx((0.3 - 0.9 + 0.6 - 0.7) / 2)


def steps_at_first_update(monkeypatch, run):
    """Adam's step counters just after the first update of every task."""
    seen = []

    def spying(*arguments, **options):
        strategy = make_strategy(*arguments, **options)
        step = strategy.optimizer_step

        def counted():
            step()
            if strategy.clock.train_exp_iterations == 0:
                seen.append({int(state["step"]) for state in strategy.optimizer.state.values()})

        strategy.optimizer_step = counted
        return strategy

    monkeypatch.setattr(module, "make_strategy", spying)
    execute(run)
    return seen


@pytest.mark.parametrize("method", ["naive", "rewc"])
def test_each_task_starts_with_a_fresh_optimizer(method, monkeypatch):
    strength = 1 if method == "rewc" else None
    assert steps_at_first_update(monkeypatch, config(method, strength)) == [{1}, {1}]


def test_the_optimizer_is_kept_if_asked_for(monkeypatch):
    kept = steps_at_first_update(monkeypatch, config("naive", reset_optimizer=False))
    assert kept[0] == {1}
    assert max(kept[1]) > 1


def test_the_learning_rate_drops_in_every_task_anew():
    plugin = DropLearningRate(2, 5.0)

    class Strategy:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)

        class clock:
            train_exp_epochs = 0

    rates = []
    for _ in range(2):
        for Strategy.clock.train_exp_epochs in range(4):
            plugin.before_training_epoch(Strategy)
            rates.append(Strategy.optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 1.0, 0.2, 0.2] * 2


def test_an_error_becomes_a_record():
    broken = attempt(config("naive", n_experiences=3), Machine())  # 10 classes in 3 tasks
    assert broken["status"] == "failed"
    assert "cannot be divided" in broken["error"]
    assert "Traceback" in broken["traceback"]


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(UserError, match="'cuda:99'"):
        execute(config(), Machine(device="cuda:99"))


def test_the_fisher_of_a_layer_is_kept():
    run = config("rewc-exact", 1, n_experiences=1, epochs=3, model={"hidden": [10, 10]}, fisher_layer="body.3")
    record = execute(run)["fisher"]
    before, after = unpack(record["before"]), unpack(record["after"])
    assert before.shape == after.shape == (100, 100)
    for matrix, share in ((before, record["kept_before"]), (after, record["kept_after"])):
        assert (matrix.diagonal() ** 2).sum() / (matrix**2).sum() == pytest.approx(share, rel=1e-2)
    assert record["kept_after"] > record["kept_before"]
    # a rotation changes neither trace nor energy
    assert after.trace() == pytest.approx(before.trace(), rel=1e-2)
    assert (after**2).sum() == pytest.approx((before**2).sum(), rel=1e-2)


def test_the_fisher_of_a_layer_that_is_not_there():
    with pytest.raises(UserError, match="body"):
        execute(config("rewc", 1, n_experiences=1, fisher_layer="body.33"))
    with pytest.raises(UserError, match="rotates"):
        execute(config("naive", n_experiences=1, fisher_layer="body.3"))


def test_packed_matrices_come_back():
    matrix = torch.randn(7, 5)
    assert torch.allclose(torch.tensor(unpack(pack(matrix))), matrix.double(), atol=2e-3 * float(matrix.abs().max()))
