"""Expert Gate: each sample gated alone, experts and gates trained on their own task only."""

import copy

import pytest
import torch

from avalanche_rewc.losses import NewClassesBCE
from avalanche_rewc.models import FeatureMLP
from avalanche_rewc.streams import SplitDigits
from benchmarks.expert_gate import ABSENT, ExpertGate, autoencoder_sizes
from benchmarks.names import UserError


@pytest.fixture(scope="module")
def trained():
    """The strategy after two tasks, and its model's state after the first."""
    torch.manual_seed(0)
    stream = SplitDigits(2)
    strategy = ExpertGate(
        network=lambda: FeatureMLP(64, (32,), initial_out_features=5),
        make_optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
        criterion=NewClassesBCE(),
        train_mb_size=32,
        train_epochs=12,
        eval_mb_size=100,
        evaluator=None,
    )
    strategy.train(stream.train_stream[0])
    strategy.eval(stream.test_stream)
    after_first = copy.deepcopy(strategy.model.state_dict())
    strategy.train(stream.train_stream[1])
    strategy.eval(stream.test_stream)
    return strategy.model.eval(), after_first, stream


def test_later_tasks_and_evaluation_leave_earlier_experts_alone(trained):
    model, after_first, _ = trained
    now = model.state_dict()
    assert after_first
    for name, value in after_first.items():
        assert torch.equal(now[name], value), name
    assert len(now) == 2 * len(after_first)


def test_the_gate_finds_the_task_of_a_sample(trained):
    model, _, stream = trained
    for k, experience in enumerate(stream.test_stream):
        x = torch.stack([experience.dataset[i][0] for i in range(len(experience.dataset))])
        assert (model.choose(x) == k).float().mean() > 0.75


def test_a_sample_is_gated_alone(trained):
    """Whatever else is in the batch."""
    model, _, stream = trained
    x = torch.stack([e.dataset[i][0] for e in stream.test_stream for i in range(20)])
    together = model(x)
    alone = torch.cat([model(sample.unsqueeze(0)) for sample in x])
    assert torch.equal(together.argmax(1), alone.argmax(1))
    assert len(set(model.choose(x).tolist())) == 2


def test_an_expert_answers_with_its_own_classes_only(trained):
    model, _, stream = trained
    x = torch.stack([stream.test_stream[0].dataset[i][0] for i in range(30)])
    logits = model.gated(x, torch.zeros(30, dtype=torch.long))
    assert (logits[:, 5:] == ABSENT).all()
    assert (logits[:, :5] > ABSENT).all()


def test_sizes_of_the_auto_encoder():
    assert autoencoder_sizes("scaled", 4096) == [1024, 100]
    assert autoencoder_sizes("scaled", 512) == [128, 12]
    assert autoencoder_sizes("paper", 512) == [4096, 1024, 100]
    assert autoencoder_sizes([32, 4], 512) == [32, 4]
    with pytest.raises(UserError, match="scaled"):
        autoencoder_sizes("small", 512)
