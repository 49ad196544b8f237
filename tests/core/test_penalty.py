"""The penalty's value and gradient, against the formula written with plain autograd."""

import copy

import pytest
import torch
from torch import nn

from avalanche_rewc import core
from avalanche_rewc.core import QuadraticPenalty, Rotation, Term
from avalanche_rewc.core.optimizer import change_coordinates
from avalanche_rewc.core.recycled import Recycler
from avalanche_rewc.core.rotation import between, way_between


def setup(seed=0):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    weight, bias = nn.Parameter(draw(3, 4)), nn.Parameter(draw(3))
    rotation = Rotation(torch.linalg.qr(draw(1, 4, 4)).Q, torch.linalg.qr(draw(1, 3, 3)).Q)
    return weight, bias, rotation, draw


def test_value_and_gradient_follow_the_formula():
    weight, bias, rotation, draw = setup()
    importance, anchor = draw(3, 4).square(), draw(3, 4)
    bias_importance, bias_anchor = draw(3).square(), draw(3)
    terms = [
        Term(weight, importance, anchor, rotation),
        Term(weight, importance * 2, anchor * 3),  # a second memory of the same weight
        Term(bias, bias_importance, bias_anchor),
    ]
    value = QuadraticPenalty(7.0, terms)()
    u1, u2 = rotation.input_basis[0], rotation.output_basis[0]
    expected = 3.5 * (
        (importance * (u2.T @ weight @ u1 - anchor) ** 2).sum()
        + (2 * importance * (weight - 3 * anchor) ** 2).sum()
        + (bias_importance * (bias - bias_anchor) ** 2).sum()
    )
    torch.testing.assert_close(value, expected)
    ours = torch.autograd.grad(3 * value, [weight, bias])
    reference = torch.autograd.grad(3 * expected, [weight, bias])
    for a, b in zip(ours, reference, strict=True):
        torch.testing.assert_close(a, b)


def test_rotated_and_original_coordinates_give_the_same_penalty():
    weight, _, rotation, draw = setup()
    importance, anchor = draw(3, 4).square(), draw(3, 4)
    original = QuadraticPenalty(2.0, [Term(weight, importance, anchor, rotation)])()
    rotated_weight = nn.Parameter(rotation.to_rotated(weight.detach()))
    rotated = QuadraticPenalty(2.0, [Term(rotated_weight, importance, anchor)])()
    other = Rotation(torch.linalg.qr(draw(1, 4, 4)).Q, torch.linalg.qr(draw(1, 3, 3)).Q)
    elsewhere = nn.Parameter(other.to_rotated(weight.detach()))
    third = QuadraticPenalty(2.0, [Term(elsewhere, importance, anchor, between(other, rotation))])()
    torch.testing.assert_close(original, rotated)
    torch.testing.assert_close(third, rotated)


def test_no_terms_no_penalty():
    assert QuadraticPenalty(1.0, [])() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    ],
)
def test_momentum_follows_into_new_coordinates(make):
    weight, _, rotation, draw = setup()
    optimizer = make([weight])
    weight.grad = draw(3, 4)
    optimizer.step()
    momentum = optimizer.state[weight]["momentum_buffer"].clone()
    change_coordinates(optimizer, weight, rotation.to_rotated)
    torch.testing.assert_close(optimizer.state[weight]["momentum_buffer"], rotation.to_rotated(momentum))
    change_coordinates(optimizer, weight, rotation.to_original)
    torch.testing.assert_close(optimizer.state[weight]["momentum_buffer"], momentum)


@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.NAdam,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.Adamax,
        torch.optim.ASGD,
        torch.optim.Rprop,
    ],
)
def test_second_moments_are_reset_as_if_the_parameter_were_new(kind):
    """After a change of coordinates the next step is that of a fresh optimizer; other parameters keep theirs."""
    weight, bias, rotation, draw = setup()
    optimizer = kind([weight, bias], lr=0.01)
    for _ in range(3):
        weight.grad, bias.grad = draw(3, 4), draw(3)
        optimizer.step()
    kept = {k: v.clone() for k, v in optimizer.state[bias].items() if isinstance(v, torch.Tensor)}
    change_coordinates(optimizer, weight, rotation.to_rotated)
    for k, v in kept.items():
        torch.testing.assert_close(optimizer.state[bias][k], v)

    fresh_weight = nn.Parameter(weight.detach().clone())
    fresh = kind([fresh_weight], lr=0.01)
    weight.grad = draw(3, 4)
    fresh_weight.grad = weight.grad.clone()
    bias.grad = None
    optimizer.step()
    fresh.step()
    torch.testing.assert_close(weight, fresh_weight)


def plain(parameters, importances, anchors, ewc_lambda):
    terms = zip(parameters, importances, anchors, strict=True)
    return ewc_lambda / 2 * sum((f * (p - a) ** 2).sum() for p, f, a in terms)


