"""The parts of the measurement, each of them run in a process of its own with a number of threads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.machine import processor, versions
from benchmarks.names import UserError
from benchmarks.speed import consolidation, data, growth, memory, steps
from benchmarks.speed.networks import NETWORKS
from benchmarks.speed.timing import use_clock

SCHEMA = 3
SMALL = ("lenet", "mlp-32", "mlp-128")
KEEPING_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**28),
}
"""What tells glibc's allocator not to give memory back to the operating system after every use."""
Results = dict[str, Any]


def _steps(quick: bool) -> Results:
    return _steps_of(SMALL if quick else tuple(NETWORKS), quick)


def _small_steps(quick: bool) -> Results:
    return _steps_of(SMALL, quick)


def _steps_of(names: tuple[str, ...], quick: bool) -> Results:
    return {name: steps.measure(name, *((1, 2) if quick else (60, 16))) for name in tqdm(names, desc="steps")}


def _close_steps(quick: bool) -> Results:
    names = SMALL[:1] if quick else tuple(name for name in NETWORKS if name not in SMALL)
    seconds, rounds = (1, 2) if quick else (120, 40)
    return {name: steps.measure(name, seconds, rounds, steps.CLOSE) for name in tqdm(names, desc="close steps")}


def _consolidation(quick: bool) -> Results:
    samples = {"lenet": 100, "mlp-128": 200} if quick else consolidation.SAMPLES
    progress = tqdm(samples.items(), desc="consolidation")
    seconds, rounds = (1, 2) if quick else (20, 6)
    return {name: consolidation.measure(name, seconds, count, rounds) for name, count in progress}


def _growth(quick: bool) -> Results:
    if quick:
        return growth.measure((64, 256, 512), experiences=20, rounds=2, steps=2)
    return growth.measure((64, 128, 256, 512, 1024, 2048), experiences=50, rounds=12, steps=200)


def _memory(quick: bool) -> Results:
    if quick:
        return memory.measure({"sampled": (1, 2)}, 5)
    return memory.measure({"sampled": (4, 32, 96), "exact": (1, 4)}, 50)


def _data(quick: bool) -> Results:
    return data.measure(1, 6_000, 1_000, 2) if quick else data.measure(6, 60_000, 10_000, 2)


@dataclass(frozen=True)
class Part:
    """What is measured, with how many threads, and in which environment."""

    measure: Callable[[bool], Results]
    threads: tuple[int, ...]
    about: str
    environment: Mapping[str, str] = field(default_factory=dict)


PARTS: dict[str, Part] = {
    "steps": Part(_steps, (1, 2), "time of a training step"),
    "steps-kept": Part(_small_steps, (1, 2), "the same of small networks, with memory that is kept", KEEPING_MEMORY),
    "steps-close": Part(_close_steps, (1, 2), "the same of large networks, the closest candidates, more rounds"),
    "consolidation": Part(_consolidation, (1, 2), "time of a consolidation, per sample"),
    "growth": Part(_growth, (1, 2), "with experiences, width, samples and classes"),
    "memory": Part(_memory, (2,), "stored bytes, and the peak of a consolidation"),
    "data": Part(_data, (1, 2), "whole experiments, and the way to the data"),
}


def work(part: str, threads: int, quick: bool, clock: str) -> None:
    """Measure, in this process; the result is the last line of the output."""
    torch.set_num_threads(threads)
    use_clock(clock)
    torch.set_flush_denormal(True)
    found = PARTS[part].measure(quick)
    print(json.dumps(_rounded(found)))


def run(part: str, threads: int, quick: bool, clock: str) -> Results:
    """Measure in a process of its own. Its progress is shown, its warnings are too."""
    words = ["--work", part, "--threads", str(threads), "--clock", clock, *(["--quick"] if quick else [])]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.speed", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **PARTS[part].environment},
    )
    if done.returncode:
        raise UserError(f"the measurement of {part} with {threads} thread(s) failed; its error is above")
    result: Results = json.loads(done.stdout.splitlines()[-1])
    return {"quick": quick, "clock": clock, "versions": versions(), "cpu": processor(), "found": result}


def of_part(measured: Results, part: str) -> dict[str, Any]:
    """What was found of a part, by the number of threads in words; empty if it was not measured."""
    kept = sorted(key for key in measured if key.startswith(f"{part}@"))
    return {threads_of(key): measured[key]["found"] for key in kept}


def threads_of(key: str) -> str:
    """In words."""
    count = key.split("@")[1]
    return f"{count} thread{'' if count == '1' else 's'}"


def read(path: Path) -> Results:
    """The kept results, by part and threads; nothing if there are none yet."""
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("schema") != SCHEMA:
        raise UserError(f"{path} has results of another format: remove it and measure again")
    measured: Results = content["measured"]
    return measured


def write(path: Path, measured: Results) -> None:
    """Keep results; called after each part, so that an interrupted measurement goes on with the next one."""
    content = {"schema": SCHEMA, "measured": measured}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda numbers: " ".join(numbers[0].split()), text)  # the rounds in one line
    path.write_text(text + "\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
