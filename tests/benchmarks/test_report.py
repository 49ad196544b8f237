"""The report's numbers are those of the result files."""

import re
from statistics import fmean, stdev

import pytest

from benchmarks.execute import execute
from benchmarks.names import UserError
from benchmarks.report import paper
from benchmarks.report.__main__ import main
from benchmarks.report.build import make_sections, write_report
from benchmarks.report.carry_over import leave_one_out
from benchmarks.report.collect import Value, collect
from benchmarks.report.page import markdown_table
from benchmarks.report.tables import across, by_strength, comparison, percent, task_by_task, two_tasks
from benchmarks.store import ResultStore
from tests.benchmarks.small import config


def result(run, accuracy, valid=None):
    """A result file's content, with accuracy matrices of our own for test and held-out samples."""
    last = accuracy[-1]
    averages = [fmean(row[: k + 1]) if None not in row[: k + 1] else None for k, row in enumerate(accuracy)]
    known = None not in (row[0] for row in accuracy)
    forgetting = fmean(accuracy[t][t] - last[t] for t in range(len(last) - 1)) if known and len(last) > 1 else None
    return {
        "schema": 2,
        "status": "done",
        "key": run.key,
        "config": run.to_dict(),
        "accuracy": accuracy,
        "average_accuracies": averages,
        "average_accuracy": averages[-1],
        "forgetting": forgetting,
        "validation": valid and {"accuracy": valid, "average_accuracy": fmean(valid[-1])},
        "seconds": {"total": 2.0 + run.seed},
        "versions": {"torch": "2", "avalanche-lib": "0.6.0", "avalanche-rewc": "0"},
        "fisher": None,
    }


def two(first, second):
    return [[0.99, None], [first, second]]


def mnist(method, strength=None, **settings):
    return config(method, strength, stream="mnist", epochs=5, validation=0.1, **settings)


@pytest.fixture
def results():
    """MNIST: validation prefers λ = 10, test data λ = 100."""
    found = [result(mnist("naive", seed=s), two(0.1 + s / 10, 0.98)) for s in (0, 1)]
    found += [result(mnist("joint", seed=s), [[None, None], [0.97, 0.99]]) for s in (0, 1)]
    for method, bonus in (("rewc-none", 0.0), ("rewc", 0.05)):
        for strength, valid, test in ((1, 0.5, 0.5), (10, 0.8, 0.7), (100, 0.6, 0.85)):
            for seed in (0, 1):
                run = mnist(method, strength, seed=seed)
                found.append(result(run, two(test + bonus + seed / 50, 0.9), two(valid + bonus, 0.9)))
    return found


def row(table, name):
    return next(r for r in table.rows if r[0] == name)


def test_comparison_has_means_and_deviations_of_the_chosen_runs(results):
    (setting,) = collect(results)
    table = comparison(setting, "validation")
    assert table.header[:3] == ["method", "strength", "task 1"]
    values = [0.75, 0.77]
    averages = [(v + 0.9) / 2 for v in values]
    forgotten = [0.99 - v for v in values]
    assert row(table, "rewc") == [
        "rewc",
        "λ = 10",
        f"{100 * fmean(values):.1f} ± {100 * stdev(values):.1f}",
        "90.0 ± 0.0",
        f"{100 * fmean(averages):.1f} ± {100 * stdev(averages):.1f}",
        f"{100 * fmean(forgotten):.1f} ± {100 * stdev(forgotten):.1f}",
        "2.5 ± 0.7",
        "2",
        "93.1",  # the paper's, Table II
    ]
    assert row(table, "joint")[-4:-1] == ["–", "2.5 ± 0.7", "2"]
    assert "chosen on validation" in table.note


def test_the_paper_s_way_is_another_table_and_says_so(results):
    (setting,) = collect(results)
    table = comparison(setting, "test")
    assert row(table, "rewc")[1] == "λ = 100*"
    assert "best on test data" in table.note
    assert "paper's way" in table.title
    (setting,) = collect(r for r in results if r["config"]["strength"] in (None, 10.0))
    assert comparison(setting, "test") is None, "with one strength nothing was chosen"


def test_nothing_is_reported_as_chosen_on_validation_without_validation_runs(results):
    (setting,) = collect({**r, "validation": None} for r in results)
    assert comparison(setting, "validation") is None
    assert comparison(setting, "test") is not None


def test_a_single_strength_is_not_called_chosen():
    (setting,) = collect([result(mnist("rewc", 10, seed=s), two(0.5, 0.9)) for s in (0, 1)])
    table = comparison(setting, "validation")
    assert row(table, "rewc")[1] == "λ = 10 (fixed)"
    assert "fixed beforehand" in table.note
    assert "validation" not in table.title + table.note


def test_table_1_has_every_strength_and_the_paper_in_brackets(results):
    (setting,) = collect(results)
    table = by_strength(setting)
    assert table.header == ["method", "λ = 1", "λ = 10", "λ = 100"]
    assert row(table, "rewc")[3].startswith("**91.0 ± 1.4 / 90.0 ± 0.0**")
    assert row(table, "rewc")[3].endswith("(91.6 / 94.5)")
    assert row(table, "naive")[1:] == ["15.0 ± 7.1 / 98.0 ± 0.0 (6.1 / 97.6)"] * 3


