"""Reading by batch gives the very same batches, weights and numbers as Avalanche's own way."""

import pytest
import torch
from avalanche.training import LwF, Naive, Replay

from avalanche_rewc import REWC
from avalanche_rewc.streams import SplitDigits
from avalanche_rewc.streams.batches import TensorBatches
from tests.toy import Growing, Tensors, blob_stream, settings


def run(make, plugins):
    torch.manual_seed(0)
    stream = SplitDigits(n_experiences=5)
    model = Growing(inputs=64)
    batches = []

    class Keep:
        def before_forward(self, strategy, **kwargs):
            batches.append([field.clone() for field in strategy.mbatch])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    strategy = make(**settings(model, optimizer, train_mb_size=32, plugins=[*plugins, Keep()]))
    numbers = []
    for experience in stream.train_stream:
        strategy.train(experience)
        numbers.append(strategy.eval(stream.test_stream))
    return batches, numbers, model.state_dict()


@pytest.mark.parametrize(
    "make",
    [
        Naive,
        lambda **kwargs: Replay(mem_size=50, **kwargs),
        lambda **kwargs: LwF(alpha=1.0, temperature=2.0, **kwargs),
        lambda **kwargs: REWC(ewc_lambda=10.0, **kwargs),
    ],
)
def test_everything_is_bit_identical(make):
    slow_batches, slow_numbers, slow_weights = run(make, [])
    fast_batches, fast_numbers, fast_weights = run(make, [TensorBatches()])
    assert len(slow_batches) == len(fast_batches) > 50
    for slow, fast in zip(slow_batches, fast_batches, strict=True):
        assert len(slow) == len(fast) == 3
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(slow, fast, strict=True))
    assert slow_numbers == fast_numbers
    assert all(torch.equal(slow_weights[key], fast_weights[key]) for key in slow_weights)


def test_random_transforms_are_refused():
    class Noisy(Tensors):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + torch.rand(1), y

    from avalanche.benchmarks import nc_benchmark

    data = Noisy(torch.randn(20, 5), [0, 1] * 10)
    stream = nc_benchmark(data, data, 2, task_labels=False)
    strategy = Naive(**settings(Growing()), plugins=[TensorBatches()])
    with pytest.raises(ValueError, match="random transforms"):
        strategy.train(stream.train_stream[0])


def test_loader_workers_are_left_alone():
    strategy = Naive(**settings(Growing()), plugins=[TensorBatches()])
    stream = blob_stream(2, dtype=torch.float32)
    strategy.train(stream.train_stream[0], num_workers=1)
    strategy.eval(stream.test_stream, num_workers=1)


def test_other_streams_of_the_same_name_are_not_mistaken_for_each_other():
    def accuracies(plugins):
        strategy = Naive(**settings(Growing(inputs=64), plugins=plugins))
        strategy.train(SplitDigits().train_stream[0])
        streams = [SplitDigits(class_order=order).test_stream for order in (range(10), range(9, -1, -1), range(10))]
        return [dict(strategy.eval(stream)) for stream in streams]

    torch.manual_seed(0)
    slow = accuracies([])
    torch.manual_seed(0)
    assert accuracies([TensorBatches()]) == slow
    assert slow[0] != slow[1]
