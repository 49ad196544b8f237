"""Methods by name.

A name is a base and any of the suffixes that base understands: `rewc-fc-exact` is R-EWC on the fully connected layers
with the exact Fisher. A run's configuration holds the options a name stands for, so names and options cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.names import UserError, unknown
from benchmarks.streams import StreamSpec

REWC_DEFAULTS: dict[str, Any] = {
    "layers": "all_but_last",
    "conv_basis": "channel",
    "space": "rotated",
    "fisher": "sampled",
    "samples_per_class": None,  # filled in from the stream
    "mode": "last",
    "decay_factor": None,
    "basis": "eigen",
    "rank": None,
    "normalize": True,
}
"""The paper's R-EWC, but for the scale of λ (`raw` has the paper's). Written out, so that a change of the library's
defaults does not change what a name means."""

ONLINE_DECAY = 0.9


@dataclass(frozen=True)
class Family:
    """Methods that share code: what a name starts with, and what may follow."""

    description: str
    defaults: Mapping[str, Any]
    strength: str | None
    """Symbol of its strength: λ or α; None if it has none."""
    suffixes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


REWC_SUFFIXES: dict[str, dict[str, Any]] = {
    "raw": {"normalize": False},
    "patch": {"conv_basis": "patch"},
    "exact": {"fisher": "exact"},
    "empirical": {"fisher": "empirical"},
    "original": {"space": "original"},
    "separate": {"mode": "separate"},
    "online": {"mode": "online", "decay_factor": ONLINE_DECAY},
    "random": {"basis": "random"},
    "random-input": {"basis": "random_input"},
    "random-output": {"basis": "random_output"},
    "authors": {"basis": "authors"},
    "printed": {"basis": "printed"},
    "input-only": {"basis": "input_only"},
    "output-only": {"basis": "output_only"},
    "identity": {"basis": "identity"},
    "leading": {"rank": 64},
}
NOT_OF_A_BASIS = ("raw", "exact", "empirical", "original", "separate", "online")
ESTIMATE_SUFFIXES = {name: REWC_SUFFIXES[name] for name in NOT_OF_A_BASIS}


def _rewc(description: str, layers: str, suffixes: Mapping[str, Mapping[str, Any]] = REWC_SUFFIXES) -> Family:
    return Family(description, {**REWC_DEFAULTS, "layers": layers}, "λ", suffixes)


FAMILIES: dict[str, Family] = {
    "naive": Family("fine-tuning: nothing against forgetting", {}, None),
    "frozen": Family("after the first task only the outputs of new classes are trained", {}, None),
    "ewc": Family(
        "Avalanche's built-in EWC (squared batch-mean gradients, data labels, no ½)",
        {"mode": "separate", "decay_factor": None},
        "λ",
        {"separate": {}, "online": {"mode": "online", "decay_factor": ONLINE_DECAY}},
    ),
    "rewc-none": _rewc("diagonal EWC with the sampled Fisher: R-EWC without a rotation", "none", ESTIMATE_SUFFIXES),
    "rewc-conv": _rewc("R-EWC, convolutions rotated", "conv"),
    "rewc-fc": _rewc("R-EWC, fully connected layers rotated", "linear"),
    "rewc-all": _rewc("R-EWC, all layers rotated", "all"),
    "rewc": _rewc("R-EWC, all layers but the last rotated (the paper's best)", "all_but_last"),
    "lwf": Family("Avalanche's Learning without Forgetting (softmax distillation)", {"temperature": 2.0}, "α"),
    "lwf-sigmoid": Family("Learning without Forgetting with sigmoid distillation, to match the sigmoid loss", {}, "α"),
    "expert-gate": Family(
        "one expert and one auto-encoder per task; the smallest reconstruction error of a sample picks its expert",
        {"autoencoder": "scaled", "autoencoder_epochs": None},  # None: as many as the experts
        None,
    ),
    "joint": Family("all tasks at once: the upper bound", {}, None),
    "cumulative": Family("every task together with all earlier data: the upper bound after each task", {}, None),
}


@dataclass(frozen=True)
class Method:
    """A method's name in canonical form, its family and the options the name stands for."""

    name: str
    family: str
    options: Mapping[str, Any]

    @property
    def strength(self) -> str | None:
        """Symbol of its strength, or None."""
        return FAMILIES[self.family].strength


def find_method(name: str) -> Method:
    """A method by name; suffixes may come in any order."""
    base = next((b for b in sorted(FAMILIES, key=len, reverse=True) if name == b or name.startswith(f"{b}-")), None)
    if base is None:
        raise unknown("method", name, all_names())
    family = FAMILIES[base]
    options: dict[str, Any] = {}
    rest = name[len(base) :]
    while rest:
        suffix = next((s for s in sorted(family.suffixes, key=len, reverse=True) if _starts(rest, s)), None)
        if suffix is None:
            wrong = rest[1:]
            if not family.suffixes:
                raise UserError(f"method {name!r}: {base!r} has no variants, so {wrong!r} cannot follow")
            raise unknown(f"variant of {base!r} called", wrong, family.suffixes)
        clash = [key for key in family.suffixes[suffix] if key in options]
        if clash:
            raise UserError(f"method {name!r} sets {clash[0]} twice; keep one of its variants")
        options.update(family.suffixes[suffix])
        rest = rest[len(suffix) + 1 :]
    return name_options(base, {**family.defaults, **options})


def name_options(base: str, options: Mapping[str, Any]) -> Method:
    """The method that a family's full options make, under its canonical name."""
    family = FAMILIES[base]
    name = base
    for suffix, meaning in family.suffixes.items():
        telling = {key: value for key, value in meaning.items() if key != "decay_factor"}
        if telling and all(options[key] == value for key, value in telling.items()):
            name += f"-{suffix}"
    return Method(name, base, dict(options))


def with_options(method: Method, changes: Mapping[str, Any], stream: StreamSpec) -> Method:
    """The method with some options changed and the stream's number of Fisher samples filled in."""
    options = dict(method.options)
    if "samples_per_class" in options and options["samples_per_class"] is None:
        options["samples_per_class"] = stream.samples_per_class
    for key, value in changes.items():
        if key not in options:
            if not options:
                raise UserError(f"method {method.name!r} has no options, so {key!r} cannot be set")
            raise unknown(f"option of {method.name!r} called", key, options)
        options[key] = value
    if options.get("samples_per_class") == "all":
        options["samples_per_class"] = None
    if "layers" in changes:
        raise UserError(f"layers are part of a method's name: {', '.join(n for n in FAMILIES if n.startswith('rewc'))}")
    return name_options(method.family, options)


def check_stream(method: Method, stream_name: str, stream: StreamSpec) -> None:
    """Refuse a method that cannot run with a stream, or whose name would promise what the stream cannot show."""
    convolutional = method.options.get("layers") == "conv" or method.options.get("conv_basis") == "patch"
    if convolutional and not stream.convolutions:
        raise UserError(
            f"method {method.name!r} cannot run with stream {stream_name!r}: its network has no convolutions to rotate"
        )
    if method.family == "expert-gate" and not stream.in_memory:
        raise UserError(
            f"method 'expert-gate' cannot run with stream {stream_name!r}: an auto-encoder can rebuild "
            f"features, not pictures; try {stream_name}-features"
        )


def all_names() -> list[str]:
    """Every base and every base with one suffix."""
    names = []
    for base, family in FAMILIES.items():
        names += [base, *(f"{base}-{suffix}" for suffix in family.suffixes)]
    return names


def _starts(rest: str, suffix: str) -> bool:
    return rest == f"-{suffix}" or rest.startswith(f"-{suffix}-")