def test_table_2_has_both_methods_their_gain_and_the_paper(results):
    table = two_tasks(collect(results), "validation")
    assert table.rows == [
        [
            "mnist",
            "80.5 ± 0.7 (71.0 ± 1.4 / 90.0 ± 0.0)",
            "83.0 ± 0.7 (76.0 ± 1.4 / 90.0 ± 0.0)",
            "+2.5 ± 0.0",
            "10 / 10",
            "2",
            "89.3 (85.8 / 92.8)",
            "93.1 (91.6 / 94.5)",
        ]
    ]


def test_table_3_shows_every_task_after_every_task():
    runs = []
    for method, high in (("rewc-none", 0.4), ("rewc", 0.6)):
        run = config(method, 10, stream="stanford40-features", n_experiences=4, epochs=50)
        runs.append(result(run, [[high + k / 100 if j <= k else None for j in range(4)] for k in range(4)]))
    (setting,) = collect(runs)
    table = task_by_task(setting, "validation")
    assert table.rows[0] == ["T1", "40.0 / 60.0 (81.5 / 81.5)", "–", "–", "–", "40.0 / 60.0 (81.5 / 81.5)"]
    assert table.rows[3][2] == "43.0 / 63.0 (7.0 / 31.3)"
    assert table.rows[3][5] == "43.0 / 63.0 (23.0 / 37.2)"


def test_settings_and_options_are_kept_apart(results):
    other = result(mnist("naive", seed=0, loss="cross-entropy"), two(0.0, 0.9))
    few = result(mnist("rewc", 10.0, options={"samples_per_class": 5}), two(0.2, 0.9))
    settings = collect([*results, other, few])
    assert [s.title for s in settings] == ["mnist, 2 tasks", "mnist, 2 tasks, loss cross-entropy"]
    labels = [m.label for m in settings[0].methods]
    assert labels == ["naive", "rewc-none", "rewc", "rewc (samples_per_class=5)", "joint"]


def test_an_option_that_all_methods_share_is_told_once():
    """It stands in the title, and not in every label; methods without the option do not matter."""
    few = {"samples_per_class": 5}
    runs = [mnist("rewc", 10.0, options=few), mnist("rewc-none", 10.0, options=few), mnist("naive")]
    (setting,) = collect([result(run, two(0.2, 0.9)) for run in runs])
    assert setting.title == "mnist, 2 tasks, samples_per_class 5"
    assert [m.label for m in setting.methods] == ["naive", "rewc-none", "rewc"]


def test_methods_in_several_settings_stand_side_by_side(results):
    other = [result(mnist("rewc", 7.0, loss="cross-entropy"), two(0.2, 0.9), two(0.1, 0.8))]
    table = across(collect([*results, *other]), "validation")
    assert table.header == ["method", "mnist, 2 tasks", "mnist, 2 tasks, loss cross-entropy"]
    assert ["naive", "56.5 ± 3.5", "–"] in table.rows
    assert ["rewc", "83.0 ± 0.7 (10)", "55.0 (7)"] in table.rows  # 10 on held-out samples, 100 on test data


def test_a_strength_is_chosen_on_the_other_streams():
    """Relative to each stream's best: the stream with small accuracies has its say."""
    held_out = {
        "mnist": {1: 0.90, 10: 0.60, 100: 0.10},
        "digits": {1: 0.10, 10: 0.90, 100: 0.80},
        "cifar100-features": {1: 0.01, 10: 0.02, 100: 0.04},
    }
    found = []
    for stream, scores in held_out.items():
        for strength, score in scores.items():
            for seed in (0, 1):
                run = config("rewc", strength, stream=stream, validation=0.1, seed=seed)
                found.append(result(run, two(score + 0.05, score - 0.05 + seed / 50), two(score, score)))
    table = leave_one_out(collect(found), ["rewc"])
    # left out, λ of the others, accuracy with it, own λ, accuracy with that one
    assert [[row[0], *row[2:]] for row in table.rows] == [
        ["cifar100-features", "10", "2.5 ± 0.7", "100", "4.5 ± 0.7"],  # 2/3 + 1 against 1 + 1/9
        ["digits", "1", "10.5 ± 0.7", "10", "90.5 ± 0.7"],  # 1 + 1/4 against 2/3 + 1/2
        ["mnist", "100", "10.5 ± 0.7", "1", "90.5 ± 0.7"],  # 8/9 + 1
    ]
    with pytest.raises(UserError, match="rewc-all was not run on"):
        leave_one_out(collect(found), ["rewc-all"])


