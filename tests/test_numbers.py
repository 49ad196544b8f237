"""Numbers in whole runs: a poisoned sample costs one experience's memory and no other's; results repeat."""

import pytest
import torch
from torch import nn

from avalanche_rewc import REWC
from tests.core.test_numbers import Poison
from tests.toy import blob_stream, settings


class Net(nn.Module):
    """Large enough for torch to share its products among threads."""

    def __init__(self, width=96):
        super().__init__()
        self.conv, self.fc, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 64, width), nn.Linear(width, 6)
        self.poison = False

    def forward(self, x):
        y = torch.relu(self.fc(torch.relu(self.conv(x)).flatten(1)))
        if self.poison and not self.training:
            y = Poison.apply(y, torch.arange(len(x)).unsqueeze(1) == 3, float("nan"))
        return self.head(y)


def stream():
    return blob_stream(3, per_class=16, shape=(3, 8, 8), dtype=torch.float32)


def contents(memory):
    """Every tensor of a memory, copied, by name."""
    parts = {"importances": memory.importances, "anchors": memory.anchors}
    parts["inputs"] = {name: rotation.input_basis for name, rotation in memory.rotations.items()}
    parts["outputs"] = {name: rotation.output_basis for name, rotation in memory.rotations.items()}
    return {f"{part} {name}": value.clone() for part, values in parts.items() for name, value in values.items()}


@pytest.mark.parametrize("mode", [{}, {"mode": "separate"}, {"mode": "online", "decay_factor": 0.5}])
def test_a_poisoned_sample_leaves_earlier_memories_as_they_were(mode):
    model = Net(width=12)
    strategy = REWC(ewc_lambda=1.0, **settings(model, train_epochs=1), **mode)
    experiences = stream().train_stream
    strategy.train(experiences[0])
    memory = strategy.rewc.memories[-1]
    before = contents(memory)
    model.poison = True
    with pytest.raises(RuntimeError, match=r"the Fisher of conv\.weight is not finite.*earlier experiences are kept"):
        strategy.train(experiences[1])
    assert strategy.rewc.memories == [memory]
    assert all(torch.equal(value, before[name]) for name, value in contents(memory).items())
    assert [type(m) for m in model.modules()] == [type(m) for m in Net().modules()]
    assert all(torch.isfinite(p).all() for p in model.parameters())
    model.poison = False
    strategy.train(experiences[2])  # goes on, protected by what the first experience left
    assert all(torch.isfinite(value).all() for value in contents(strategy.rewc.memories[-1]).values())


def run(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(0)
        strategy = REWC(ewc_lambda=10.0, layers="all", seed=1, **settings(Net(), train_epochs=1, train_mb_size=32))
        for experience in stream().train_stream[:2]:
            strategy.train(experience)
        return {k: v.clone() for k, v in strategy.model.state_dict().items()}, contents(strategy.rewc.memories[-1])
    finally:
        torch.set_num_threads(before)


def test_a_seed_decides_the_result_on_one_and_on_two_threads():
    """Bit for bit with the same number of threads. With another one sums are taken in another order: weights and
    importances agree to rounding; bases do not need to, where eigenvalues are equal or zero and any basis is one."""
    one, again = run(1), run(1)
    two, twice = run(2), run(2)
    for first, second in ((one, again), (two, twice)):
        for ours, theirs in zip(first, second, strict=True):
            assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    for name, value in one[0].items():
        assert (two[0][name] - value).abs().max() <= 1e-4 * value.abs().max(), name
    for name, value in one[1].items():
        if name.startswith("importances"):
            assert float(two[1][name].sum()) == pytest.approx(float(value.sum()), rel=1e-3), name
