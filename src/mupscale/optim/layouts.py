"""Which matrices a stored tensor holds: where its outputs are, and which of its rows belong
together.

A tensor is (out, in), or (in, out) with `out_axis` 1, or a stack of such: (experts, out, in),
(experts, in, out) with `out_axis` 2. A fused tensor such as Q|K|V has blocks, each of some slices
of rows; rows run along the output axis.
"""

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor

from mupscale.errors import DimensionError, OptionError
from mupscale.optim.options import check_number

Slice = tuple[int, int]
Block = tuple[Sequence[Slice], float, float]
"""Slices (start, stop) of rows, then what the group's lr and its weight_decay are multiplied by."""


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
    """The blocks of `n_out` rows: all rows in one if none are given.

    >>> blocks_of(None, n_out=6)
    [([(0, 6)], 1.0, 1.0)]
    """
    return [([(0, n_out)], 1.0, 1.0)] if blocks is None else blocks


def check_axes(shape: Sequence[int], out_axis: object, name: str) -> None:
    """Raise unless `shape` is a matrix or a stack of them, with outputs along one of its last two
    axes.
    """
    ndim = len(shape)
    if ndim not in (2, 3):
        raise DimensionError(
            f"{name} has shape {tuple(shape)}. Muon steps matrices (2 axes) and stacks of them (3 "
            "axes): "
            "give this one to AdamW."
        )
    allowed = (ndim - 2, ndim - 1)
    # An axis counted from the end means the same for matrices and stacks.
    if out_axis is None or (type(out_axis) is int and out_axis in (*allowed, -2, -1)):
        return
    raise DimensionError(
        f"{name} has shape {tuple(shape)} and out_axis={out_axis!r}. The output axis of each "
        "matrix is "
        f"{allowed[0]} (rows) or {allowed[1]} (columns)."
    )


def check_blocks(blocks: object, n_out: int, name: str) -> None:
    """Raise unless `blocks` hold every row once.

    >>> check_blocks([([(0, 4), (6, 8)], 1.0, 1.0), ([(4, 6)], 0.5, 2.0)], 8, "wqkv")
    >>> check_blocks([([(0, 4)], 1.0, 1.0), ([(3, 6)], 0.5, 2.0)], 8, "wqkv")
    Traceback (most recent call last):
    mupscale.errors.OptionError: wqkv: row 3 is in two slices of blocks. Give every row of 0 … 7 to one block.
    """
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
            f"{name} has slices={slices!r}. Give (start, stop) pairs, 0 ≤ start < stop ≤ {n_out} "
            "(its rows)."
        )


def is_slice(piece: object, n_out: int) -> bool:
    """Whether `piece` is (start, stop) with at least one row, and no row too many.

    >>> is_slice((0, 4), n_out=4), is_slice((2, 2), n_out=4), is_slice((2, 5), n_out=4), is_slice(3, n_out=4)
    (True, False, False, False)
    """
    if not isinstance(piece, (tuple, list)) or [type(end) for end in piece] != [int, int]:
        return False
    return 0 <= piece[0] < piece[1] <= n_out


def check_cover(slices: Sequence[Slice], n_out: int, name: str) -> None:
    """Raise unless the slices hold every row of 0 … n_out − 1 once, and name the first rows that
    break this.
    """
    done = 0
    for start, stop in sorted([*slices, (n_out, n_out)]):
        if start != done:
            first, end, fault = (
                (done, start, "no slice")
                if start > done
                else (start, min(stop, done), "two slices")
            )
            raise OptionError(
                f"{name}: {rows(first, end)} in {fault} of blocks. Give every row of 0 … "
                f"{n_out - 1} to one block."
            )
        done = stop


def rows(start: int, stop: int) -> str:
    """The start of a sentence about some rows.

    >>> rows(3, 4), rows(3, 8)
    ('row 3 is', 'rows 3 … 7 are')
    """
    return f"row {start} is" if stop - start == 1 else f"rows {start} … {stop - 1} are"
