"""A stream that a killed experiment takes up again where it was."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from avalanche_rewc import __version__
from avalanche_rewc.core.checks import differences, refuse_differences
from avalanche_rewc.files import check_writable
from avalanche_rewc.resume.file import read_newest, write_checkpoint
from avalanche_rewc.resume.plain import NotData, Rebuilder, to_data
from avalanche_rewc.resume.snapshot import describe, put_back, seed, take
from avalanche_rewc.resume.stream import changed_looks, fingerprint, looks
from avalanche_rewc.resume.structure import Growth


class Resumable:
    """The experiences of a stream that are still to be learned; after each one, everything is stored.

        run = Resumable(strategy, benchmark.train_stream, "checkpoints")
        for experience in run:
            strategy.train(experience)
            run.results.append(strategy.eval(benchmark.test_stream))

    Killed at any moment and started again, the script goes on after the last experience whose loop body had ended, and
    gives the same numbers, on a CPU bit for bit, as if nothing had happened: model, optimizer, plug-ins, criterion,
    metrics, counters and random generators are put back. Files are written whole or not at all and loaded without
    running code from them. The newest two are kept; one that is damaged is left out for the one before.

    Args:
        strategy: as the script has built it; it must not have learned anything yet. `REWC`, Avalanche's `Naive`, `EWC`,
            `LwF`, `SynapticIntelligence` and `MAS`, or one of your own with plain data in its attributes.
        stream: a sequence of experiences.
        folder: of this experiment alone.
        other_versions: go on from a checkpoint that other versions of avalanche-rewc, torch, Avalanche or numpy have
            written, with a warning; the last digits of numbers may differ then. Refused by default.

    Raises:
        ValueError: the folder's checkpoint is of another experiment or of other versions (the message says what
            differs), or the strategy has a part that cannot be stored (the message names it).
        OSError: the folder cannot be written to.
    """

    def __init__(
        self, strategy: Any, stream: Sequence[Any], folder: str | Path, *, other_versions: bool = False
    ) -> None:
        """See the class."""
        if strategy.clock.train_exp_counter or strategy.clock.train_iterations:
            raise ValueError("strategy: it has been trained already; make the Resumable before the first train()")
        self.strategy, self.stream, self.folder = strategy, stream, Path(folder)
        self.results: list[Any] = []
        """For the script's own numbers; stored with the rest. Numbers, text, tensors, and plain containers of them;
        anything else (pictures) is None when it comes back."""
        self.finished = 0
        """Experiences that need not be learned again."""
        check_writable(self.folder)
        self._identity = {"stream": fingerprint(stream), **describe(strategy)}
        self._seed, self._looks = seed(), looks(stream)
        self._growth = Growth(strategy, stream)
        strategy.plugins.insert(0, self._growth)
        self._load(other_versions)

    def __iter__(self) -> Iterator[Any]:
        """What is left; an experience is finished when the loop asks for the next one."""
        while self.finished < len(self.stream):
            self._growth.position = self.finished
            yield self.stream[self.finished]
            self.finished += 1
            self._save()

    def _save(self) -> None:
        try:
            content = {
                "versions": _versions(),
                "identity": self._identity,
                "seed": self._seed,
                "looks": self._looks,
                "finished": self.finished,
                "results": to_data(self.results, "results", lenient=True),
                "state": take(self.strategy, self._growth),
            }
            write_checkpoint(self.folder, self.finished, content)
        except (OSError, NotData) as error:  # a full disk, or an odd plug-in, must not end a run of days
            warnings.warn(
                f"no checkpoint after experience {self.finished}: {error}. The run goes on; killed now, it would "
                "start again from the last one that was stored",
                RuntimeWarning,
                stacklevel=3,
            )

    def _load(self, other_versions: bool) -> None:
        found = read_newest(self.folder)
        if found is None:
            return
        path, content = found
        try:
            self._refuse_others(path, content, other_versions)
            put_back(self.strategy, self._growth, content["state"])
            rebuilder = Rebuilder(self.strategy.device, lambda: self.strategy.model)
            self.results[:] = rebuilder.from_data(content["results"], None, "results")
            self.finished = _position(content["finished"], len(self.stream))
        except Refused as error:
            raise ValueError(str(error)) from error.__cause__
        except Exception as error:  # a file that somebody made, or a strategy that its description does not tell apart
            raise ValueError(f"{path} does not fit this experiment: {type(error).__name__}: {error}") from error

    def _refuse_others(self, path: Path, content: dict[str, Any], other_versions: bool) -> None:
        changed = differences(_versions(), content["versions"])
        if changed and not other_versions:
            raise Refused(
                f"{path} was written by other versions: {'; '.join(changed)}. Go on with those; or pass "
                "other_versions=True if it does not matter that numbers may differ in their last digits"
            )
        way_out = ". Use another folder, or remove this one to start from the beginning"
        try:
            refuse_differences(f"{path} is of another experiment and", self._identity, content["identity"], way_out)
        except ValueError as error:
            raise Refused(str(error)) from None
        more = changed_looks(self._looks, content["looks"])
        if None not in (self._seed, content["seed"]) and self._seed != content["seed"]:
            more.append(f"the seed of torch is {self._seed} here and {content['seed']} in it")
        if more:
            raise Refused(f"{path} is of another experiment and does not fit: {'; '.join(more[:5])}{way_out}")
        if changed:
            shown = "; ".join(changed)
            warnings.warn(f"{path}: {shown}; numbers may differ in their last digits", RuntimeWarning, stacklevel=4)


class Refused(Exception):
    """A checkpoint of something else; the message says what differs."""


def _position(finished: Any, experiences: int) -> int:
    if not isinstance(finished, int) or not 0 < finished <= experiences:
        raise ValueError(f"{finished!r} of {experiences} experiences are finished")
    return finished


def _versions() -> dict[str, str]:
    return {"avalanche-rewc": __version__, **{name: version(name) for name in ("torch", "avalanche-lib", "numpy")}}
