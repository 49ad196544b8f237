"""NewClassesBCE: the paper's loss, for any strategy."""

import pytest
import torch
import torch.nn.functional as F
from avalanche.training import LwF, Naive, Replay

from avalanche_rewc.losses import NewClassesBCE
from tests.toy import Growing, MultiHead, accuracies, blob_stream, settings


def test_only_new_logits_are_trained():
    loss = NewClassesBCE()
    loss.learn([0, 1])
    loss.learn([2, 3])
    logits = torch.randn(5, 4, requires_grad=True)
    targets = torch.tensor([2, 3, 3, 2, 2])
    value = loss(logits, targets)
    expected = F.binary_cross_entropy_with_logits(logits[:, 2:], F.one_hot(targets - 2, 2).float())
    torch.testing.assert_close(value, expected)
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient[:, :2].abs().max() == 0
    assert gradient[:, 2:].abs().min() > 0


def test_unseen_logits_may_be_trained_as_negatives():
    loss = NewClassesBCE(unseen=True)
    loss.learn([0, 1])
    loss.learn([2])
    logits = torch.randn(3, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(logits, torch.tensor([2, 2, 2])), logits)
    assert gradient[:, :2].abs().max() == 0
    assert (gradient[:, 3:] > 0).all()


def test_sum_over_classes():
    mean, total = NewClassesBCE(), NewClassesBCE(reduction="sum")
    logits, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    for loss in (mean, total):
        loss.learn([0, 1, 2])
    assert total(logits, targets) == pytest.approx(3 * float(mean(logits, targets)), rel=1e-6)
    with pytest.raises(ValueError, match="reduction"):
        NewClassesBCE(reduction="none")


def test_evaluation_is_over_all_classes_seen():
    """And a strategy switches between the two by itself, also for an evaluation in the middle of training."""
    stream = blob_stream(3, dtype=torch.float32)
    loss = NewClassesBCE()
    modes = []

    class Look:
        def before_backward(self, strategy, **kwargs):
            modes.append((strategy.clock.train_exp_counter, "train", loss.training, loss._active(6)))

        def before_eval_iteration(self, strategy, **kwargs):
            modes.append((strategy.clock.train_exp_counter, "eval", loss.training, loss._active(6)))

    strategy = Naive(**settings(Growing(first=6), criterion=loss, eval_every=1), plugins=[Look()])
    for experience in stream.train_stream:
        strategy.train(experience, eval_streams=[stream.test_stream])
    trained = {(m[0], tuple(m[3])) for m in modes if m[1] == "train"}
    assert trained == {(0, (0, 1)), (1, (2, 3)), (2, (4, 5))}
    assert all(m[2] == (m[1] == "train") for m in modes)
    evaluated = {tuple(m[3]) for m in modes if m[1] == "eval"}
    assert {(0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)} <= evaluated


@pytest.mark.parametrize(
    "make", [Naive, lambda **k: LwF(alpha=1.0, temperature=2.0, **k), lambda **k: Replay(mem_size=20, **k)]
)
def test_baselines_train_on_it(make):
    stream = blob_stream(3, dtype=torch.float32)
    strategy = make(**settings(Growing(), criterion=NewClassesBCE(), train_epochs=10))
    for experience in stream.train_stream:
        strategy.train(experience)
    test = stream.test_stream[2].dataset
    x, y = torch.stack([test[i][0] for i in range(len(test))]), torch.tensor(list(test.targets))
    new = strategy.model.eval()(x)[:, 4:]  # old logits are left alone, so old classes may still win
    assert (new.argmax(1) + 4 == y).float().mean() > 0.9


def test_heads_that_reuse_class_numbers():
    loss = NewClassesBCE()
    loss.learn([0, 1], task=0)
    loss.learn([0, 1, 2], task=1)
    assert loss._active(3) == [0, 1, 2]
    loss.learn([1, 2, 3], task=1)
    assert loss._active(4) == [3]
    loss.learn([1, 2], task=1)  # nothing new: what the experience has
    assert loss._active(4) == [1, 2]
    stream = blob_stream(3, task_labels=True, dtype=torch.float32)
    strategy = Naive(**settings(MultiHead(), criterion=NewClassesBCE(), train_epochs=10))
    for experience in stream.train_stream:
        strategy.train(experience)
    assert accuracies(strategy, stream.test_stream)[-1] > 0.8


def test_a_class_without_a_logit_is_named():
    loss = NewClassesBCE()
    loss.learn([4])
    with pytest.raises(RuntimeError, match="class 4 has no logit"):
        loss(torch.randn(2, 3), torch.tensor([4, 4]))
