"""How a Linear or convolution looks as rows of a matrix product.

Every rotatable layer is `y = W x` for a set of *rows*. With `g` groups, `m` outputs and `n` inputs per group,
and `K` kernel positions (1 for Linear):

* the weight is a stack of matrices, shape (g, m, n·K);
* a *patch row* is what one output position sees, shape (g, n·K);
* an *input row* is one position of the (unpadded) input, shape (g, n);
* an *output row* is one output position, or the gradient there, shape (g, m).

All dispatch on the layer's type is in this file.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_rewc.core.reflections import Reflections

ConvNd = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Rotatable = (nn.Linear, *ConvNd)


def is_conv(module: nn.Module) -> bool:
    """Whether the module is a (not transposed) convolution."""
    return isinstance(module, ConvNd)


def is_rotatable(module: nn.Module) -> bool:
    """A Linear or ConvNd that owns a plain `weight` parameter.

    Weights under `parametrize`, `weight_norm`, `spectral_norm` or pruning are computed from other parameters; there is
    no `weight` to rotate, and those other parameters get the plain diagonal.
    """
    return isinstance(module, Rotatable) and isinstance(module._parameters.get("weight"), nn.Parameter)


def weight_of(module: nn.Module) -> Tensor:
    """The layer's Parameter itself; `layer.weight` of a rotated layer is the composed weight."""
    weight = module._parameters["weight"]
    assert weight is not None
    return weight


def groups(module: nn.Module) -> int:
    """Groups of channels that do not see each other; 1 for Linear."""
    return int(module.groups) if isinstance(module, ConvNd) else 1


def spatial_dims(module: nn.Module) -> int:
    """Number of position dimensions behind the channel dimension (0 for Linear, whose channels are last)."""
    if isinstance(module, nn.Conv1d):
        return 1
    return 2 if isinstance(module, nn.Conv2d) else 3 if isinstance(module, nn.Conv3d) else 0


def _channel_rows(x: Tensor, module: nn.Module) -> Tensor:
    """(B, ..., d) for Linear or (B, C, *positions) for convolutions to (B, P, g, channels per group)."""
    if not is_conv(module):
        return x.reshape(x.shape[0], -1, 1, x.shape[-1])
    if not is_batched(module, x):
        x = x.unsqueeze(0)
    rows = x.flatten(2).transpose(1, 2)
    return rows.reshape(*rows.shape[:2], groups(module), -1)


def input_rows(module: nn.Module, x: Tensor) -> Tensor:
    """Positions of the unpadded input: (B, P_in, g, n)."""
    return _channel_rows(x, module)


def output_rows(module: nn.Module, y: Tensor) -> Tensor:
    """Positions of the output or of its gradient: (B, P_out, g, m)."""
    return _channel_rows(y, module)


def patch_rows(module: nn.Module, x: Tensor) -> Tensor:
    """What each output position sees: (B, P_out, g, n·K), columns ordered as in `weight.reshape(g, m, n·K)`.

    For convolutions this copies the input K-fold (im2col).
    """
    if not isinstance(module, ConvNd):
        return _channel_rows(x, module)
    if not is_batched(module, x):
        x = x.unsqueeze(0)
    x = pad(module, x)
    dims = spatial_dims(module)
    for dim in range(dims):
        extent = module.dilation[dim] * (module.kernel_size[dim] - 1) + 1
        x = x.unfold(2 + dim, extent, module.stride[dim])[..., :: module.dilation[dim]]
    # (B, C, *out, *kernel) -> (B, P, g, n·K)
    x = x.flatten(2 + dims).flatten(2, 1 + dims)  # (B, C, P, K)
    x = x.transpose(1, 2)  # (B, P, C, K)
    return x.reshape(*x.shape[:2], module.groups, -1)


def of_all_calls(calls: list[Tensor], dim: int) -> Tensor:
    """The rows of all calls of a layer; those of a single one, as most layers have, without a copy."""
    return calls[0] if len(calls) == 1 else torch.cat(calls, dim)


def pad(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> Tensor:
    """The input as the kernel meets it, padded in the layer's own padding mode."""
    if isinstance(module.padding, str):
        same = module.padding == "same"
        extents = [d * (k - 1) * same for k, d in zip(module.kernel_size, module.dilation, strict=True)]
        sides = [(extent // 2, extent - extent // 2) for extent in extents]
    else:
        sides = [(int(p), int(p)) for p in module.padding]
    flat = [amount for side in reversed(sides) for amount in side]  # F.pad counts from the last dimension
    if not any(flat):
        return x
    return F.pad(x, flat, mode="constant" if module.padding_mode == "zeros" else module.padding_mode)


def apply(module: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The layer's own operation with another weight and bias."""
    if isinstance(module, ConvNd):
        y: Tensor = module._conv_forward(x, weight, bias)
        return y
    return F.linear(x, weight, bias)


def rotate_positions(module: nn.Module, x: Tensor, matrix: Tensor | Reflections, bias: Tensor | None = None) -> Tensor:
    """`matrix @ x + bias` at every position; matrix (g, c, c). Shape and layout of x are kept.

    Cost: positions · g · c², or positions · g · 2·c·k for k reflections.
    """
    if isinstance(matrix, Tensor):
        return _at_positions(module, x, matrix, bias)
    return x + _at_positions(module, _at_positions(module, x, matrix.right, None), matrix.left, bias)


def _at_positions(module: nn.Module, x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """The same with a matrix (g, c_out, c_in). For convolutions this is a grouped 1×1 convolution."""
    if not is_conv(module):
        return F.linear(x, matrix[0], bias)
    dims = spatial_dims(module)
    weight = matrix.reshape(-1, matrix.shape[2], *[1] * dims)
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[dims]
    return conv(x, weight, bias, groups=matrix.shape[0])


def is_batched(module: nn.Module, x: Tensor) -> bool:
    """Whether a convolution's input or output has a batch dimension; torch also takes a picture without one."""
    return not is_conv(module) or x.dim() == spatial_dims(module) + 2


def row_count(module: nn.Module, x: Tensor) -> int:
    """How many vectors a tensor holds, whatever the order of its dimensions: B for (B, d), B·T for (B, T, d)."""
    channels = x.shape[-1] if not is_conv(module) else x.shape[1 if is_batched(module, x) else 0]
    return x.numel() // channels


def positions(module: nn.Module, x: Tensor) -> int:
    """Rows per sample of a batch-first tensor: 1 for (B, d), T for (B, T, d), the area for feature maps."""
    return math.prod(x.shape[2:] if is_conv(module) else x.shape[1:-1])


def kernel_positions(module: nn.Module) -> int:
    """K: 9 for a 3×3 kernel, 1 for Linear."""
    return math.prod(module.kernel_size) if isinstance(module, ConvNd) else 1


def all_finite(x: Tensor) -> bool:
    """Whether there is no NaN or infinity in it. A finite sum says so in one reading."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


def promoted(x: Tensor) -> Tensor:
    """Half-precision tensors in float32: sums of squares overflow or vanish in 16 bits."""
    return x.to(promoted_type(x.dtype))


def promoted_type(dtype: torch.dtype) -> torch.dtype:
    """At least float32."""
    return torch.promote_types(dtype, torch.float32)