def large_and_small():
    """Beyond the sizes from which parameters are handled alone, and their memory is used again."""
    g = torch.Generator().manual_seed(0)
    shapes = [(300, 200), (7,), (40, 3, 2, 2), (200, 300)]
    draw = [[torch.randn(shape, generator=g) for shape in shapes] for _ in range(3)]
    parameters = [nn.Parameter(p) for p in draw[0]]
    importances, anchors = [f.square() for f in draw[1]], draw[2]
    parameters[-1].data = parameters[-1].data.T.contiguous().T  # another order in memory
    terms = [Term(p, f, a) for p, f, a in zip(parameters, importances, anchors, strict=True)]
    return parameters, importances, anchors, QuadraticPenalty(3.0, terms)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_many_steps_with_gradients_of_a_loss_beside_it(set_to_none):
    """Memory is used again from step to step; gradients that somebody keeps must not change with it."""
    parameters, importances, anchors, penalty = large_and_small()
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    kept = []
    for step in range(4):
        optimizer.zero_grad(set_to_none)
        (sum((p**3).mean() for p in parameters[step % 2 :]) + penalty()).backward()  # the first has no loss at times
        reference = sum((p**3).mean() for p in parameters[step % 2 :]) + plain(parameters, importances, anchors, 3.0)
        expected = torch.autograd.grad(reference, parameters)
        for p, e in zip(parameters, expected, strict=True):
            torch.testing.assert_close(p.grad, e)
        if step == 1:
            kept = [(p.grad, p.grad.clone()) for p in parameters] if set_to_none else []
        optimizer.step()
    for gradient, then in kept:
        assert torch.equal(gradient, then)


def test_gradients_add_up_over_several_calls():
    parameters, importances, anchors, penalty = large_and_small()
    first, second = penalty(), penalty()
    (first + 2 * second).backward()
    penalty().backward()
    expected = torch.autograd.grad(4 * plain(parameters, importances, anchors, 3.0), parameters)
    for p, e in zip(parameters, expected, strict=True):
        torch.testing.assert_close(p.grad, e)


def test_a_second_backward_pass_gives_the_same_or_an_error():
    parameters, _, _, penalty = large_and_small()
    value = penalty() + (parameters[0] ** 2).sum()
    value.backward(retain_graph=True)
    once = [p.grad.clone() for p in parameters]
    value.backward(retain_graph=True)
    for p, gradient in zip(parameters, once, strict=True):
        torch.testing.assert_close(p.grad, 2 * gradient)
    value = penalty()
    value.backward(retain_graph=True)
    with torch.no_grad():
        parameters[0].add_(1)
    with pytest.raises(RuntimeError, match="compute it again"):
        value.backward()


def test_the_value_alone_and_a_copy():
    parameters, importances, anchors, penalty = large_and_small()
    expected = plain(parameters, importances, anchors, 3.0)
    with torch.no_grad():
        torch.testing.assert_close(penalty(), expected.detach())
    copied, own = copy.deepcopy((penalty, parameters))
    with torch.no_grad():
        own[0].add_(1)
    torch.testing.assert_close(copied(), plain(own, importances, anchors, 3.0).detach(), check_stride=False)
    torch.testing.assert_close(penalty().detach(), expected.detach())


def test_memory_is_used_again_only_when_nobody_holds_it():
    recycler, like = Recycler(), torch.zeros(())
    first = recycler.empty((300, 200), like)
    assert first.shape == (300, 200)
    assert first.data_ptr() % 64 == 0
    view = first.view(-1)[5:]
    address = first.data_ptr()
    del first
    assert recycler.empty((300, 200), like).data_ptr() != address, "a view is still there"
    del view
    found = {t.data_ptr() for t in [recycler.empty((300, 200), like) for _ in range(2)]}
    assert address in found
    assert len(found) == 2


@pytest.mark.parametrize("small", [0, core.rotation.SMALL], ids=["two products", "one product"])
def test_several_memories_in_coordinates_of_their_own_share_the_way(small, monkeypatch):
    """With cheap bases the way goes by the original coordinates, with others directly; the penalty is the same."""
    monkeypatch.setattr(core.rotation, "SMALL", small)
    g = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    whole = [Rotation(torch.linalg.qr(draw(1, 9, 9)).Q, torch.linalg.qr(draw(1, 11, 11)).Q) for _ in range(3)]
    weight = draw(11, 9)
    for here, *there in (whole, [rotation.leading(2) for rotation in whole]):
        cheap = here.rank is not None
        assert here.is_cheap() == cheap
        parameter = nn.Parameter(here.to_rotated(weight))
        memories = [(rotation, draw(11, 9).square(), draw(11, 9)) for rotation in (here, *there, None)]
        terms = []
        for rotation, importance, anchor in memories:
            home, step = way_between(here, rotation)
            if rotation is not None and rotation is not here:
                assert (home is here and step is rotation) == cheap
            terms.append(Term(parameter, importance, anchor, step, home))
        value = QuadraticPenalty(3.0, terms)()
        plain = Rotation(here.input_basis, here.output_basis).to_original(parameter)
        expected = 1.5 * sum(
            (f * ((plain if r is None else r.output_basis[0].T @ plain @ r.input_basis[0]) - a) ** 2).sum()
            for r, f, a in memories
        )
        torch.testing.assert_close(value, expected)
        ours, reference = (torch.autograd.grad(v, parameter)[0] for v in (value, expected))
        torch.testing.assert_close(ours, reference)
