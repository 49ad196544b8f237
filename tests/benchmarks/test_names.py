"""Names, their variants, and the configurations they stand for."""

import pytest

from benchmarks.config import RunConfig
from benchmarks.grid import load_sweep, parse_sweep, shipped_sweeps
from benchmarks.methods import FAMILIES, all_names, find_method
from benchmarks.names import UserError
from benchmarks.plan import make_config
from benchmarks.selection import first_phase
from benchmarks.streams import STREAMS
from tests.benchmarks.small import config


def test_every_name_means_itself():
    for name in all_names():
        assert find_method(name).name == name.removesuffix("-separate" if name == "ewc-separate" else "")


def test_variants_come_in_any_order_and_set_what_they_say():
    method = find_method("rewc-fc-original-exact")
    assert method.name == find_method("rewc-fc-exact-original").name
    assert (method.options["layers"], method.options["fisher"], method.options["space"]) == (
        "linear",
        "exact",
        "original",
    )
    assert find_method("rewc-random-input-exact").options["basis"] == "random_input"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"method": "rwec"}, "'rewc'"),
        ({"method": "rewc-exat"}, "'exact'"),
        ({"method": "naive-exact"}, "no variants"),
        ({"method": "rewc-random-authors"}, "sets basis twice"),
        ({"stream": "mnits"}, "'mnist'"),
        ({"method": "rewc", "strength": None}, "needs a strength"),
        ({"method": "naive", "strength": 3.0}, "no strength"),
        ({"method": "rewc-conv", "strength": 1.0}, "no convolutions"),
        ({"method": "rewc-patch", "strength": 1.0}, "no convolutions"),
        ({"method": "rewc", "strength": 1.0, "options": {"fishr": "exact"}}, "'fisher'"),
        ({"method": "naive", "options": {"fisher": "exact"}}, "no options"),
        ({"method": "expert-gate", "stream": "cub200"}, "cub200-features"),
        ({"epoch": 3}, "'epochs'"),
        ({"loss": "cross-entrop"}, "'cross-entropy'"),
        ({"epochs": 0}, "epochs=0"),
        ({"model": {"hiden": [3]}}, "'hidden'"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(wrong, hint):
    with pytest.raises(UserError, match=hint):
        make_config(**{"stream": "digits", "method": "naive", **wrong})


def test_an_option_is_the_same_run_as_the_name_that_stands_for_it():
    by_name = config("rewc-exact", 10)
    by_option = config("rewc", 10, options={"fisher": "exact"})
    assert by_name == by_option
    assert by_name.key == by_option.key


def test_the_key_is_of_everything_and_of_nothing_else():
    run = config("rewc", 100)
    assert run.key == config("rewc", 100.0).key == RunConfig.from_dict(run.to_dict()).key
    others = [
        config("rewc", 10),
        config("rewc-exact", 100),
        config("rewc", 100, seed=1),
        config("rewc", 100, epochs=2),
        config("rewc", 100, loss="cross-entropy"),
        config("rewc", 100, options={"samples_per_class": 5}),
        config("rewc", 100, validation=0.1),
        config("rewc", 100, n_experiences=5),
    ]
    assert len({run.key, *(other.key for other in others)}) == len(others) + 1


def test_configurations_leave_nothing_implicit():
    """Else a change of a default would silently change what an old result means."""
    run = config("rewc", 1)
    assert set(run.options) == set(FAMILIES["rewc"].defaults) - {"rank"}, "older results have whole bases and no rank"
    assert config("rewc-leading", 1).options["rank"] == 64
    assert run.options["samples_per_class"] == STREAMS["digits"].samples_per_class
    assert dict(run.model) == dict(STREAMS["digits"].model)


@pytest.mark.parametrize("name", shipped_sweeps())
def test_shipped_sweeps_can_be_read(name):
    sweep = load_sweep(name)
    keys = [run.key for run in first_phase(sweep)]
    assert len(keys) == len(set(keys)) > 0


def test_the_paper_s_tables_ship_with_five_seeds_and_both_ways_of_choosing():
    for name in ("table1", "table2", "table3", "four-tasks"):
        sweep = load_sweep(name)
        assert {run.seed for run in sweep.runs} == {0, 1, 2, 3, 4}
        assert sweep.select == ("validation", "test")
    strengths = {run.strength for run in load_sweep("table1").runs if run.method == "rewc-fc-raw"}
    assert strengths == {1, 10, 100, 1e3, 1e4, 1e5}


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ({}, "no \\[\\[grid\\]\\]"),
        ({"grids": []}, "'grid'"),
        ({"grid": [{"method": ["naive"]}]}, "'methods'"),
        ({"grid": [{"methods": ["naiv"]}], "settings": {"stream": "digits"}}, "'naive'"),
        ({"grid": [{"methods": ["naive"]}], "select": ["tset"]}, "'test'"),
        ({"grid": [{"methods": ["naive"], "vary": {"stream": "digits"}}]}, "list of values"),
        ({"grid": [{"methods": ["naive"], "vary": {"option.fisher": ["exact"]}}]}, "'options'"),
        ({"grid": [{"methods": ["naive"]}], "seeds": [1, 1]}, "different"),
    ],
)
def test_wrong_sweep_files_are_refused(content, hint):
    with pytest.raises(UserError, match=hint):
        parse_sweep("wrong", content)


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ({"grid": [{"methods": "naive"}]}, "methods = 'naive' must be a list"),
        ({"grid": [{"methods": ["rewc"], "strengths": 1}]}, "strengths = 1 must be a list"),
        ({"grid": [{"methods": ["rewc"], "strengths": ["a"]}]}, "'a' is not a number"),
        ({"grid": [{"methods": ["naive"]}], "seeds": 3}, "seeds = 3 must be a list"),
        ({"grid": [{"methods": ["naive"]}], "select": "test"}, "select = 'test' must be a list"),
        ({"grid": [{"methods": ["naive"]}], "select": []}, "select is empty"),
        ({"grid": [{"methods": ["naive"]}], "settings": "a"}, "settings = 'a' must be a table"),
        ({"grid": [{"methods": ["naive"]}], "settings": {"seed": 1}}, "give seeds of the sweep"),
        ({"grid": [{"methods": ["naive"]}], "settings": {"validation": 0.2}}, "give validation of the sweep"),
        ({"grid": [{"methods": ["naive"]}], "settings": {"lr_drop_epoch": "a"}}, "lr_drop_epoch='a'"),
    ],
)
def test_mistakes_in_a_sweep_file_are_named(content, hint):
    with pytest.raises(UserError) as error:
        parse_sweep("mine", content)
    assert hint in str(error.value)


def test_digits_are_the_default_stream():
    assert make_config(method="naive").stream == "digits"
    assert parse_sweep("mine", {"grid": [{"methods": ["naive"]}]}).runs[0].stream == "digits"
