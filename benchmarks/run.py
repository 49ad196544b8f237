"""One run from the command line.

python -m benchmarks.run --stream mnist --method rewc --lambda 100 --seed 0
"""

from __future__ import annotations

import argparse
import contextlib
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.checkpoints import discard
from benchmarks.cli import add_machine_options, call, machine_from, shown
from benchmarks.config import RunConfig
from benchmarks.execute import Result, execute
from benchmarks.grid import parse_value
from benchmarks.loggers import LOGGERS, make_loggers
from benchmarks.methods import FAMILIES
from benchmarks.names import UserError, unknown
from benchmarks.plan import make_config
from benchmarks.store import ResultStore
from benchmarks.streams import STREAMS

PROTOCOL: dict[str, tuple[type, str, str]] = {
    "epochs": (int, "N", "epochs for each task"),
    "batch_size": (int, "N", "samples in a batch"),
    "learning_rate": (float, "X", "of the optimizer"),
    "optimizer": (str, "NAME", "adam or sgd"),
    "momentum": (float, "X", "of sgd"),
    "weight_decay": (float, "X", "L2 penalty"),
    "loss": (str, "NAME", "new-classes-bce (the paper's) or cross-entropy"),
    "class_order": (str, "NAME", "natural, or shuffled by the seed"),
}
"""Settings of `RunConfig` with an option of their own: type, placeholder, help."""


BAR = "{desc}{percentage:3.0f}%|{bar}| {elapsed} gone, {remaining} left"


def make_parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description="Train one method on one stream and print its accuracy on every task after every task.",
        epilog=_catalogue(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what to run")
    what.add_argument("--stream", default="digits", metavar="NAME", help="see the list below (default: digits)")
    what.add_argument("--method", required=True, metavar="NAME", help="see the list below")
    what.add_argument("--tasks", type=int, default=2, metavar="T", help="number of tasks (default: 2)")
    what.add_argument(
        "--lambda",
        "--ewc-lambda",
        "--alpha",
        dest="strength",
        type=float,
        metavar="X",
        help="strength of the penalty: λ of the EWC family, α of LwF",
    )
    what.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    what.add_argument(
        "--validation",
        type=float,
        metavar="SHARE",
        help="hold out this share of the training samples and evaluate on it, too",
    )
    protocol = parser.add_argument_group("protocol (default: the paper's for the stream)")
    for name, (kind, placeholder, text) in PROTOCOL.items():
        protocol.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=placeholder, help=text)
    protocol.add_argument("--keep-optimizer", action="store_true", help="do not start each task with a fresh optimizer")
    protocol.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the method, such as samples_per_class=5; may be given several times",
    )
    protocol.add_argument("--fisher-layer", metavar="LAYER", help="keep the full Fisher of a small layer, e.g. body.3")
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help="also store the result there, as a sweep would")
    output.add_argument("--log", nargs="+", default=[], metavar="LOGGER", help=f"Avalanche's: {', '.join(LOGGERS)}")
    output.add_argument("--log-dir", default="runs/logs", metavar="DIR", help="of csv, tensorboard and wandb files")
    machine = add_machine_options(parser)
    machine.add_argument("--threads", type=int, default=1, metavar="N", help="of torch (default: 1)")
    return parser


def config_from(arguments: argparse.Namespace) -> RunConfig:
    """The configuration the options describe."""
    settings: dict[str, Any] = {name: getattr(arguments, name) for name in PROTOCOL}
    settings = {name: value for name, value in settings.items() if value is not None}
    if arguments.validation is not None:
        settings["validation"] = arguments.validation
    if arguments.keep_optimizer:
        settings["reset_optimizer"] = False
    if arguments.fisher_layer:
        settings["fisher_layer"] = arguments.fisher_layer
    return make_config(
        stream=arguments.stream,
        method=arguments.method,
        strength=arguments.strength,
        n_experiences=arguments.tasks,
        seed=arguments.seed,
        options=dict(_option(text) for text in arguments.option),
        **settings,
    )


def show(result: Result) -> str:
    """The accuracy matrix and the averages, as text."""
    tasks = len(result["accuracy"])
    head = "after task " + "".join(f"{f'task {j + 1}':>9}" for j in range(tasks)) + f"{'average':>9}"
    lines = [head]
    for k, row in enumerate(result["accuracy"]):
        cells = [*row, result["average_accuracies"][k]]
        if any(value is not None for value in row):
            lines.append(f"{k + 1:<11}" + "".join(f"{'–' if v is None else f'{v:.1%}':>9}" for v in cells))
    if result["forgetting"] is not None:
        lines.append(f"forgetting {result['forgetting']:.1%}, backward transfer {result['backward_transfer']:.1%}")
    if result["fisher"]:
        kept = result["fisher"]
        lines.append(
            f"Fisher of {kept['layer']}: the diagonal keeps {kept['kept_before']:.1%} of the energy before and "
            f"{kept['kept_after']:.1%} after rotation"
        )
    lines.append(f"{result['seconds']['total']:.1f} s on {result['machine']['device']}, run {result['key']}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = make_parser().parse_args(argv)
    config = config_from(arguments)
    for name in arguments.log:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
    machine = machine_from(arguments)
    if arguments.out:
        ResultStore(arguments.out).check()
    print(config)
    with make_loggers(list(dict.fromkeys(arguments.log)), Path(arguments.log_dir) / config.key, config) as loggers:
        # Avalanche's interactive logger has a bar of its own; two would print over each other.
        own_bar = "interactive" not in arguments.log
        bar = tqdm(total=config.n_experiences, bar_format=BAR, dynamic_ncols=True, leave=False) if own_bar else None
        with bar or contextlib.nullcontext():
            result = execute(config, machine, loggers=loggers, progress=_progress(bar))
    print(show(result))
    if arguments.out:
        print(f"stored as {shown(ResultStore(arguments.out).write(result))}")
    discard(config, machine)
    return 0


def _progress(bar: Any) -> Callable[[str, float], None]:
    def step(text: str, done: float) -> None:
        if bar is not None:
            bar.set_description(text, refresh=False)
            bar.update(done - bar.n)

    return step


def _option(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise UserError(f"--option {text!r}: write NAME=VALUE, such as samples_per_class=5")
    return name, parse_value(value)


def _catalogue() -> str:
    width = max(map(len, (*STREAMS, *FAMILIES)))
    lines = ["streams:", *(f"  {name:{width}}  {spec.description}" for name, spec in STREAMS.items())]
    lines += ["", "methods:", *(f"  {name:{width}}  {family.description}" for name, family in FAMILIES.items())]
    lines += ["", "variants, appended to a method's name with a dash (rewc-exact, rewc-fc-patch-authors, ewc-online):"]
    lines += textwrap.wrap(", ".join(FAMILIES["rewc"].suffixes), 100, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


if __name__ == "__main__":
    call(main)
