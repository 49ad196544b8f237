"""Expert Gate (Aljundi et al., 2017), as the paper compares with it: Avalanche's own cannot run offline.

For every task a network of its own (the expert) and an auto-encoder of its own, both trained on nothing but the task's
data. A sample goes to the expert of the task whose auto-encoder rebuilds it best; every sample is gated alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from avalanche.models.utils import avalanche_model_adaptation
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from benchmarks.names import UserError

PAPER_SIZES = (4096, 1024, 100)
ABSENT = -1000.0
"""Logit of classes the chosen expert does not know; what Avalanche's heads give for classes not seen."""
AUTOENCODER_BATCH = 64
AUTOENCODER_LR = 1e-3


def autoencoder_sizes(sizes: str | Sequence[int], inputs: int) -> list[int]:
    """Widths of the encoder: "scaled", "paper", or the widths themselves.

    The paper gives "dimensions 4096, 1024 and 100". On inputs of 4096 numbers (the features Expert Gate was made for)
    that is one hidden layer of a quarter and a code of a fortieth. "scaled" keeps those proportions for inputs of other
    sizes (512 → 128 → 12); "paper" takes the three numbers as hidden widths whatever the input.
    """
    if sizes == "scaled":
        _, hidden, code = PAPER_SIZES
        return [max(2, round(inputs * width / PAPER_SIZES[0])) for width in (hidden, code)]
    if sizes == "paper":
        return list(PAPER_SIZES)
    if isinstance(sizes, str) or not sizes or any(not isinstance(s, int) or s < 1 for s in sizes):
        raise UserError(f"autoencoder={sizes!r} must be 'scaled', 'paper' or a list of widths such as [128, 12]")
    return list(sizes)


class AutoEncoder(nn.Module):
    """inputs → sizes[0] → ReLU → … → sizes[-1] → … → sizes[0] → ReLU → inputs, on standardised inputs.

    Mean and scale are the task's own; the error is measured in the inputs' own units, so that those of different tasks
    can be compared.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, inputs: Tensor, sizes: Sequence[int]) -> None:
        """`inputs` (N, D): the data of the task, for mean and scale."""
        super().__init__()
        self.register_buffer("mean", inputs.mean(0))
        self.register_buffer("scale", inputs.std(0, correction=0).mean().clamp(min=1e-6))
        widths = [inputs.shape[1], *sizes]
        widths += widths[-2::-1]
        layers: list[nn.Module] = []
        for d_in, d_out in pairwise(widths):
            layers += [nn.Linear(d_in, d_out), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])

    def errors(self, x: Tensor) -> Tensor:
        """Mean squared reconstruction error of each sample, (B,), of inputs (B, D)."""
        rebuilt = self.body((x - self.mean) / self.scale) * self.scale + self.mean
        errors: Tensor = (rebuilt - x).square().mean(1)
        return errors


class GatedExperts(nn.Module):
    """All experts and their gates. In training the newest expert answers, in evaluation each sample's own."""

    def __init__(self) -> None:
        """Without experts."""
        super().__init__()
        self.experts = nn.ModuleList()
        self.gates = nn.ModuleList()
        self.classes: list[list[int]] = []

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes so far)."""
        if self.training:
            newest: Tensor = self.experts[-1](x)
            return newest
        return self.gated(x, self.choose(x))

    def choose(self, x: Tensor) -> Tensor:
        """The expert of every sample, (B,)."""
        flat = x.flatten(1)
        errors = [gate.errors(flat) for gate in self.gates if isinstance(gate, AutoEncoder)]
        return torch.stack(errors, 1).argmin(1)

    def gated(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Logits of the chosen experts; classes an expert does not know are out of the question."""
        width = 1 + max(label for classes in self.classes for label in classes)
        logits = torch.full((len(x), width), ABSENT, device=x.device)
        for k, (expert, classes) in enumerate(zip(self.experts, self.classes, strict=True)):
            mine = torch.nonzero(chosen == k).flatten()
            if len(mine):
                logits[mine.unsqueeze(1), torch.tensor(classes, device=x.device)] = expert(x[mine])[:, classes]
        return logits


class ExpertGate(SupervisedTemplate):  # type: ignore[misc]
    """Expert Gate as an Avalanche strategy: the usual loop trains the expert, then its auto-encoder is trained.

    Args:
        network: makes a fresh network; experts share nothing.
        sizes: of the auto-encoders, see `autoencoder_sizes`.
        autoencoder_epochs: None: as many as for the experts.
    """

    def __init__(
        self,
        *,
        network: Callable[[], nn.Module],
        make_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        sizes: str | Sequence[int] = "scaled",
        autoencoder_epochs: int | None = None,
        **base: Any,
    ) -> None:
        """See the class; `base` are the arguments of Avalanche's `SupervisedTemplate` but model and optimizer."""
        self.network, self.make_expert_optimizer, self.sizes = network, make_optimizer, sizes
        # an optimizer must have something to optimize before the first expert is there
        unused = nn.LayerNorm(1)  # drawn from no generator, so that the first expert starts as other methods do
        super().__init__(model=GatedExperts(), optimizer=make_optimizer(unused), **base)
        self.autoencoder_epochs = self.train_epochs if autoencoder_epochs is None else autoencoder_epochs

    def check_model_and_optimizer(self, **kwargs: Any) -> None:
        """A new expert with an optimizer of its own; the old ones are left as they are."""
        expert = self.network()
        avalanche_model_adaptation(expert, self.experience)
        self.model.experts.append(expert)
        self.model.classes.append(sorted(int(c) for c in self.experience.classes_in_this_experience))
        self.model.to(self.device)
        self.optimizer = self.make_expert_optimizer(expert)

    def model_adaptation(self, model: Any = None) -> Any:
        """Evaluation must not grow the experts' heads."""
        return self.model if model is None else model

    def _after_training_exp(self, **kwargs: Any) -> None:
        self._train_gate()
        super()._after_training_exp(**kwargs)

    def _train_gate(self) -> None:
        dataset = self.experience.dataset.eval()
        inputs = torch.stack([dataset[i][0] for i in range(len(dataset))]).flatten(1).to(self.device)
        gate = AutoEncoder(inputs, autoencoder_sizes(self.sizes, inputs.shape[1])).to(self.device)
        optimizer = torch.optim.Adam(gate.parameters(), lr=AUTOENCODER_LR)
        for _ in range(self.autoencoder_epochs):
            for indices in torch.randperm(len(inputs)).split(AUTOENCODER_BATCH):  # type: ignore[no-untyped-call]
                loss = gate.errors(inputs[indices]).mean()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        self.model.gates.append(gate.requires_grad_(False))
