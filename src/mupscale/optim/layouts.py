"""Layouts of stored tensors: where the outputs are, and which rows form a matrix.

A tensor is (out, in), or (in, out) with `out_axis` 1, or a stack of these: (experts, out, in), or
(experts, in, out) with `out_axis` 2. A fused tensor such as Q|K|V has blocks, each of some slices
of rows along the output axis.
"""

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor

from mupscale.errors import DimensionError, OptionError
from mupscale.optim.options import check_number

Slice = tuple[int, int]
Block = tuple[Sequence[Slice], float, float]
"""Slices (start, stop) of rows, then the factors on the group's lr and weight_decay."""


def as_matrices(tensor: Tensor, out_axis: int | None) -> Tensor:
    """`tensor` as (…, out, in): a view.

    >>> import torch
    >>> as_matrices(torch.zeros(8, 3, 5), out_axis=2).shape
    torch.Size([8, 5, 3])
    """
    if out_axis is None or out_axis % tensor.ndim == tensor.ndim - 2:
        return tensor
    return tensor.mT


def blocks_of(blocks: Sequence[Block] | None, n_out: int) -> Sequence[Block]:
    """The blocks, or one block of all `n_out` rows."""
    return [([(0, n_out)], 1.0, 1.0)] if blocks is None else blocks


def check_axes(shape: Sequence[int], out_axis: object, name: str) -> None:
    """Raise unless this is a matrix or a stack, with outputs along one of the last two axes."""
    ndim = len(shape)
    if ndim not in (2, 3):
        raise DimensionError(
            f"{name} has shape {tuple(shape)}. Muon steps matrices (2 axes) and stacks of them (3 "
            "axes): train this one with AdamW."
        )
    allowed = (ndim - 2, ndim - 1)
    # An axis counted from the end means the same for matrices and stacks.
    if out_axis is None or (type(out_axis) is int and out_axis in (*allowed, -2, -1)):
        return
    raise DimensionError(
        f"{name} has shape {tuple(shape)} and out_axis={out_axis!r}. The outputs of its matrices "
        f"are on axis {allowed[0]} (rows) or {allowed[1]} (columns)."
    )


def check_blocks(blocks: object, n_out: int, name: str) -> None:
    """Raise unless `blocks` contain every row once."""
    if blocks is None:
        return
    if not isinstance(blocks, (tuple, list)):
        raise OptionError(
            f"{name}: blocks={blocks!r} is not a sequence of (slices, lr_ratio, decay_ratio)."
        )
    for index, block in enumerate(cast(Sequence[object], blocks)):
        check_block(block, n_out, f"{name}: blocks[{index}]")
    check_cover(
        [piece for slices, _, _ in cast(Sequence[Block], blocks) for piece in slices], n_out, name
    )


def check_block(block: object, n_out: int, name: str) -> None:
    if not isinstance(block, (tuple, list)) or len(cast(Sequence[object], block)) != 3:
        raise OptionError(
            f"{name}={block!r} is not (slices, lr_ratio, decay_ratio), such as ([(0, 64)], 1.0, "
            "1.0)."
        )
    slices, lr_ratio, decay_ratio = cast(tuple[Any, Any, Any], block)
    check_number(f"{name} lr_ratio", lr_ratio, example=1.0)
    check_number(f"{name} decay_ratio", decay_ratio, example=1.0)
    if (
        not isinstance(slices, (tuple, list))
        or not slices
        or not all(is_slice(piece, n_out) for piece in slices)
    ):
        raise OptionError(
            f"{name} has slices={slices!r}. Give (start, stop) pairs of rows with 0 ≤ start < stop "
            f"≤ {n_out}."
        )


def is_slice(piece: object, n_out: int) -> bool:
    """Whether `piece` is (start, stop) with at least one row, all of them below `n_out`."""
    if not isinstance(piece, (tuple, list)) or [type(end) for end in piece] != [int, int]:
        return False
    return 0 <= piece[0] < piece[1] <= n_out


def check_cover(slices: Sequence[Slice], n_out: int, name: str) -> None:
    """Raise unless the slices contain every row once; name the first rows that break this."""
    done = 0
    for start, stop in sorted([*slices, (n_out, n_out)]):
        if start != done:
            first, end, fault = (
                (done, start, "no slice")
                if start > done
                else (start, min(stop, done), "two slices")
            )
            rows = f"row {first} is" if end - first == 1 else f"rows {first} … {end - 1} are"
            raise OptionError(
                f"{name}: {rows} in {fault} of blocks. Put every row of 0 … {n_out - 1} in one "
                "block."
            )
        done = stop
