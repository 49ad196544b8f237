"""The first task is learned once for all methods, and nobody can tell from the numbers."""

import pytest

from benchmarks.execute import execute
from benchmarks.first_task import first_task_path
from benchmarks.machine import Machine
from tests.benchmarks.small import comparable, config

RUNS = [
    config("naive"),
    config("frozen"),
    config("ewc", 100.0),  # draws from the global generator after training
    config("rewc-none", 10.0),
    config("rewc", 10.0),
    config("rewc-exact-original", 1.0),
    config("lwf", 1.0),
    config("lwf-sigmoid", 1.0),
]


def test_runs_that_start_from_the_file_have_the_same_numbers(tmp_path):
    machine = Machine(first_tasks=str(tmp_path))
    for run in RUNS:
        assert comparable(execute(run, machine)) == comparable(execute(run)), run.method
    assert len(list(tmp_path.iterdir())) == 1, "one network for all of them, and nothing half-written"


def test_a_damaged_file_is_learned_anew(tmp_path):
    machine, want = Machine(first_tasks=str(tmp_path)), comparable(execute(RUNS[0]))
    execute(RUNS[0], machine)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    flipped = whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :]
    for content in (b"", whole[:-100], flipped):
        file.write_bytes(content)
        with pytest.warns(RuntimeWarning, match="is learned anew"):
            assert comparable(execute(RUNS[0], machine)) == want
        assert len(file.read_bytes()) > len(whole) - 100, "it was not written again"


def test_the_file_is_used_and_its_seconds_are_counted(tmp_path, monkeypatch):
    machine = Machine(first_tasks=str(tmp_path))
    execute(RUNS[0], machine)
    trained = []
    original = __import__("avalanche.training", fromlist=["Naive"]).Naive.training_epoch
    monkeypatch.setattr(
        "avalanche.training.templates.update_type.sgd_update.SGDUpdate.training_epoch",
        lambda self, **kwargs: (trained.append(self.clock.train_exp_counter), original(self, **kwargs)),
    )
    result = execute(config("rewc", 10.0), machine)
    assert set(trained) == {1}
    assert result["seconds"]["total"] > sum(result["seconds"]["training"]) - 1e-6


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"epochs": 2},
        {"n_experiences": 5},
        {"validation": 0.1},
        {"learning_rate": 0.1},
        {"loss": "cross-entropy"},
        {"class_order": "shuffled"},
    ],
)
def test_another_first_task_is_another_file(tmp_path, other):
    machine = Machine(first_tasks=str(tmp_path))
    assert first_task_path(config(), machine) != first_task_path(config(**other), machine)
    assert first_task_path(config(), machine) == first_task_path(config("rewc", 3.0), machine)


@pytest.mark.parametrize(
    "run", [config("joint"), config("cumulative"), config("expert-gate"), config(reset_optimizer=False)]
)
def test_methods_that_learn_the_first_task_in_their_own_way_do_so(tmp_path, run):
    assert first_task_path(run, Machine(first_tasks=str(tmp_path))) is None
    assert first_task_path(config(), Machine()) is None
