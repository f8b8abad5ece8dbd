"""Checks that every norm makes: a floating-point tensor with values."""

from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

from mupscale.errors import DimensionError, NonFiniteError, OptionError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# Sums of squares overflow or underflow in half precision, so norms are computed in float32.
_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def as_matrices(W: object, name: str = "W") -> Tensor:
    """`W` (…, rows, columns), whole and detached, in float32 or float64."""
    if not isinstance(W, Tensor):
        raise OptionError(
            f"{name} is a {type(W).__name__}. Pass a tensor: torch.as_tensor({name})."
        )
    tensor = whole(W)
    if tensor.is_meta:
        raise OptionError(
            f"{name} is on the meta device and has no values. Materialize it first: to_empty()."
        )
    if tensor.layout is not torch.strided:
        raise OptionError(f"{name} has layout {tensor.layout}. Pass {name}.to_dense().")
    if tensor.dtype not in _TYPES:
        raise OptionError(
            f"{name} has dtype {tensor.dtype}. Pass a real floating-point tensor: {name}.float()."
        )
    if tensor.ndim < 2:
        raise DimensionError(
            f"{name} has shape {tuple(tensor.shape)}. Pass a matrix: {name}[None] if it is one row."
        )
    if tensor.numel() == 0:
        raise DimensionError(
            f"{name} has shape {tuple(tensor.shape)} and no entries. Every axis needs at least 1."
        )
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def whole(W: Tensor) -> Tensor:
    """The tensor, detached; a DTensor is gathered, so every rank of its mesh must call this."""
    return W.full_tensor().detach() if is_sharded(W) else W.detach()


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether a tensor is a DTensor.

    It is recognized by a method, since importing torch.distributed.tensor takes a third of a second
    in each process.
    """
    return hasattr(tensor, "full_tensor")


def check_finite(W: Tensor, name: str = "W") -> None:
    """Raise if an entry is NaN or infinite."""
    if bool(torch.isfinite(W).all()):
        return
    nan, inf = int(W.isnan().sum()), int(W.isinf().sum())
    raise NonFiniteError(
        f"{name}: {nan} NaN and {inf} infinite of {W.numel()} entries. A norm needs finite "
        "numbers: find the step that produced these."
    )
