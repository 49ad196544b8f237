"""Runs of the experiments that are killed between two tasks go on from there, with the same numbers."""

import pytest

from benchmarks import execute as module
from benchmarks.checkpoints import checkpoint_folder, discard
from benchmarks.execute import execute, numbers
from benchmarks.machine import Machine
from tests.benchmarks.small import config


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    ("method", "strength", "settings", "first_tasks"),
    [
        ("rewc", 100, {"validation": 0.2}, False),
        ("rewc", 100, {"validation": 0.2}, True),
        ("rewc-online", 100, {"reset_optimizer": False, "lr_drop_epoch": 1}, False),
        ("rewc-exact", 1, {"model": {"hidden": [10, 10]}, "fisher_layer": "body.3"}, False),
        ("ewc", 10, {}, False),
        ("ewc", 10, {}, True),
        ("lwf", 1, {}, False),
        ("lwf-sigmoid", 1, {}, False),
        ("naive", None, {"optimizer": "sgd", "momentum": 0.9}, False),
    ],
)
def test_a_stopped_run_goes_on(method, strength, settings, first_tasks, tmp_path, monkeypatch):
    run = config(method, strength, n_experiences=5, epochs=2, **settings)
    kept = str(tmp_path / "first") if first_tasks else None
    machine = Machine(first_tasks=kept, checkpoints=str(tmp_path / "checkpoints"))
    want = numbers(execute(run, Machine()))
    begun = []

    def stop(text, done):
        begun.append(text)
        if done >= 2.5:
            raise Killed

    with pytest.raises(Killed):
        execute(run, machine, progress=stop)
    begun.clear()
    result = execute(run, machine, progress=lambda text, done: begun.append(text))
    assert begun[0] == "task 3 of 5, epoch 1 of 2", "it did not go on from where it was"
    assert numbers(result) == want
    assert len(result["seconds"]["training"]) == 5
    seed_everything = module.seed_everything
    monkeypatch.setattr(module, "seed_everything", lambda seed: seed_everything(seed) if seed == run.seed else None)
    begun.clear()
    assert numbers(execute(run, machine, progress=lambda text, done: begun.append(text))) == want
    assert begun == [], "a finished run was run again"
    discard(run, machine)
    assert not checkpoint_folder(run, machine).exists()


@pytest.mark.parametrize("method", ["joint", "cumulative", "expert-gate"])
def test_methods_without_checkpoints_run_as_before(method, tmp_path):
    machine = Machine(checkpoints=str(tmp_path / "checkpoints"))
    assert checkpoint_folder(config(method), machine) is None
    assert numbers(execute(config(method), machine)) == numbers(execute(config(method)))


def test_every_kind_of_run_has_a_folder_of_its_own(tmp_path):
    machines = [Machine(checkpoints=str(tmp_path)), Machine(checkpoints=str(tmp_path), threads=2)]
    machines.append(Machine(checkpoints=str(tmp_path), first_tasks="x"))
    folders = {checkpoint_folder(config(seed=seed), machine) for machine in machines for seed in (0, 1)}
    assert len(folders) == 6
