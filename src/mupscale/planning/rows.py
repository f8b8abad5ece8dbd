"""Factors for the rows of a tensor, and the part of a sharded tensor that lives in this process."""

from collections.abc import Iterable

import torch
from torch import Tensor

from mupscale.norms.matrices import is_sharded
from mupscale.planning.values import Slices


def row_factors(
    rows: int,
    parts: Iterable[tuple[Slices, float]],
    *,
    default: float = 1.0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | None = None,
) -> Tensor:
    """One factor per row: those of `parts` in their slices, the default elsewhere.

    >>> row_factors(4, [(((1, 3),), 2.0)])
    tensor([1., 2., 2., 1.], dtype=torch.float64)
    """
    factors = torch.full((rows,), default, dtype=dtype, device=device)
    for slices, factor in parts:
        for start, stop in slices:
            factors[start:stop] = factor
    return factors


def along(axis: int, factors: Tensor, like: Tensor) -> Tensor:
    """The factors shaped to multiply `like` along an axis, on its device and mesh."""
    factors = factors.to(like.dtype).reshape([-1 if k == axis else 1 for k in range(like.ndim)])
    if is_sharded(like):
        from torch.distributed.tensor import Replicate, distribute_tensor

        mesh = like.device_mesh
        return distribute_tensor(factors.to(like.device), mesh, [Replicate()] * mesh.ndim)
    return factors.to(like.device)


def local_part(tensor: Tensor) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """The part of a tensor that lives here, its shape, and where it begins in the whole."""
    if not is_sharded(tensor):
        return tensor, tuple(tensor.shape), (0,) * tensor.ndim
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tensor.to_local(), tuple(shape), tuple(offset)
