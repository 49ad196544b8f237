"""One run: a configuration in, a result out."""

from __future__ import annotations

import random
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np
import torch
from avalanche.evaluation.metrics import (
    accuracy_metrics,
    bwt_metrics,
    forgetting_metrics,
    loss_metrics,
    timing_metrics,
)
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin

from avalanche_rewc.resume import Resumable
from avalanche_rewc.streams.batches import TensorBatches
from benchmarks import metrics
from benchmarks.checkpoints import checkpoint_folder
from benchmarks.config import SCHEMA, RunConfig
from benchmarks.first_task import FirstTask, first_task_path
from benchmarks.fisher import fisher_record, importance_record
from benchmarks.machine import Machine, versions
from benchmarks.strategies import make_strategy
from benchmarks.streams import find_stream, make_network, open_stream

Result = dict[str, Any]
TIMED = ("seconds", "finished")
"""Parts of a result that differ from one execution of the same configuration to the next."""


def seed_everything(seed: int) -> None:
    """Every global generator a run could draw from."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def execute(
    config: RunConfig,
    machine: Machine | None = None,
    *,
    loggers: Sequence[Any] = (),
    progress: Callable[[str, float], None] = lambda text, done: None,
) -> Result:
    """Train a method on a stream and evaluate all tasks learned so far after each task.

    Args:
        config: of the run.
        machine: where it runs.
        loggers: Avalanche's.
        progress: called before every epoch with what is done next and how many tasks are done, such as 1.25.

    Returns:
        The result as it is stored; docs/experiments.md explains its fields.
    """
    machine = machine or Machine()
    machine.prepare()
    started = time.perf_counter()
    stream = open_stream(config, machine)
    seed_everything(config.seed)
    spec = find_stream(config.stream)
    evaluated = {"test": stream.test_stream}
    if config.validation:
        evaluated["valid"] = stream.valid_stream
    tasks = len(stream.train_stream)
    first_classes = stream.n_classes_per_exp[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified", UserWarning)
        evaluator = EvaluationPlugin(
            accuracy_metrics(experience=True, stream=True),
            loss_metrics(experience=True),
            # They would take the same task of two streams for one.
            *([] if config.validation else [forgetting_metrics(experience=True, stream=True)]),
            *([] if config.validation else [bwt_metrics(experience=True, stream=True)]),
            timing_metrics(epoch=True, experience=True),
            loggers=list(loggers),
        )
    path = first_task_path(config, machine)
    first_task = FirstTask(path) if path else None
    plugins = [Epochs(tasks, progress), *([first_task] if first_task else [])]
    strategy = make_strategy(
        config,
        lambda: make_network(config, machine, first_classes),
        # TensorBatches reads by batch; the numbers stay the same
        plugins=[*plugins, *([TensorBatches()] if spec.in_memory else [])],
        evaluator=evaluator,
        device=machine.device,
        pictures=not spec.in_memory,
    )

    prepared = time.perf_counter()
    # Joint training learns all tasks in one step; there is nothing to evaluate before its end.
    steps = [stream.train_stream] if config.method == "joint" else list(stream.train_stream)
    folder = checkpoint_folder(config, machine)
    run = Resumable(strategy, steps, folder) if folder else None
    records: list[dict[str, Any]] = run.results if run else []
    for data in run or steps:
        k = tasks - 1 if config.method == "joint" else len(records)
        begun = time.perf_counter()
        # What a method drew after the last task (EWC's importances do) must not change what it sees in this one.
        seed_everything(config.seed + SEEDS_APART * k)
        strategy.train(data, reset_optimizer_state=config.reset_optimizer)
        trained = time.perf_counter()
        record: dict[str, Any] = {"task": k, "accuracy": {}}
        # Only what was learned: evaluating a later task would grow the head by classes nobody has trained.
        for name, part in evaluated.items():
            found = strategy.eval(part[: k + 1])
            record["accuracy"][name] = metrics.per_task(found, "Top1_Acc_Exp", name, tasks)
            if name == "test":
                record["loss"] = metrics.per_task(found, "Loss_Exp", name, tasks)
        saved = first_task.seconds_saved if first_task and k == 0 else 0.0
        record["seconds"] = {"training": trained - begun + saved, "evaluation": time.perf_counter() - trained}
        record["importances"] = importance_record(strategy)
        if k == 0 and config.fisher_layer is not None:
            record["fisher"] = fisher_record(strategy, stream.train_stream[0], config)
        records.append(record)

    accuracy: dict[str, metrics.Matrix] = {name: [[None] * tasks for _ in range(tasks)] for name in evaluated}
    loss: metrics.Matrix = [[None] * tasks for _ in range(tasks)]
    for record in records:
        loss[record["task"]] = record["loss"]
        for name in evaluated:
            accuracy[name][record["task"]] = record["accuracy"][name]
    seconds = {name: [record["seconds"][name] for record in records] for name in ("training", "evaluation")}
    averages = metrics.averages(accuracy["test"])
    return {
        "schema": SCHEMA,
        "status": "done",
        "key": config.key,
        "config": config.to_dict(),
        "accuracy": accuracy["test"],
        "loss": loss,
        "average_accuracies": averages,
        "average_accuracy": averages[-1],
        "forgetting": metrics.forgetting(accuracy["test"]),
        "backward_transfer": metrics.backward_transfer(accuracy["test"]),
        "validation": metrics.record(accuracy["valid"]) if config.validation else None,
        "importances": [record["importances"] for record in records],
        "fisher": records[0].get("fisher"),
        "seconds": {"total": prepared - started + sum(map(sum, seconds.values())), **seconds},
        "versions": versions(),
        "machine": machine.describe(),
        "finished": _now(),
    }


class Epochs(SupervisedPlugin):  # type: ignore[misc]
    """Tells where a run is, epoch by epoch."""

    def __init__(self, tasks: int, progress: Callable[[str, float], None]) -> None:
        super().__init__()
        self.tasks, self.progress = tasks, progress

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Say which task and epoch begins."""
        task, epoch = strategy.clock.train_exp_counter, strategy.clock.train_exp_epochs
        text = f"task {task + 1} of {self.tasks}, epoch {epoch + 1} of {strategy.train_epochs}"
        self.progress(text, task + epoch / strategy.train_epochs)


SEEDS_APART = 1_000_003
"""Between the seeds of two tasks of a run."""


def attempt(config: RunConfig, machine: Machine) -> Result:
    """`execute`, with an error turned into a record of it: what workers call."""
    try:
        return execute(config, machine)
    except Exception as error:
        return failure(config, machine, f"{type(error).__name__}: {error}", traceback.format_exc())


def failure(config: RunConfig, machine: Machine, error: str, trace: str) -> Result:
    """The record of a run that failed."""
    return {
        "schema": SCHEMA,
        "status": "failed",
        "key": config.key,
        "config": config.to_dict(),
        "error": error,
        "traceback": trace,
        "versions": versions(),
        "machine": machine.describe(),
        "finished": _now(),
    }


def numbers(result: Result) -> Result:
    """A result without what differs between two executions of the same configuration: its timings."""
    return {name: value for name, value in result.items() if name not in TIMED}


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
