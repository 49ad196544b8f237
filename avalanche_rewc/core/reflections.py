"""Bases that begin with a few given vectors and leave the rest of the space nearly as it is.

A Fisher has few directions that matter, so few eigenvectors need to become axes. With k orthonormal vectors of size d,
Householder reflections give an orthogonal matrix

    Q = 1 − Y T Yᵀ        Y (d, k), T (k, k): the compact WY form (Schreiber & Van Loan 1989)

whose first k columns are those vectors, up to sign; the others stay near the axes they were. A product of a row with Q
takes 2·d·k multiplications, where any other basis takes d².
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from avalanche_rewc.core.bases import random_vector

DEFAULT_RANK = 64
"""As good as whole bases on four data sets (benchmarks/RESULTS.md); a rotation of a wide layer takes a fraction of the
multiplications."""


class Reflections(NamedTuple):
    """The orthogonal matrix `1 + left @ right`; left (g, d, k), right (g, k, d)."""

    left: Tensor
    right: Tensor

    @property
    def mT(self) -> Reflections:
        """The transposed matrix, which is the inverse."""
        return Reflections(self.right.mT, self.left.mT)

    def dense(self) -> Tensor:
        """As any other matrix: (g, d, d)."""
        matrix = self.left @ self.right
        matrix.diagonal(dim1=-2, dim2=-1).add_(1)
        return matrix

    def times(self, x: Tensor) -> Tensor:
        """`(1 + left @ right) @ x`."""
        return (self.left @ (self.right @ x)).add_(x)

    def after(self, x: Tensor) -> Tensor:
        """`x @ (1 + left @ right)`."""
        return ((x @ self.left) @ self.right).add_(x)


def leading_basis(basis: Tensor, rank: int | None) -> Tensor:
    """An orthogonal basis, (g, d, d), that begins with the first `rank` columns of `basis` (g, d, ≥ rank), up to sign.

    All d columns if there are no more, or for None. One Newton-Schulz step `U (3 − UᵀU) / 2` then squares what they
    were short of orthogonal: from LAPACK's float32, to the last bit.
    """
    if rank is None or rank >= basis.shape[-2]:
        return 1.5 * basis - 0.5 * basis @ (basis.mT @ basis)
    return _householder(basis, rank).dense().to(basis.dtype)


def find_reflections(basis: Tensor, rank: int | None) -> Reflections | None:
    """The form that `leading_basis` gave the basis, if it did and products are the cheaper by it; else None.

    With C the first k columns of Q and E those of the identity, it can be read off: `Q = 1 + V (C₁ᵀ − 1)⁻¹ Vᵀ`, where
    `V = C − E` and C₁ are the first k rows of C. (`Q E = C`, and Q is orthogonal since `VᵀV = 2 − C₁ − C₁ᵀ`. Vectors
    that are their axes already have no part in V, so the pseudo-inverse does.) Householder's algorithm once more would
    not do: where a number on the diagonal is 0, as for a unit that is dead, it turns the vector round every time.
    """
    if rank is None or 2 * rank >= basis.shape[-1]:
        return None
    columns = basis[..., :rank].double()
    one = torch.eye(*columns.shape[-2:], dtype=columns.dtype, device=columns.device)
    v = columns - one
    inverse = torch.linalg.pinv(columns[..., :rank, :].mT - one[:rank])
    found = Reflections(v @ inverse, v.mT)
    # On a random vector, which a basis from elsewhere (or one that was full before its layer grew) sends elsewhere: the
    # whole matrices would take d²·k multiplications more.
    vector = random_vector(basis).to(v)
    if not (found.times(vector) - basis.to(v) @ vector).abs().max() < 1e-5:
        return None
    return Reflections(*(part.to(basis.dtype).contiguous() for part in found))


def _householder(basis: Tensor, rank: int) -> Reflections:
    """In float64, so that the result is orthogonal to the last bit of float32. Cost: d·k² multiplications."""
    packed, tau = torch.geqrf(basis[..., :rank].double())
    kept = tau != 0  # a vector that is its axis already is not reflected
    y = packed.tril(-1) + torch.eye(*packed.shape[-2:], dtype=packed.dtype, device=packed.device)
    y = y * kept.unsqueeze(-2)
    inverse_t = (y.mT @ y).triu(1) + torch.diag_embed(torch.where(kept, tau, 1.0).reciprocal())
    return Reflections(-torch.linalg.solve_triangular(inverse_t, y, upper=True, left=False), y.mT)
