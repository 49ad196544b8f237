"""Other ways to the factors, bases and Fisher of an experience, which `consolidate` is timed against.

All are called as `rival(model, x, y, generator)`, with a model in eval mode, samples (N, ...) and the data's labels,
and leave the model as it was; those that work in batches take a `batch_size` too. They answer with an `Estimate` or
with the object that their library makes. Not all compute the same.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from avalanche.training.plugins import EWCPlugin
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, TensorDataset

from avalanche_rewc.core.bases import eigenvectors
from benchmarks.speed.paper_form import between_fixed_layers

BATCH = 32


class Unsupported(Exception):
    """A network or a factor that a rival cannot take, and why."""


@dataclass(frozen=True)
class Estimate:
    """By parameter name, means over samples: input and output factor of weights, and the diagonal Fisher."""

    factors: dict[str, tuple[Tensor, Tensor]]
    importances: dict[str, Tensor]


# In torch alone. A term is one label for every sample of a batch, and the root of its weight in the expectation.
Term = tuple[Tensor, Tensor]
Gradients = Callable[[Tensor, Sequence[Term]], Iterator[dict[str, Tensor]]]
Bases = dict[str, tuple[Tensor, Tensor]]
"""Input and output basis, by the weight's name."""


def loop(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator, exact: bool = False) -> Estimate:
    """As the authors' code does it: two passes over the samples, one at a time, forward and backward.

    In the second one the model is in the paper's form, so that autograd gives gradients in rotated coordinates.

    Args:
        exact: with the expectation over all labels instead of one that is drawn, a backward pass for each.
    """
    terms = _all_labels if exact else partial(_drawn, generator)
    return _estimate(model, x.split(1), terms, partial(_by_autograd, model))  # type: ignore[no-untyped-call]


def vmap(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator, batch_size: int = BATCH) -> Estimate:
    """`loop` in batches: per-sample gradients by `torch.func`, the usual way in torch alone."""
    batches = x.split(batch_size)  # type: ignore[no-untyped-call]
    return _estimate(model, batches, partial(_drawn, generator), partial(_by_vmap, model))


def _estimate(
    model: nn.Module,
    batches: Sequence[Tensor],
    terms: Callable[[Tensor], list[Term]],
    gradients_in: Callable[[Bases], Gradients],
) -> Estimate:
    samples = sum(map(len, batches))
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    chosen = []
    with _recorded(model) as calls:
        for batch in batches:
            calls.clear()
            logits = model(batch)
            chosen.append(terms(logits.detach()))
            rotated = calls[:-1]  # all layers but the last
            _add_products(inputs, rotated, [call.input for call in rotated])
            for term in chosen[-1]:
                edges = [call.edge for call in rotated]
                _add_products(outputs, rotated, torch.autograd.grad(_score(logits, term), edges, retain_graph=True))
    factors = {name: (inputs[name] / samples, outputs[name] / samples) for name in inputs}
    gradients = gradients_in({name: (eigenvectors(a), eigenvectors(g)) for name, (a, g) in factors.items()})
    importances = {name: torch.zeros_like(parameter) for name, parameter in _trained(model).items()}
    for batch, found in zip(batches, chosen, strict=True):
        for per_sample in gradients(batch, found):
            for name, gradient in per_sample.items():
                importances[name] += gradient.square().sum(0) / samples
    return Estimate(factors, importances)


def _drawn(generator: torch.Generator, logits: Tensor) -> list[Term]:
    labels = torch.multinomial(logits.double().softmax(-1), 1, generator=generator)[:, 0]
    return [(torch.ones(len(labels)).to(logits), labels)]


def _all_labels(logits: Tensor) -> list[Term]:
    roots = logits.softmax(-1).sqrt()
    return [(roots[:, c], torch.full((len(logits),), c)) for c in range(logits.shape[1])]


def _score(logits: Tensor, term: Term) -> Tensor:
    """`Σ √weight · log p(label)` over the samples of a batch."""
    return (term[0] * logits.log_softmax(-1).gather(1, term[1][:, None])[:, 0]).sum()


