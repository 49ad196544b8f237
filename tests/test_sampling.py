"""Which samples an estimation sees."""

import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.models import MultiTaskModule
from torch import nn

from avalanche_rewc import REWC
from avalanche_rewc.sampling import ExperienceBatches, draw_samples
from tests.toy import Growing, Tensors, blob_stream, settings


def test_so_many_of_each_class():
    data = blob_stream(2, classes=4, dtype=torch.float32).train_stream[0].dataset
    generator = torch.Generator().manual_seed(0)
    for wanted, expected in ((1, 2), (7, 14), (1000, 40), (None, 40)):
        chosen = draw_samples(data, wanted, generator)
        assert len(chosen) == len(set(chosen)) == expected
        labels = [data.targets[i] for i in chosen]
        assert labels.count(0) == labels.count(1)


def test_the_same_draw_for_the_same_seed_only():
    data = blob_stream(2, dtype=torch.float32).train_stream[0].dataset
    draws = [draw_samples(data, 5, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_evaluation_transforms_are_used():
    data = Tensors(torch.zeros(20, 5), [0, 1] * 10)
    stream = nc_benchmark(
        data, data, 1, task_labels=False, train_transform=lambda x: x + 100, eval_transform=lambda x: x + 1
    )
    batches = ExperienceBatches(
        Growing(), stream.train_stream[0], None, generator=torch.Generator(), batch_size=8, device="cpu"
    )
    seen = torch.cat([args[0] for args, _ in batches()])
    assert torch.equal(seen, torch.ones(20, 5))
    again = torch.cat([args[0] for args, _ in batches()])
    assert torch.equal(again, seen)


def test_only_the_last_experience_is_remembered_in_last_mode():
    strategy = REWC(ewc_lambda=1.0, **settings(Growing()))
    for experience in blob_stream(dtype=torch.float32).train_stream:
        strategy.train(experience)
    (memory,) = strategy.rewc.memories
    assert memory.factors == {}  # needed by the online mode only
    online = REWC(ewc_lambda=1.0, mode="online", decay_factor=0.5, **settings(Growing()))
    online.train(blob_stream(dtype=torch.float32).train_stream[0])
    assert set(online.rewc.memories[0].factors) == set(online.rewc.memories[0].rotations)


@pytest.mark.filterwarnings("ignore:per-sample gradients of")
def test_a_model_that_wants_task_labels_as_a_tensor():
    class Conditioned(MultiTaskModule):
        def __init__(self):
            super().__init__()
            self.embed, self.body, self.head = nn.Embedding(3, 8), nn.Linear(5, 8), nn.Linear(8, 6)

        def forward(self, x, task_labels):
            return self.head(torch.relu(self.body(x) + self.embed(task_labels)))

    strategy = REWC(ewc_lambda=1.0, **settings(Conditioned()))
    for experience in blob_stream(3, task_labels=True, dtype=torch.float32).train_stream:
        strategy.train(experience)
    assert strategy.rewc.memories[-1].importances["embed.weight"][2].sum() > 0
    assert strategy.rewc.memories[-1].importances["embed.weight"][:2].sum() == 0
