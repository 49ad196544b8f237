"""What goes into each layer and what comes back: inputs and output gradients, recorded by forward hooks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from avalanche_rewc.core.wrappers import without_compilation


@dataclass
class Call:
    """One use of a module in a forward pass.

    Attributes:
        args, kwargs: of its forward, tensors detached.
        outputs: how many numbers the output has.
        edge: where the gradient of the output is found. An edge and not the output itself: an in-place activation would
            replace the output, but the edge still means the value before it.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 0
    edge: GradientEdge | None = None

    @property
    def input(self) -> Tensor:
        """The first argument."""
        x = next(iter((*self.args, *self.kwargs.values())))
        assert isinstance(x, Tensor)
        return x

    def numel(self) -> int:
        """Numbers in all tensors among the arguments; in one that is several of them, as in self-attention, once."""
        return sum(t.numel() for t in {t.data_ptr(): t for t in self._tensors()}.values())

    def bytes(self) -> int:
        """They take so many."""
        return sum(t.numel() * t.element_size() for t in {t.data_ptr(): t for t in self._tensors()}.values())

    def _tensors(self) -> list[Tensor]:
        return [a for a in (*self.args, *self.kwargs.values()) if isinstance(a, Tensor)]


@dataclass
class Record:
    """All calls of the watched modules in one forward pass, in the order they happened."""

    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))

    @property
    def order(self) -> list[str]:
        """Names of the modules called, by the moment of their first call; dictionaries keep that order."""
        return list(self.calls)

    def output_gradients(self, logits: Tensor, signal: Tensor) -> dict[str, list[Tensor | None]]:
        """`stacked_gradients` of one signal (B, C), without the dimension of the signals."""
        stacked = self.stacked_gradients(logits, signal.unsqueeze(0))
        return {name: [None if g is None else g[0] for g in found] for name, found in stacked.items()}

    def stacked_gradients(self, logits: Tensor, signals: Tensor) -> dict[str, list[Tensor | None]]:
        """The gradient of `Σ signal · logits` at the output of every call, for signals (S, B, C): (S, B, ...).

        None where there is no path. No weight gradient is computed on the way. The graph is kept for further signals.
        """
        calls = [(name, call) for name, uses in self.calls.items() for call in uses]
        edges = [call.edge for _, call in calls if call.edge is not None]
        rest = iter(_gradients(logits, edges, signals) if edges else ())
        gradients = defaultdict(list)
        for name, call in calls:
            gradients[name].append(None if call.edge is None else next(rest))
        return dict(gradients)


def _gradients(logits: Tensor, edges: list[GradientEdge], signals: Tensor) -> list[Tensor | None]:
    """All signals in one backward pass where torch knows how (a vmap over it), else one after the other."""

    def backward(signal: Tensor, batched: bool) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(
            logits, edges, grad_outputs=signal, retain_graph=True, allow_unused=True, is_grads_batched=batched
        )

    if len(signals) > 1:
        try:
            return list(backward(signals, True))
        except RuntimeError:
            pass  # an operation without a batching rule
    single = [backward(signal, False) for signal in signals]
    if len(single) == 1:  # without a copy
        return [None if found is None else found.unsqueeze(0) for found in single[0]]
    return [None if found[0] is None else torch.stack(found) for found in zip(*single, strict=True)]


@contextmanager
def capture(modules: Mapping[str, nn.Module]) -> Iterator[Record]:
    """Record every call of `modules` while the context lasts."""
    record = Record()
    handles = []
    for name, module in modules.items():

        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, name: str = name
        ) -> None:
            x = next(iter((*args, *kwargs.values())), None)
            if isinstance(module, nn.MultiheadAttention) and isinstance(output, tuple):
                output = output[0]  # the other one is what it looked at
            if isinstance(x, Tensor) and isinstance(output, Tensor):
                edge = get_gradient_edge(output) if output.requires_grad else None
                positional = tuple(_detached(a) for a in args)
                call = Call(positional, {key: _detached(a) for key, a in kwargs.items()}, output.numel(), edge)
                record.calls[name].append(call)

        handles.append(module.register_forward_hook(hook, with_kwargs=True))
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def _detached(argument: Any) -> Any:
    return argument.detach() if isinstance(argument, Tensor) else argument


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode with gradients on, nothing compiled; every module's own mode is restored, whatever happens.

    Autocast is off: sums of squares, and bases, need float32 at least.
    cuDNN refuses the backward pass of recurrent layers in eval mode, so it is off meanwhile.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    recurrent = any(isinstance(module, nn.RNNBase) for module in modes)
    try:
        cudnn = torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled and not recurrent)
        device = next((parameter.device.type for parameter in model.parameters()), "cpu")
        with torch.enable_grad(), cudnn, without_compilation(), torch.autocast(device, enabled=False):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def samples_within(budget: int, model: nn.Module, args: tuple[Any, ...]) -> int:
    """How many samples' activations, as a forward pass keeps them for the backward pass, fit into so many bytes.

    At least one. Counted on the first sample; parameters and buffers are not counted.
    """
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    sizes: dict[int, int] = {}
    alive = []

    def count(tensor: Tensor) -> Tensor:
        tensor = tensor.detach()  # an output that its own graph holds would never be given back
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model(*(a[:1].clone() if isinstance(a, Tensor) else a for a in args))  # a view has its whole batch behind it
    return max(1, budget // max(1, sum(sizes.values())))