def _in_bases(model: nn.Module, bases: Bases) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model in the paper's form, where gradients are in rotated coordinates, and what it trains."""
    trained = _trained(model)
    rotated = {
        name: (a, g, torch.einsum("oi...,ok,ij->kj...", trained[name].detach(), g, a)) for name, (a, g) in bases.items()
    }
    form, parameters = between_fixed_layers(model, rotated)
    return form, {name: parameters[name] for name in trained}


def _by_autograd(model: nn.Module, bases: Bases) -> Gradients:
    form, trained = _in_bases(model, bases)
    wanted = list(trained.values())

    def gradients(sample: Tensor, terms: Sequence[Term]) -> Iterator[dict[str, Tensor]]:
        logits = form(sample)
        for term in terms:
            found = torch.autograd.grad(_score(logits, term), wanted, retain_graph=True, materialize_grads=True)
            yield {name: gradient[None] for name, gradient in zip(trained, found, strict=True)}

    return gradients


def _by_vmap(model: nn.Module, bases: Bases) -> Gradients:
    form, trained = _in_bases(model, bases)
    before = {id(parameter): name for name, parameter in trained.items()}
    names = {name: before[id(parameter)] for name, parameter in _trained(form).items()}
    values = {name: parameter.detach() for name, parameter in _trained(form).items()}

    def score(values: dict[str, Tensor], sample: Tensor, root: Tensor, label: Tensor) -> Tensor:
        return _score(functional_call(form, values, (sample[None],)), (root[None], label[None]))

    def gradients(batch: Tensor, terms: Sequence[Term]) -> Iterator[dict[str, Tensor]]:
        for term in terms:
            with sdpa_kernel(SDPBackend.MATH):  # the fused attention has no batching rule
                found = torch.func.vmap(torch.func.grad(score), (None, 0, 0, 0))(values, batch, *term)
            yield {names[name]: gradient for name, gradient in found.items()}

    return gradients


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@dataclass(frozen=True)
class _Call:
    """Of a Linear or Conv2d: the name of its weight, and where the gradient of its output is found."""

    weight: str
    layer: nn.Linear | nn.Conv2d
    input: Tensor
    edge: GradientEdge


