"""Strengths are chosen on validation data, and test data are not looked at before."""

import pytest
import torch

from benchmarks import execute as module
from benchmarks.execute import execute, numbers
from benchmarks.grid import parse_sweep
from benchmarks.machine import Machine
from benchmarks.selection import choose, first_phase, group_key, on_validation, second_phase, tunable
from benchmarks.store import ResultStore
from benchmarks.streams import open_stream
from benchmarks.sweep import run_sweep
from tests.benchmarks.small import config


def result(run, score):
    return {"key": run.key, "config": run.to_dict(), "average_accuracy": score}


def grid(scores, evaluate_on="valid"):
    """Results of a method from scores by (strength, seed)."""
    found = []
    for (strength, seed), score in scores.items():
        run = config("rewc", strength, seed=seed)
        found.append(result(on_validation(run, 0.1) if evaluate_on == "valid" else run, score))
    return found


def test_the_best_mean_over_seeds_wins():
    scores = {(1, 0): 0.9, (1, 1): 0.1, (10, 0): 0.6, (10, 1): 0.6, (100, 0): 0.5, (100, 1): 0.5}
    (choice,) = choose(grid(scores), "validation").values()
    assert (choice.strength, choice.score, choice.seeds, choice.at_edge) == (10, 0.6, 2, False)


def test_a_strength_without_all_seeds_is_not_chosen():
    scores = {(1, 0): 0.5, (1, 1): 0.5, (10, 0): 0.9}
    (choice,) = choose(grid(scores), "validation").values()
    assert choice.strength == 1


def test_of_equals_the_smallest_is_chosen_and_edges_are_marked():
    scores = {(1, 0): 0.5, (10, 0): 0.5, (100, 0): 0.4}
    (choice,) = choose(grid(scores), "validation").values()
    assert choice.strength == 1
    assert choice.at_edge


def test_each_way_sees_its_own_data_only():
    results = grid({(1, 0): 0.9, (10, 0): 0.1}) + grid({(1, 0): 0.1, (10, 0): 0.9}, "test")
    assert [c.strength for c in choose(results, "validation").values()] == [1]
    assert [c.strength for c in choose(results, "test").values()] == [10]


SWEEP = parse_sweep(
    "small",
    {
        "seeds": [0, 1],
        "select": ["validation"],
        "validation": 0.2,
        "settings": {"stream": "digits", "epochs": 1, "learning_rate": 0.01},
        "grid": [{"methods": ["naive"]}, {"methods": ["rewc", "lwf"], "strengths": [1, 100]}],
    },
)


def test_the_first_phase_has_no_test_run_of_what_is_to_be_chosen():
    first = first_phase(SWEEP)
    assert {run.method for run in first if run.evaluate_on == "test"} == {"naive"}
    held_out = [run for run in first if run.evaluate_on == "valid"]
    assert len(held_out) == 2 * 2 * 2
    assert {run.validation for run in held_out} == {0.2}
    assert len(tunable(SWEEP.runs)) == 8


def test_the_paper_s_way_runs_the_whole_grid_on_test_data():
    both = parse_sweep(
        "both",
        {
            "select": ["validation", "test"],
            "settings": {"stream": "digits"},
            "grid": [{"methods": ["rewc"], "strengths": [1, 10]}],
        },
    )
    assert sorted((run.strength, run.evaluate_on) for run in first_phase(both)) == [
        (1, "test"),
        (1, "valid"),
        (10, "test"),
        (10, "valid"),
    ]


def test_a_sweep_evaluates_test_data_once_with_the_chosen_strength(tmp_path):
    """For real: every run is executed, and the choice is checked against the stored validation results."""
    store = ResultStore(tmp_path)
    tally = run_sweep(SWEEP, store, Machine(), jobs=2)
    assert (tally.done, tally.failed, tally.undecided) == (2 + 8 + 4, [], [])
    results = store.results()
    for method in ("rewc", "lwf"):
        mine = [r for r in results if r["config"]["method"] == method]
        held_out = {}
        for strength in (1, 100):
            scores = [
                r["average_accuracy"]
                for r in mine
                if r["config"]["evaluate_on"] == "valid" and r["config"]["strength"] == strength
            ]
            assert len(scores) == 2
            held_out[strength] = sum(scores) / 2
        tested = [r["config"]["strength"] for r in mine if r["config"]["evaluate_on"] == "test"]
        assert tested == [max(held_out, key=held_out.get)] * 2, held_out
    again = run_sweep(SWEEP, store, Machine(), jobs=2)
    assert (again.done, again.already) == (0, 14)


def test_nothing_is_chosen_where_runs_are_missing():
    results = [result(run, 0.5) for run in first_phase(SWEEP) if run.method == "rewc"]
    chosen, undecided = second_phase(SWEEP, results)
    assert {run.method for run in chosen} == {"rewc"}
    assert [run.method for run in undecided] == ["lwf"]


def test_the_validation_phase_does_not_touch_test_data(monkeypatch):
    """With test inputs and labels that would spoil every number, the numbers stay the same."""
    run = config("rewc", 10, validation=0.2, evaluate_on="valid")
    honest = numbers(execute(run))
    touched = []

    class Poisoned(torch.utils.data.Dataset):
        def __init__(self, data):
            self.data = data

        def __len__(self):
            return len(self.data)

        def __getitem__(self, index):
            touched.append(index)
            raise AssertionError("test data were read")

    def poisoned(run, machine):
        stream = open_stream(run, machine)
        for experience in stream.test_stream:
            for data in experience.dataset._datasets:
                data.__class__ = type("Spoiled", (type(data),), {"__getitem__": Poisoned.__getitem__})
        return stream

    monkeypatch.setattr(module, "open_stream", poisoned)
    assert numbers(execute(run)) == honest
    assert touched == []
    with pytest.raises(AssertionError, match="test data were read"):  # the trap works
        execute(run.but(evaluate_on="test"))


def test_held_out_samples_are_not_trained_on():
    run = config(validation=0.2, evaluate_on="valid")
    stream = open_stream(run, Machine())

    def samples(part):
        return {tuple(e.dataset[i][0].flatten().tolist()) for e in part for i in range(len(e.dataset))}

    train, valid, test = map(samples, (stream.train_stream, stream.valid_stream, stream.test_stream))
    assert len(valid) > 200
    assert not valid & train
    assert not valid & test


def test_groups_leave_only_strength_seed_and_evaluation_apart():
    run = config("rewc", 1)
    same = [run.but(strength=5.0), run.but(seed=3), on_validation(run, 0.3)]
    assert {group_key(other.to_dict()) for other in same} == {group_key(run.to_dict())}
    for other in (run.but(epochs=2), config("rewc-exact", 1), run.but(loss="cross-entropy")):
        assert group_key(other.to_dict()) != group_key(run.to_dict())
