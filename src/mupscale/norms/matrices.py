"""What every norm asks of its matrix: a floating-point tensor with numbers in it."""

from typing import Any, cast

import torch
from torch import Tensor

from mupscale.errors import DimensionError, NonFiniteError, OptionError

# Half precision is for storage: its sums of squares overflow or drown, so norms are taken in
# float32.
COMPUTED_IN = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}


def as_matrices(W: object, name: str = "W") -> Tensor:
    """`W` (…, rows, columns), whole and without gradient, in the type that its norms are computed
    in.
    """
    if not isinstance(W, Tensor):
        raise OptionError(
            f"{name} is a {type(W).__name__}. Pass a tensor: torch.as_tensor({name})."
        )
    tensor = whole(W)
    if tensor.is_meta:
        raise OptionError(
            f"{name} is on the meta device and holds no numbers. Materialise it first: to_empty()."
        )
    if tensor.layout is not torch.strided:
        raise OptionError(f"{name} has layout {tensor.layout}. Pass {name}.to_dense().")
    if tensor.dtype not in COMPUTED_IN:
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
    return tensor.to(COMPUTED_IN[tensor.dtype])


def whole(W: Tensor) -> Tensor:
    """The tensor without gradient; a DTensor is gathered, which every rank of its mesh must do
    together.
    """
    return cast(Any, W).full_tensor().detach() if hasattr(W, "full_tensor") else W.detach()


def check_finite(W: Tensor, name: str = "W") -> None:
    """Raise if an entry is NaN or infinite, and say how many are."""
    if bool(torch.isfinite(W).all()):
        return
    nan, inf = int(W.isnan().sum()), int(W.isinf().sum())
    raise NonFiniteError(
        f"{name}: {nan} NaN and {inf} infinite of {W.numel()} entries. A norm needs finite "
        "numbers: "
        "find the step that produced these."
    )
