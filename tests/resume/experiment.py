"""A small experiment as a user would write it, run in a process of its own that can be killed for real.

Processes are forked from a server that has imported everything, so that starting one takes no time.
"""

import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import warnings
from pathlib import Path

import numpy as np
import torch
from avalanche.evaluation.metrics import accuracy_metrics, bwt_metrics, forgetting_metrics, loss_metrics
from avalanche.training import EWC, MAS, LwF, Naive, SynapticIntelligence
from avalanche.training.plugins import EvaluationPlugin, LRSchedulerPlugin

from avalanche_rewc import REWC, files
from avalanche_rewc.losses import NewClassesBCE
from avalanche_rewc.resume import Resumable
from tests.small_disk import mount_small_disk
from tests.toy import Growing, MultiHead, blob_stream, settings

EXPERIENCES = 4


def scheduled(**options):
    scheduler = torch.optim.lr_scheduler.StepLR(options["optimizer"], 1, gamma=0.7)
    return Naive(**options, plugins=[LRSchedulerPlugin(scheduler, reset_scheduler=False, reset_lr=False)])


STRATEGIES = {
    "rewc": lambda **o: REWC(ewc_lambda=30, layers="all", **{**o, "criterion": NewClassesBCE()}),
    "rewc-original": lambda **o: REWC(ewc_lambda=30, space="original", **o),
    "rewc-separate": lambda **o: REWC(ewc_lambda=30, mode="separate", **o),
    "rewc-online": lambda **o: REWC(ewc_lambda=30, mode="online", decay_factor=0.7, conv_basis="patch", **o),
    "naive": Naive,
    "scheduled": scheduled,
    "ewc": lambda **o: EWC(ewc_lambda=30, **o),
    "ewc-online": lambda **o: EWC(ewc_lambda=30, mode="online", decay_factor=0.5, **o),
    "lwf": lambda **o: LwF(alpha=1, temperature=2, **o),
    "si": lambda **o: SynapticIntelligence(si_lambda=1, **o),
    "mas": MAS,
}


def evaluator():
    names = (accuracy_metrics, loss_metrics, forgetting_metrics, bwt_metrics)
    return EvaluationPlugin(*(name(experience=True, stream=True) for name in names), loggers=[])


OPTIMIZERS = {
    "sgd": lambda p: None,
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.001, momentum=0.9, centered=True),
    "groups": lambda p: torch.optim.SGD([{"params": p[:2], "lr": 0.001}, {"params": p[2:]}], lr=0.05, momentum=0.9),
}
WRAPPERS = {
    "": lambda model: model,
    "DataParallel": torch.nn.DataParallel,
    "compile": functools.partial(torch.compile, backend="eager"),
}


def build(name="rewc", multi_head=False, optimizer="sgd", wrapper="", **options):
    """A benchmark and a strategy, from one seed for all."""
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    benchmark = blob_stream(EXPERIENCES, 2 * EXPERIENCES, task_labels=multi_head, dtype=torch.float32)
    fixed = {"first": 2 * EXPERIENCES} if optimizer == "groups" or wrapper == "compile" else {}
    model = WRAPPERS[wrapper](MultiHead() if multi_head else Growing(**fixed))
    chosen = OPTIMIZERS[optimizer](list(model.parameters()))
    options = {"train_epochs": 3, "evaluator": evaluator(), **options}
    return benchmark, STRATEGIES[name](**settings(model, chosen, **options))


def experiment(folder, out=None, fault=None, stop=None, **options):
    """Learn the stream, evaluate after each experience; what came out, exactly, and which experiences were trained."""
    torch.set_num_threads(1)
    benchmark, strategy = build(**options)
    run = Resumable(strategy, benchmark.train_stream, folder)
    if fault:
        FAULTS[fault](strategy)
    trained = []
    for experience in run:
        if len(trained) == stop:
            break
        trained.append(experience.current_experience)
        # all classes: evaluation grows the head, which the optimizer does not know
        strategy.train(experience, eval_streams=[benchmark.test_stream])
        run.results.append({**strategy.eval(benchmark.test_stream), "draws": draws()})
    found = {"numbers": numbers(run.results, strategy), "trained": trained}
    if out is not None:
        Path(out).write_text(json.dumps(found))
    return json.loads(json.dumps(found))