@contextmanager
def _recorded(model: nn.Module) -> Iterator[list[_Call]]:
    """Calls in their order. (Attention reads its output layer's weight without a call.)"""
    calls: list[_Call] = []

    def record(name: str, layer: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append(_Call(f"{name}.weight", layer, args[0].detach(), get_gradient_edge(output)))

    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}
    if grouped := [name for name, layer in layers.items() if getattr(layer, "groups", 1) > 1]:
        raise Unsupported(f"{grouped[0]} is a convolution in groups")
    handles = [layer.register_forward_hook(partial(record, name)) for name, layer in layers.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _add_products(totals: dict[str, Tensor], calls: Sequence[_Call], tensors: Sequence[Tensor]) -> None:
    """`Σ t tᵀ` over samples and positions; the features of a convolution are its channels."""
    for call, tensor in zip(calls, tensors, strict=True):
        rows = (tensor.movedim(1, -1) if isinstance(call.layer, nn.Conv2d) else tensor).flatten(0, -2)
        totals[call.weight] = totals.get(call.weight, 0) + rows.T @ rows


# Libraries.


def backpack_rotated(
    model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator, batch_size: int = BATCH
) -> Estimate:
    """`vmap` with BackPACK's `BatchGrad` in its place. BackPACK knows no LayerNorm, attention or free parameter."""
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad

    def gradients_in(bases: Bases) -> Gradients:
        form, found = _in_bases(model, bases)
        trained: dict[str, Any] = dict(found)
        for module in form.modules():
            if getattr(module, "inplace", False):  # its backward hooks do not allow that
                module.inplace = False  # type: ignore[assignment]
            if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
                extend(module)

        def gradients(batch: Tensor, terms: Sequence[Term]) -> Iterator[dict[str, Tensor]]:
            for term in terms:
                with warnings.catch_warnings(), backpack(BatchGrad()):
                    warnings.simplefilter("ignore")  # of modules it does not know: see below
                    _score(form(batch), term).backward()  # type: ignore[no-untyped-call]
                if missing := [name for name, own in trained.items() if not hasattr(own, "grad_batch")]:
                    raise Unsupported(f"BackPACK has no gradients per sample of {missing[0]}")
                yield {name: parameter.grad_batch for name, parameter in trained.items()}

        return gradients

    batches = x.split(batch_size)  # type: ignore[no-untyped-call]
    return _estimate(model, batches, partial(_drawn, generator), gradients_in)


def backpack(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator, batch_size: int = BATCH) -> Estimate:
    """BackPACK's `KFAC` and `SumGradSquared` in one pass, for chains of modules without branches.

    Factors of all weights (of convolutions over patches, the patch basis) and the diagonal Fisher in original
    coordinates. No bases, and nothing in rotated coordinates. KFAC draws labels of its own.
    """
    from backpack import backpack as active
    from backpack import extend
    from backpack.extensions import KFAC, SumGradSquared

    chain, names = _chain(model, x)
    loss = extend(nn.CrossEntropyLoss(reduction="sum"))
    extend(chain)
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    importances: dict[str, Tensor] = {}
    with _seeded(_seed(generator)):
        for batch in x.split(batch_size):  # type: ignore[no-untyped-call]
            logits = chain(batch)
            value = loss(logits, _drawn(generator, logits.detach())[0][1])
            with active(KFAC(mc_samples=1), SumGradSquared()):
                value.backward()
            for name, parameter in zip(names, chain.parameters(), strict=True):
                found: Any = parameter
                importances[name] = importances.get(name, 0) + found.sum_grad_squared / len(x)
                if (
                    len(found.kfac) == 2
                ):  # it gives the mean of x xᵀ over the batch and the sum of g gᵀ; a bias has no x
                    a, g = factors.get(name, (0, 0))
                    factors[name] = a + found.kfac[1] * (len(batch) / len(x)), g + found.kfac[0] / len(x)
    return Estimate(factors, importances)


def _chain(model: nn.Module, x: Tensor) -> tuple[nn.Sequential, list[str]]:
    """The called modules without children in a row, if that is what the model computes, and its parameters' names."""
    called: list[tuple[str, nn.Module]] = []
    leaves = {name: module for name, module in model.named_modules() if not list(module.children())}
    handles = [
        leaf.register_forward_hook(lambda module, _, __, name=name: called.append((name, module)))
        for name, leaf in leaves.items()
    ]
    with torch.no_grad():
        logits = model(x[:2])
    for handle in handles:
        handle.remove()
    chain = nn.Sequential()
    for _, module in called:
        if isinstance(module, nn.Linear) and isinstance(chain[-1] if len(chain) else None, nn.MaxPool2d | nn.ReLU):
            chain.append(nn.Flatten())
        chain.append(copy.deepcopy(module))
    with torch.no_grad(), suppress(RuntimeError):
        if torch.allclose(chain(x[:2]), logits, atol=1e-5):
            return chain, [f"{name}.{own}" for name, module in called for own, _ in module.named_parameters()]
    raise Unsupported("BackPACK's KFAC takes modules in a row, and this model does more between them")


def nngeometry(
    model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator, batch_size: int = BATCH, exact: bool = False
) -> Any:
    """nngeometry's `PMatEKFAC`, factors and eigenvectors in one pass and the diagonal in a second.

    Of all Linear and Conv2d layers, the last too; each with its bias as one more input, convolutions in the patch
    basis. Other parameters are left out. It takes no Linear that sees more than one row of a sample.
    """
    from nngeometry import FIM, FIM_MonteCarlo
    from nngeometry.layercollection import LayerCollection
    from nngeometry.object import PMatEKFAC

    layers = LayerCollection()
    for call in _called(model, x):
        if isinstance(call.layer, nn.Linear) and call.input.dim() > 2:
            raise Unsupported(f"nngeometry takes no Linear layer on tokens, as {call.weight} is")
        layers.add_layer_from_model(model, call.layer)
    samples, seed = DataLoader(TensorDataset(x), batch_size), _seed(generator)

    def matrix() -> tuple[Any, Tensor]:
        with _seeded(seed):
            found = (FIM if exact else FIM_MonteCarlo)(model, samples, PMatEKFAC, layer_collection=layers)
        with _seeded(seed):  # the same labels again
            found.update_diag(samples)
        return found, found.trace()

    return _solved("nngeometry", matrix)


def curvlinops(
    model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator, batch_size: int = BATCH, exact: bool = False
) -> Any:
    """curvlinops' `EKFACLinearOperator` with everything computed that its products need, in two passes.

    Of all Linear and Conv2d layers, the last too; convolutions in the patch basis, biases in the output basis. Other
    parameters are left out.
    """
    from curvlinops import EKFACLinearOperator

    parameters = [parameter for call in _called(model, x) for parameter in call.layer.parameters()]
    data = list(zip(x.split(batch_size), y.split(batch_size), strict=True))  # type: ignore[no-untyped-call]
    operator = EKFACLinearOperator(
        model,
        nn.CrossEntropyLoss(),
        parameters,
        data,
        check_deterministic=False,
        seed=_seed(generator),
        fisher_type="type-2" if exact else "mc",
        num_per_example_loss_terms=1,  # given, so that it need not count them in more passes
        num_data=len(x),
    )
    return _solved("curvlinops", lambda: (operator, operator.trace))


def avalanche(
    model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator, batch_size: int = BATCH
) -> dict[str, Tensor]:
    """Importances of Avalanche's EWC: the squared mean gradient of every mini-batch, with the data's labels.

    One backward pass for a batch, so it is cheap, but it is not the Fisher: it falls with the batch size. No factors.
    """
    found = EWCPlugin(ewc_lambda=1.0).compute_importances(
        model,
        nn.CrossEntropyLoss(),
        torch.optim.SGD(model.parameters(), lr=0.0),
        TensorDataset(x, y),
        x.device,
        batch_size,
    )
    model.zero_grad()
    model.eval()  # where it was; the plug-in leaves it in training mode
    return {name: importance.data for name, importance in found.items()}


def _called(model: nn.Module, x: Tensor) -> list[_Call]:
    with _recorded(model) as calls:
        model(x[:1])
    return calls


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**31, (), generator=generator))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """For what draws from torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _solved(library: str, compute: Callable[[], tuple[Any, Tensor]]) -> Any:
    """The matrix that `compute` gives with its trace. Both libraries decompose factors in the model's own precision."""
    try:
        matrix, trace = compute()
        if torch.isfinite(trace):
            return matrix
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        pass
    raise Unsupported(
        f"{library}: no eigenvectors of a factor, in float32 of few samples; more, or a float64 model, help"
    )


