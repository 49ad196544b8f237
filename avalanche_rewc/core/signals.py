"""What is sent backward from the logits: the three kinds of Fisher information.

With `p = softmax(logits)`, the gradient of `log p_c` with respect to the logits is `e_c − p`. A *signal* is such a
vector for every sample, and the Fisher is the mean over samples of the sum over signals of squared gradients:

    sampled     one signal,  e_c − p         with c drawn from p        (the paper; unbiased, noisy)
    empirical   one signal,  e_y − p         with y the data's label
    exact       C signals,   √p_c (e_c − p)  for every class c          (the expectation itself)

Sums of squares do not change when the signals of a sample are mixed orthogonally, so fewer than C do for the last one.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from avalanche_rewc.core.checks import one_of

FisherKind = Literal["sampled", "exact", "empirical"]
NEGLIGIBLE = 1e-4
"""Share of the trace, in the logits, that the exact Fisher may leave out; far below the noise of drawing samples."""


def fisher_signals(kind: FisherKind, logits: Tensor, labels: Tensor | None, generator: torch.Generator) -> Tensor:
    """The signals (S, B, C) of a batch.

    Args:
        labels: the data's, needed by the empirical Fisher only.
        generator: on the CPU, used by the sampled Fisher only.
    """
    one_of("fisher", kind, get_args(FisherKind))
    if kind == "exact":
        return exact_signals(logits)
    if kind == "sampled":
        return label_signal(logits, draw_labels(logits, generator))
    if labels is None:
        raise ValueError('fisher="empirical" needs the labels of the data; use "sampled" or "exact" without')
    if int(labels.max()) >= logits.shape[-1]:
        raise ValueError(f'fisher="empirical": label {int(labels.max())} has no logit; there are {logits.shape[-1]}')
    return label_signal(logits, labels)


def draw_labels(logits: Tensor, generator: torch.Generator) -> Tensor:
    """One label per row, drawn from the softmax of the logits. The draw is on the CPU, so it is the same everywhere."""
    probabilities = logits.detach().double().softmax(-1).cpu()
    return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1).to(logits.device)


def label_signal(logits: Tensor, labels: Tensor) -> Tensor:
    """`e_y − p` as one signal, shape (1, B, C)."""
    probabilities = logits.detach().softmax(-1)
    return (F.one_hot(labels, logits.shape[-1]).to(probabilities) - probabilities).unsqueeze(0)


def exact_signals(logits: Tensor) -> Tensor:
    """Signals (< C, B, C) with the outer products of all `√p_c (e_c − p)`, the most probable classes first.

    With `r = √p`, those C signals are the rows of `(1 − r rᵀ) diag(r)`, which has rank C − 1, and any orthonormal basis
    of what is perpendicular to r may stand in the projection's place: sums of squares stay. The reflection that takes r
    to the most probable class t has one in its other rows, and gives for every other class c

        √p_c (e_c − √p_t e_t − Σ_{j≠t} p_j e_j / (1 + √p_t))

    Their squares add up to the trace `Σ_c p_c (1 − p_c)`. A trained network gives most classes next to no probability;
    as many as hold less than `NEGLIGIBLE` of the batch's trace together are left out, and with them their backward
    passes. (Eigenvectors in place of that basis would save no more: eigenvalues lie between the probabilities.)
    """
    probabilities, classes = logits.detach().softmax(-1).sort(dim=-1, descending=True)  # (B, C)
    if probabilities.shape[-1] == 1:
        return torch.zeros_like(probabilities).unsqueeze(0)
    top, others = probabilities[:, :1], probabilities[:, 1:]
    shared = others / (1 + top.sqrt())
    squares = others * (1 - 2 * shared + top + shared.square().sum(-1, keepdim=True))
    shares = squares.double().sum(0)
    left_out = shares.flip(0).cumsum(0).flip(0)  # by keeping fewer than so many
    kept = max(1, int((left_out > NEGLIGIBLE * shares.sum()).sum()))
    roots = others[:, :kept].sqrt().T.unsqueeze(-1)  # (S, B, 1)
    sorted_signals = -roots * torch.cat([top.sqrt(), shared], -1)
    rank = torch.arange(kept, device=logits.device)
    sorted_signals[rank, :, rank + 1] += roots.squeeze(-1)
    return torch.empty_like(sorted_signals).scatter_(-1, classes.expand_as(sorted_signals), sorted_signals)