def draws():
    """One draw of each generator: all must go on where they were."""
    return [torch.rand(()).item(), np.random.rand(), random.random()]


def numbers(results, strategy):
    """Results, all of Avalanche's curves, and a digest of every bit of weights, optimizer, memories and generators."""
    plain = [{key: value for key, value in row.items() if not key.startswith("Time")} for row in results]
    rewc = getattr(strategy, "rewc", None)
    return {
        "results": plain,
        "curves": strategy.evaluator.get_all_metrics(),
        "model": digests(strategy.model.state_dict()),
        "optimizer": digests(strategy.optimizer.state_dict()),
        # bases, importances, anchors, factors
        "memories": digests([memory.state_dict() for memory in rewc.memories]) if rewc else [],
        "draws": draws(),
    }


def digests(value, name=""):
    """What a nested container holds, to the bit, by name."""
    if isinstance(value, torch.Tensor):
        bits = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return {name: f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(bits).hexdigest()[:16]}"}
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: text for k, item in items for key, text in digests(item, f"{name}/{k}").items()}
    return {name: repr(value)}


# Faults: what kills the process, and when.


def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)


def call_number(count, function):
    """Let all calls but the one with that number pass; die before that one."""
    calls = iter(range(count))

    def counted(*arguments, **options):
        if next(calls, None) is None:
            die()
        return function(*arguments, **options)

    return counted


def in_an_epoch(strategy):
    strategy.optimizer_step = call_number(40, strategy.optimizer_step)


def in_consolidation(strategy):
    estimation = importlib.import_module("avalanche_rewc.core.consolidate")._Estimation
    estimation.diagonal = call_number(2, estimation.diagonal)


def in_evaluation(strategy):
    strategy.eval_epoch = call_number(9, strategy.eval_epoch)


def after_bytes(share, third=2):
    """Die in the third save, when that share of the bytes is in the temporary file."""

    def install(strategy):
        plain, saves = os.fdopen, iter(range(third))

        def fdopen(descriptor, mode):
            file = plain(descriptor, mode)
            return file if next(saves, None) is not None else Torn(file)

        files.os = Patched(os, fdopen=fdopen)

    class Torn:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def write(self, data):
            self.file.write(data[: int(share * len(data))])
            self.file.flush()
            die()

    return install


def before(name, count=2):
    """Die before the call number `count` of a function of `os` that saving needs."""

    def install(strategy):
        files.os = Patched(os, **{name: call_number(count, getattr(os, name))})

    return install


class Patched:
    """A module with some functions replaced, for one importer of it only."""

    def __init__(self, module, **replaced):
        self.__dict__.update(vars(module), **replaced)


def before_removing_old(strategy):
    Path.unlink = die


def full_disk(strategy):
    """No file may grow beyond 20 kB: what a full disk does to a writer, without filling one."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


FAULTS = {
    "in an epoch": in_an_epoch,
    "in consolidation": in_consolidation,
    "in evaluation": in_evaluation,
    "saving, nothing written": after_bytes(0.0),
    "saving, a part written": after_bytes(0.4),
    "saving, all written": after_bytes(1.0),
    "saving, before the data are on disk": before("fsync", 4),
    "saving, before the new name": before("replace"),
    "saving, before the folder is on disk": before("fsync", 5),
    "saving, before the old one is removed": before_removing_old,
    "full disk": full_disk,
}


def on_a_small_disk(folder, out, size):
    """The experiment with checkpoints on a disk that has no room for all of them, copied to `<folder> kept`."""
    folder.mkdir()
    mount_small_disk(folder, size)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        experiment(folder, out)
    mentioned = [str(warning.message) for warning in caught if "no checkpoint after" in str(warning.message)]
    shutil.copytree(folder, f"{folder} kept")
    Path(f"{out}.warnings").write_text("\n".join(mentioned))


_CONTEXT = None


def start(*arguments, target=experiment, **options):
    """The experiment in a process of its own."""
    global _CONTEXT
    if _CONTEXT is None:
        _CONTEXT = multiprocessing.get_context("forkserver")
        _CONTEXT.set_forkserver_preload([__name__])
    process = _CONTEXT.Process(target=target, args=arguments, kwargs=options)
    process.start()
    return process
