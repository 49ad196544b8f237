"""Strengths are chosen on held-out samples; test accuracies play no part in it, nor do held-out samples in training."""

import torch

from benchmarks import execute as module
from benchmarks.execute import execute
from benchmarks.grid import parse_sweep
from benchmarks.machine import Machine
from benchmarks.selection import choose, first_phase, group_key, second_phase, tunable
from benchmarks.store import ResultStore
from benchmarks.streams import open_stream
from benchmarks.sweep import run_sweep
from tests.benchmarks.small import config


def result(run, valid, test):
    held_out = {"average_accuracy": valid} if run.validation else None
    return {"key": run.key, "config": run.to_dict(), "average_accuracy": test, "validation": held_out}


def grid(scores):
    """Results of a method from scores by (strength, seed); test accuracies say the opposite."""
    return [
        result(config("rewc", strength, seed=seed, validation=0.1), score, 1 - score)
        for (strength, seed), score in scores.items()
    ]


def test_the_best_mean_over_seeds_wins():
    scores = {(1, 0): 0.9, (1, 1): 0.1, (10, 0): 0.6, (10, 1): 0.6, (100, 0): 0.5, (100, 1): 0.5}
    (choice,) = choose(grid(scores), "validation").values()
    assert (choice.strength, choice.score, choice.seeds, choice.at_edge) == (10, 0.6, 2, False)


def test_only_seeds_that_all_strengths_have_count():
    scores = {(1, 0): 0.5, (1, 1): 0.5, (10, 0): 0.4, (10, 1): 0.4, (10, 2): 0.9, (10, 3): 0.9}
    (choice,) = choose(grid(scores), "validation").values()
    assert (choice.strength, choice.seeds) == (1, 2)
    apart = {(1, 0): 0.5, (10, 1): 0.4}
    assert choose(grid(apart), "validation") == {}


def test_of_equals_the_smallest_is_chosen_and_edges_are_marked():
    scores = {(1, 0): 0.5, (10, 0): 0.5, (100, 0): 0.4}
    (choice,) = choose(grid(scores), "validation").values()
    assert choice.strength == 1
    assert choice.at_edge


def test_each_way_sees_its_own_data_only():
    results = grid({(1, 0): 0.9, (10, 0): 0.1})
    assert [c.strength for c in choose(results, "validation").values()] == [1]
    assert [c.strength for c in choose(results, "test").values()] == [10]
    without = [result(config("rewc", strength), None, 0.5) for strength in (1, 10)]
    assert choose(without, "validation") == {}


SWEEP = parse_sweep(
    "small",
    {
        "seeds": [0, 1, 2],
        "select": ["validation"],
        "select_seeds": [0, 1],
        "validation": 0.2,
        "settings": {"stream": "digits", "epochs": 1, "learning_rate": 0.01},
        "grid": [{"methods": ["naive"]}, {"methods": ["rewc", "lwf"], "strengths": [1, 100]}],
    },
)


def test_the_first_phase_is_the_grid_of_the_seeds_that_choose():
    first = first_phase(SWEEP)
    assert {run.validation for run in first} == {0.2}, "what is compared is trained on the same samples"
    assert {run.seed for run in first if run.method == "naive"} == {0, 1, 2}
    assert {(run.strength, run.seed) for run in first if run.method == "rewc"} == {(1, 0), (1, 1), (100, 0), (100, 1)}
    assert len(first) == 3 + 2 * 4
    assert len(tunable(SWEEP.runs)) == 12


def test_without_a_choice_on_validation_data_nothing_is_held_out():
    sweep = parse_sweep(
        "paper",
        {"select": ["test"], "validation": 0.2, "grid": [{"methods": ["rewc"], "strengths": [1, 10]}]},
    )
    assert [(run.strength, run.validation) for run in first_phase(sweep)] == [(1, 0.0), (10, 0.0)]


def test_both_ways_run_what_they_choose_with_all_seeds():
    sweep = parse_sweep(
        "both",
        {
            "seeds": [0, 1],
            "select": ["validation", "test"],
            "select_seeds": [0],
            "grid": [{"methods": ["rewc"], "strengths": [1, 10, 100]}],
        },
    )
    scores = {1.0: (0.9, 0.1), 10.0: (0.1, 0.9), 100.0: (0.5, 0.5)}
    results = [result(run, *scores[run.strength]) for run in first_phase(sweep)]
    chosen, undecided = second_phase(sweep, results)
    assert {(run.strength, run.seed) for run in chosen} == {(1, 1), (10, 1)}
    assert undecided == []


def test_a_sweep_runs_the_chosen_strength_with_all_seeds(tmp_path):
    """For real: every run is executed, and the choice is checked against the stored results."""
    store = ResultStore(tmp_path)
    tally = run_sweep(SWEEP, store, Machine(), jobs=2)
    assert (tally.done, tally.failed, tally.undecided) == (3 + 8 + 2, [], [])
    results = store.results()
    for method in ("rewc", "lwf"):
        mine = [r for r in results if r["config"]["method"] == method]
        held_out = {}
        for strength in (1, 100):
            scores = {
                r["config"]["seed"]: r["validation"]["average_accuracy"]
                for r in mine
                if r["config"]["strength"] == strength
            }
            held_out[strength] = (scores[0] + scores[1]) / 2
        last = [r["config"]["strength"] for r in mine if r["config"]["seed"] == 2]
        assert last == [max(held_out, key=held_out.get)], held_out
    again = run_sweep(SWEEP, store, Machine(), jobs=2)
    assert (again.done, again.already) == (0, 13)


def test_nothing_is_chosen_where_runs_are_missing():
    results = [result(run, 0.5, 0.5) for run in first_phase(SWEEP)]
    complete = [r for r in results if r["config"]["method"] == "rewc"]
    partly = [r for r in results if r["config"]["method"] == "lwf" and r["config"]["seed"] == 0]
    chosen, undecided = second_phase(SWEEP, complete + partly)
    assert {run.method for run in chosen} == {"rewc"}
    assert [run.method for run in undecided] == ["lwf"]


def test_validation_accuracies_do_not_depend_on_test_data(monkeypatch):
    """With other test inputs the validation matrix stays the same, and the test matrix does not."""
    run = config("rewc", 10, validation=0.2)
    honest = execute(run)

    def spoiled(run, machine):
        stream = open_stream(run, machine)
        for experience in stream.test_stream:
            for data in experience.dataset._datasets:
                data.inputs = torch.zeros_like(data.inputs)
        return stream

    monkeypatch.setattr(module, "open_stream", spoiled)
    other = execute(run)
    assert other["validation"] == honest["validation"]
    assert other["accuracy"] != honest["accuracy"]


def test_held_out_samples_are_not_trained_on():
    run = config(validation=0.2)
    stream = open_stream(run, Machine())

    def samples(part):
        return {tuple(e.dataset[i][0].flatten().tolist()) for e in part for i in range(len(e.dataset))}

    train, valid, test = map(samples, (stream.train_stream, stream.valid_stream, stream.test_stream))
    assert len(valid) > 200
    assert not valid & train
    assert not valid & test


def test_groups_leave_only_strength_and_seed_apart():
    run = config("rewc", 1)
    same = [run.but(strength=5.0), run.but(seed=3)]
    assert {group_key(other.to_dict()) for other in same} == {group_key(run.to_dict())}
    for other in (run.but(epochs=2), config("rewc-exact", 1), run.but(loss="cross-entropy")):
        assert group_key(other.to_dict()) != group_key(run.to_dict())
