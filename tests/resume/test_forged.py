"""Checkpoints that somebody has changed and given a right checksum: they are taken or refused, and can change numbers
only; nothing in them is run."""

import copy
import functools
import random
import types

import pytest
import torch

from avalanche_rewc import REWC
from avalanche_rewc.resume import Resumable
from avalanche_rewc.resume.file import read_newest, write_checkpoint
from avalanche_rewc.resume.plain import KIND, KINDS
from tests.resume.experiment import evaluator
from tests.tally import SOAK, tally, trials
from tests.toy import Growing, blob_stream, settings

ODD = [
    None, True, -1, 0, 2**70, 0.5, float("nan"), "", "os.system", "__class__", b"x", [], {}, [None], {"a": 1}, (), {1},
    torch.zeros(0), torch.ones(2, 2), torch.tensor(float("inf")), torch.ones(3, dtype=torch.complex64),
    *({KIND: kind} for kind in (*KINDS, "_class__", "_init__", "_setattr__", 3, None)),
    {KIND: "object", "class": "Clock", "attributes": {"train": 1, "__class__": int}},
    {KIND: "stateful", "state": {}}, {KIND: "module", "state": {}, "frozen": [], "evaluating": []},
]  # fmt: skip
NAMES = ["model", "plugins", "rewc", "evaluator", "train", "__class__", "__dict__", "_criterion", "optimizer", KIND, 7]


@functools.cache
def benchmark():
    return blob_stream(3, per_class=4, dtype=torch.float32)


def make():
    torch.manual_seed(0)
    return REWC(ewc_lambda=30.0, **settings(Growing(), train_epochs=1, evaluator=evaluator())), benchmark()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The content of a checkpoint in the middle of a run."""
    folder = tmp_path_factory.mktemp("stored")
    strategy, stream = make()
    run = Resumable(strategy, stream.train_stream, folder)
    for experience in run:
        if run.finished == 2:
            break
        strategy.train(experience)
        run.results.append(strategy.eval(stream.test_stream))
    return read_newest(folder)[1]


def containers(value, found):
    """Every dictionary and list in it, so that a deep part is as likely to be hit as a shallow one."""
    if isinstance(value, dict | list) and value:
        found.append(value)
        for item in value.values() if isinstance(value, dict) else value:
            containers(item, found)
    elif isinstance(value, tuple):
        for item in value:
            containers(item, found)
    return found


def forged(content, draw):
    """One to three changes somewhere in it."""
    content = copy.deepcopy(content)
    part = content if draw.random() < 0.1 else content[draw.choice(["state", "state", "state", "results", "identity"])]
    for _ in range(draw.randint(1, 3)):
        place = draw.choice(containers(part, []) or [content])
        key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
        how = draw.choice(["replaced", "replaced", "removed", "added"])
        if how == "removed":
            del place[key]
        elif how == "added" and isinstance(place, dict):
            place[draw.choice(NAMES)] = copy.deepcopy(draw.choice(ODD))
        elif how == "added":
            place.append(copy.deepcopy(draw.choice(ODD)))
        else:
            place[key] = copy.deepcopy(draw.choice(ODD))
    return content


def script(strategy):
    """What a file must not be able to replace: classes, functions, and the objects that the script has made."""
    things = [strategy, *strategy.plugins, *strategy.evaluator.metrics, strategy.clock, strategy.optimizer]
    kinds = (types.FunctionType, types.MethodType, type)
    functions = [{k: v for k, v in vars(thing).items() if isinstance(v, kinds)} for thing in things]
    parts = [strategy.model, strategy.optimizer, strategy._criterion, strategy.evaluator, strategy.rewc]
    return [type(thing) for thing in (*things, *strategy.model.modules())], functions, list(map(id, parts))


def load(strategy, stream, path):
    """How many experiences are finished; None if the file is refused, by an error that names it."""
    try:
        return Resumable(strategy, stream.train_stream, path.parent).finished
    except ValueError as error:
        message = str(error)
    assert str(path) in message
    return None


def test_changed_contents_are_taken_or_refused(stored, tmp_path):
    draw = random.Random(None if SOAK else 0)
    with tally("forged checkpoints with a right checksum") as counts:
        for _ in range(trials(100, 5000)):
            path = write_checkpoint(tmp_path, 2, forged(stored, draw))
            strategy, stream = make()
            before = script(strategy)
            finished = load(strategy, stream, path)
            counts.add("of these refused" if finished is None else "of these taken")
            assert finished in (None, 1, 2, 3)
            del strategy.plugins[0]  # the Resumable's own
            assert script(strategy) == before
        assert min(counts.details.values()) > counts.tried // 20


@pytest.mark.parametrize("name", ["model", "plugins", "rewc", "evaluator", "_criterion", "train", "__class__"])
def test_parts_of_a_strategy_are_not_a_file_s_to_set(name, stored, tmp_path):
    content = copy.deepcopy(stored)
    content["state"]["strategy"][name] = 5
    path = write_checkpoint(tmp_path, 2, content)
    strategy, stream = make()
    before = script(strategy)
    with pytest.raises(ValueError, match=rf"strategy\.{name} is not a value that can be set"):
        Resumable(strategy, stream.train_stream, path.parent)
    del strategy.plugins[0]
    assert script(strategy) == before


@pytest.mark.parametrize("content", [[1, 2], 5, {}, {"identity": 3}, {"versions": None, "identity": {}}], ids=str)
def test_other_contents(content, tmp_path):
    write_checkpoint(tmp_path, 1, content)
    strategy, stream = make()
    with pytest.raises(ValueError, match=r"experience-0001\.checkpoint"):
        Resumable(strategy, stream.train_stream, tmp_path)
