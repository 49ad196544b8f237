"""The commands, as a user meets them."""

import csv
import os
import signal

import psutil
import pytest

from benchmarks import compare, run, sweep
from benchmarks.cli import call
from benchmarks.names import UserError
from benchmarks.report import __main__ as report
from tests.benchmarks.small import start, stored, wait_for


@pytest.mark.parametrize("module", [run, sweep, report, compare])
def test_help_reads_well(module, capsys):
    with pytest.raises(SystemExit) as ended:
        module.main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert text.startswith(f"usage: python -m benchmarks.{module.__name__.split('.')[1]}")
    assert all(len(line) < 140 for line in text.splitlines())


def test_help_lists_what_there_is(capsys):
    with pytest.raises(SystemExit):
        run.main(["--help"])
    text = capsys.readouterr().out
    for name in ("mnist", "cub200-features", "rewc-none", "expert-gate", "cumulative", "input-only", "tensorboard"):
        assert name in text


def test_wrong_names_get_suggestions():
    for arguments, hint in (
        (["--stream", "digit", "--method", "naive"], "'digits'"),
        (["--stream", "digits", "--method", "rewc-exct", "--lambda", "1"], "'exact'"),
        (["--stream", "digits", "--method", "rewc", "--lambda", "1", "--option", "mode=onlin"], "online"),
        (["--stream", "digits", "--method", "naive", "--option", "mode"], "NAME=VALUE"),
        (["--stream", "digits", "--method", "naive", "--threads", "0"], "--threads 0"),
        (["--method", "naive", "--log", "tensorbord"], "'tensorboard'"),
        (["--method", "naive", "--seed", "-1"], "seed=-1"),
        (["--method", "ewc", "--lambda", "1", "--option", "mode=foo"], "ewc"),
    ):
        with pytest.raises(UserError, match=hint):
            run.main(arguments)
    with pytest.raises(UserError, match="'table1'"):
        sweep.main(["tabel1"])
    with pytest.raises(UserError, match=r"no sweep file nothing\.toml"):
        sweep.main(["nothing.toml"])
    with pytest.raises(UserError, match="--jobs 0"):
        sweep.main(["compare", "--jobs", "0"])


def test_what_the_user_can_put_right_is_one_line(capsys):
    def wrong(argv):
        raise UserError("there is no such thing")

    with pytest.raises(SystemExit) as ended:
        call(wrong)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: there is no such thing\n"


def test_missing_data_are_named(tmp_path):
    with pytest.raises(UserError, match="MNIST"):
        run.main(["--stream", "mnist", "--method", "naive", "--data-root", str(tmp_path)])


def test_one_run_prints_its_matrix_once_and_stores_it(tmp_path, capsys):
    options = ["--stream", "digits", "--method", "rewc-exact", "--ewc-lambda", "100", "--tasks", "5", "--epochs", "1"]
    options += ["--option", "samples_per_class=5", "--learning-rate", "0.01", "--out", str(tmp_path / "results")]
    logs = ["--log", "csv", "tensorboard", "--log-dir", str(tmp_path / "logs")]
    assert run.main([*options, *logs]) == 0
    lines = capsys.readouterr().out.splitlines()
    (result,) = stored(tmp_path / "results").values()
    assert result["config"]["options"]["samples_per_class"] == 5
    assert sum("rewc-exact" in line for line in lines) == 1
    last = next(line for line in lines if line.startswith("5 "))
    assert last.split()[1:] == [f"{v:.1%}" for v in (*result["accuracy"][-1], result["average_accuracy"])]
    with (tmp_path / "logs" / result["key"] / "eval_results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 15  # every task learned, after each of five tasks
    assert float(rows[-1]["eval_accuracy"]) == pytest.approx(result["accuracy"][-1][-1], abs=1e-4)
    assert list((tmp_path / "logs" / result["key"]).glob("events.out.tfevents*"))


def test_the_interactive_logger_brings_its_own_progress_bar(capsys):
    assert run.main(["--stream", "digits", "--method", "naive", "--epochs", "1", "--log", "interactive"]) == 0
    captured = capsys.readouterr()
    assert "-- >> Start of training phase << --" in captured.out
    assert "task 1 of 2" not in captured.err


def test_weights_and_biases_offline(tmp_path, monkeypatch, capsys):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    options = ["--stream", "digits", "--method", "naive", "--epochs", "1", "--log", "wandb", "--log-dir", str(tmp_path)]
    assert run.main(options) == 0
    assert list(tmp_path.rglob("run-*.wandb"))


def test_a_sweep_can_be_listed(tmp_path, capsys):
    assert sweep.main(["compare", "--out", str(tmp_path), "--seeds", "0", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 4 * 5
    assert all("to do" in line for line in lines)
    assert not list(tmp_path.iterdir())


def test_compare_prints_a_table_and_writes_a_report(tmp_path, capsys, monkeypatch):
    """The real thing with one seed and one epoch; `make compare` is the same with three and twenty."""
    monkeypatch.setattr(compare, "load_sweep", lambda name, seeds: _short(name, seeds))
    assert compare.main(["--out", str(tmp_path), "--seeds", "0", "--jobs", "2"]) == 0
    text = capsys.readouterr().out
    for method in ("naive", "ewc", "rewc-none-exact", "rewc-exact", "lwf", "joint"):
        assert sum(line.startswith(f"{method} ") for line in text.splitlines()) == 1
    for column in ("task 1", "task 2", "average", "forgetting", "seconds", "seeds"):
        assert column in text
    assert (tmp_path / "report" / "index.html").is_file()


def _short(name, seeds):
    import dataclasses

    from benchmarks.grid import load_sweep

    found = load_sweep(name, seeds=seeds)
    return dataclasses.replace(found, runs=tuple(run.but(epochs=1) for run in found.runs))


def test_ctrl_c_during_the_imports_is_no_traceback():
    process = start("benchmarks.run", "--help")
    python = psutil.Process(process.pid)
    wait_for(lambda: any("libtorch" in mapped.path for mapped in python.memory_maps()))
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert errors == "\nstopped\n"