@dataclass(frozen=True)
class Rival:
    """`run(model, x, y, generator)`, and the library it needs beside this project's own.

    Attributes:
        in_batches: `run` takes a `batch_size`.
    """

    title: str
    run: Callable[..., Any]
    library: str = "torch"
    in_batches: bool = True


RIVALS: dict[str, Rival] = {
    "loop": Rival("one sample at a time", loop, in_batches=False),
    "loop-exact": Rival("one sample at a time, exact", partial(loop, exact=True), in_batches=False),
    "vmap": Rival("torch.func.vmap", vmap),
    "backpack-rotated": Rival("BackPACK BatchGrad", backpack_rotated, "backpack"),
    "backpack": Rival("BackPACK KFAC", backpack, "backpack"),
    "nngeometry": Rival("nngeometry EKFAC", nngeometry, "nngeometry"),
    "nngeometry-exact": Rival("nngeometry EKFAC, exact", partial(nngeometry, exact=True), "nngeometry"),
    "curvlinops": Rival("curvlinops EKFAC", curvlinops, "curvlinops"),
    "curvlinops-exact": Rival("curvlinops EKFAC, exact", partial(curvlinops, exact=True), "curvlinops"),
    "avalanche": Rival("Avalanche's EWC", avalanche),
}
"""What each computes is in its docstring: the first four what `consolidate` does with whole bases; nngeometry
and curvlinops leave out parameters, but make the larger bases of patches; BackPACK's KFAC and Avalanche do less."""


def available() -> list[str]:
    """The rivals whose library is installed."""
    return [name for name, rival in RIVALS.items() if find_spec(rival.library) is not None]
