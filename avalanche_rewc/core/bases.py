"""From the two Kronecker factors of a layer to the two bases it is rotated into.

A basis function takes the input factor `A = E[x xᵀ]`, shape (g, q, q), and the output factor `G = E[g gᵀ]`, shape
(g, m, m), and returns `(input_basis, output_basis)`: orthogonal matrices of the same shapes with
`W' = output_basisᵀ W input_basis`. Anything with that contract can be passed as `basis=`. Where only some leading
vectors become axes (`rank=`), so many columns are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import scipy.linalg
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

BasisFunction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

FEW_OF = 320
"""Of factors of this size and more, up to a quarter of the eigenvectors are found in less time than all of them; so it
was with one thread and with two."""
MANY_THREADS = 1024
"""From this size on `syevr` has work for more than one thread."""


def eigenvectors(factor: Tensor, count: int | None = None) -> Tensor:
    """Eigenvectors in the columns, largest eigenvalue first: all of them, (g, d, d), or at least the first `count`.

    Cost: cubic in the size; a few of a wide factor take half the time of all. In the factor's own precision: float32
    takes less than half the time of float64. On some factors of few samples LAPACK does not converge in it, and says so
    or answers with NaN; those are taken in float64. A factor that is zero or diagonal (a dead layer, a depthwise
    convolution) needs no special case: LAPACK answers with an orthogonal basis all the same.
    """
    size = factor.shape[-1]
    few = 0 if count is None or size < FEW_OF or 4 * count > size or factor.device.type != "cpu" else count
    try:
        vectors = _leading(factor, few) if few else _all(factor)
        converged = is_orthogonal(vectors)
    except (torch.linalg.LinAlgError, scipy.linalg.LinAlgError):  # type: ignore[attr-defined]
        converged = False
    return vectors if converged else _all(factor.double()).to(factor.dtype)


def _all(factor: Tensor) -> Tensor:
    vectors: Tensor = torch.linalg.eigh(factor)[1]
    return vectors.flip(-1)


def _leading(factor: Tensor, count: int) -> Tensor:
    """LAPACK's `syevr` with a range of indices, which torch does not offer: (g, d, count)."""
    size = factor.shape[-1]
    with _own_threads().limit(limits=torch.get_num_threads() if size >= MANY_THREADS else 1):
        found = [
            scipy.linalg.eigh(matrix, subset_by_index=(size - count, size - 1), driver="evr", check_finite=False)[1]
            for matrix in factor.detach().numpy()
        ]
    return torch.from_numpy(np.stack(found)).flip(-1)


@cache
def _own_threads() -> ThreadpoolController:
    """Of NumPy's and SciPy's linear algebra. They spin beside torch's when they have nothing to do."""
    return ThreadpoolController().select(internal_api="openblas")


def is_orthogonal(basis: Tensor) -> bool:
    """`Uᵀ U v = v` for a random v, also for some columns (..., d, k): the product itself would be cubic in the size."""
    vector = random_vector(basis)
    return bool((basis.mT @ (basis @ vector) - vector).abs().max() < 1e-3)


def random_vector(basis: Tensor) -> Tensor:
    """A column (k, 1) that is the same every time, to tell matrices (..., d, k) apart by."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(basis.shape[-1], 1, dtype=torch.float64, generator=generator).to(basis)


def eigen(input_factor: Tensor, output_factor: Tensor, rank: int | None = None) -> tuple[Tensor, Tensor]:
    """The right form: both factors become diagonal. With a rank, the leading columns of each basis may be all."""
    return eigenvectors(input_factor, rank), eigenvectors(output_factor, rank)


def identity(input_factor: Tensor, output_factor: Tensor) -> tuple[Tensor, Tensor]:
    """No rotation: R-EWC becomes diagonal EWC."""
    return _identity_like(input_factor), _identity_like(output_factor)


def input_only(input_factor: Tensor, output_factor: Tensor) -> tuple[Tensor, Tensor]:
    """The input side of `eigen`."""
    return eigenvectors(input_factor), _identity_like(output_factor)


def output_only(input_factor: Tensor, output_factor: Tensor) -> tuple[Tensor, Tensor]:
    """The output side of `eigen`."""
    return _identity_like(input_factor), eigenvectors(output_factor)


def authors(input_factor: Tensor, output_factor: Tensor) -> tuple[Tensor, Tensor]:
    """What the authors' published code computes: transposed on the output side, so G stays full."""
    return eigenvectors(input_factor), eigenvectors(output_factor).mT.contiguous()


def printed(input_factor: Tensor, output_factor: Tensor) -> tuple[Tensor, Tensor]:
    """The formula as the paper prints it, `W' = U2ᵀ W U1ᵀ`: transposed on the input side, so A stays full."""
    return eigenvectors(input_factor).mT.contiguous(), eigenvectors(output_factor)


class RandomBasis:
    """A random rotation, uniform over the orthogonal matrices: the control beside every gain.

    Args:
        seed: of its own generator; the global ones are not touched.
        sides: "both", "input" or "output"; the other side keeps the identity.
    """

    def __init__(self, seed: int = 0, sides: str = "both") -> None:
        if sides not in ("both", "input", "output"):
            raise ValueError(f"sides={sides!r} is not one of 'both', 'input', 'output'")
        self.generator = torch.Generator().manual_seed(seed)
        self.sides = sides

    def __call__(self, input_factor: Tensor, output_factor: Tensor) -> tuple[Tensor, Tensor]:
        bases = []
        for side, factor in (("input", input_factor), ("output", output_factor)):
            turned = self.sides in ("both", side)
            bases.append(self._draw(factor) if turned else _identity_like(factor))
        return bases[0], bases[1]

    def _draw(self, factor: Tensor) -> Tensor:
        gauss = torch.randn(factor.shape, dtype=torch.float64, generator=self.generator)
        q, r = torch.linalg.qr(gauss)
        # The signs of R's diagonal make the distribution uniform (Mezzadri 2007).
        uniform: Tensor = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
        return uniform.to(factor)


def _identity_like(factor: Tensor) -> Tensor:
    return torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand_as(factor).contiguous()


BASES: dict[str, BasisFunction] = {
    "eigen": eigen,
    "identity": identity,
    "input_only": input_only,
    "output_only": output_only,
    "authors": authors,
    "printed": printed,
}