def test_a_method_is_chosen_on_the_other_streams():
    """With its strength: the best pair for the others, not the best method at each stream's own strength."""
    held_out = {
        "mnist": {("rewc", 1): 0.5, ("rewc", 10): 0.9, ("rewc-exact", 1): 0.8},
        "digits": {("rewc", 1): 0.9, ("rewc", 10): 0.2, ("rewc-exact", 1): 0.8},
        "cifar100-features": {("rewc", 1): 0.04, ("rewc", 10): 0.01, ("rewc-exact", 1): 0.02},
    }
    found = []
    for stream, scores in held_out.items():
        for (method, strength), score in scores.items():
            run = config(method, strength, stream=stream, validation=0.1, seed=0)
            found.append(result(run, two(score + 0.02, score), two(score, score)))
    table = leave_one_out(collect(found), ["rewc", "rewc-exact"], together=True)
    assert table.rows == [
        ["cifar100-features", "rewc-exact", "1", "3.0", "rewc", "1", "5.0"],  # 8/9 + 8/9 against 5/9 + 1 and 1 + 2/9
        ["digits", "rewc", "1", "91.0", "rewc", "1", "91.0"],  # 5/9 + 1 against 8/9 + 1/2 and 1 + 1/4
        ["mnist", "rewc", "1", "51.0", "rewc", "10", "91.0"],  # 1 + 1
    ]


def test_a_report_is_one_page_with_all_in_it(results, tmp_path):
    store = ResultStore(tmp_path / "results")
    for entry in results:
        store.write(entry)
    fisher = config("rewc-exact", 1, n_experiences=1, epochs=1, model={"hidden": [10, 10]}, fisher_layer="body.3")
    kept = execute(fisher)
    store.write(kept)
    assert main([str(store.folder)]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    text = (tmp_path / "report" / "report.md").read_text()
    assert not re.search(r'(?:src|href)="(?!data:|#)', page), "the page loads something from elsewhere"
    assert 'name="viewport"' in page
    (mnist_setting,) = [s for s in collect(store.results()) if s.stream == "mnist"]
    table = comparison(mnist_setting, "validation")
    assert markdown_table(table) in text
    for cell in row(table, "rewc"):
        assert f">{cell}<" in page
    assert f"{100 * kept['fisher']['kept_after']:.1f}" in text
    figures = {path.name for path in (tmp_path / "report" / "figures").iterdir()}
    for name in ("accuracy", "accuracy-paper-way", "trade-off", "matrices"):
        assert {f"mnist-2-tasks-{name}.png", f"mnist-2-tasks-{name}.svg"} <= figures
    assert any(name.endswith("fisher.png") for name in figures)
    assert page.count("data:image/svg+xml;base64,") == len(figures) // 2


def test_figures_show_the_numbers_of_the_results(results):
    (setting,) = collect(results)
    pictures = {p.name: p.figure for section in make_sections([setting]) for p in section.pictures}
    lines = {line.get_label(): line for line in pictures["mnist-2-tasks-accuracy"].axes[0].lines}
    assert lines["rewc, λ = 10"].get_ydata() == pytest.approx([99.0, 83.0])
    assert list(lines["joint"].get_ydata()) == pytest.approx([98.0, 98.0])
    curve = next(line for line in pictures["mnist-2-tasks-trade-off"].axes[0].lines if line.get_label() == "rewc")
    assert curve.get_xdata() == pytest.approx([56.0, 76.0, 91.0])
    assert curve.get_ydata() == pytest.approx([90.0, 90.0, 90.0])


def test_the_same_results_give_the_same_files(results, tmp_path):
    first, second = (write_report(results, tmp_path / name) for name in ("a", "b"))
    for path in (first.html, first.markdown, *first.figures.iterdir()):
        twin = second.html.parent / path.relative_to(first.html.parent)
        assert path.read_bytes() == twin.read_bytes(), path.name


def test_no_results_no_report(tmp_path):
    with pytest.raises(UserError, match="make compare"):
        write_report([], tmp_path)


def test_values():
    assert Value.of([]) is None
    assert Value.of([0.5, None]) is None
    assert percent(Value.of([0.5])) == "50.0"
    assert percent(None) == "–"


def test_the_paper_s_averages_are_those_of_its_tasks():
    """Guards the typed numbers: the paper's own averages must follow from them, up to its roundings and misprints."""
    for table in paper.TABLE_2.values():
        for average, first, second in table.values():
            assert average == pytest.approx((first + second) / 2, abs=1.0)
    for stream, methods in paper.TABLE_3.items():
        for method, rows in methods.items():
            for tasks, average in zip(rows, paper.TABLE_3_AVERAGES[stream][method], strict=True):
                assert average == pytest.approx(fmean(tasks), abs=1.7)
    assert paper.final_average("mnist", 2, "rewc-fc") == pytest.approx(91.15)
    assert paper.final_average("digits", 2, "rewc") is None


def test_runs_that_held_out_different_shares_are_not_mixed():
    results = [execute(config(validation=share)) for share in (0.1, 0.2)]
    with pytest.raises(UserError, match=r"held out different shares of the training data \(0\.1: naive, 0\.2: naive\)"):
        collect(results)
