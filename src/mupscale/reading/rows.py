"""The matrix row that each entry of a tensor came from, carried along through views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Rows:
    """Row numbers of a tensor's entries, computed on demand: few tensors reach an attention."""

    __slots__ = ("_make", "_value")

    def __init__(self, make: Callable[[], Tensor | None]) -> None:
        self._make: Callable[[], Tensor | None] | None = make
        self._value: Tensor | None = None

    def tensor(self) -> Tensor | None:
        if self._make is not None:
            self._value, self._make = self._make(), None
        return self._value

    def then(self, view: Callable[[Tensor], Tensor]) -> Rows:
        """The numbers under a view; lost if the view cannot be followed."""

        def make() -> Tensor | None:
            before = self.tensor()
            try:
                return None if before is None else view(before)
            except Exception:  # whatever torch raises for a view that has no counterpart here
                return None

        return Rows(make)


def numbered(start: int, count: int, axis: int, shape: Sequence[int]) -> Tensor:
    sizes = [1] * len(shape)
    sizes[axis] = count
    return torch.arange(start, start + count).reshape(sizes).expand(*shape)


def if_shaped(rows: Rows | None, like: Tensor) -> Rows | None:
    """The rows, lost if an operation changed the shape."""
    shape = like.shape
    return rows and rows.then(lambda numbers: numbers.expand(shape))


def joined_rows(name: str, several: Sequence[Rows], dim: int) -> Tensor | None:
    tensors = [tensor for rows in several if (tensor := rows.tensor()) is not None]
    return getattr(torch, name)(tensors, dim) if len(tensors) == len(several) else None


def view_of(
    name: str, args: Sequence[Any], keywords: Mapping[str, Any], part: int | None = None
) -> Callable[[Tensor], Tensor]:
    """The same view of row numbers; `part` is the index if the view gives several tensors."""

    def view(rows: Tensor) -> Tensor:
        if name == "slice":
            dim, *ends = args or [0]
            before = (slice(None),) * (dim % rows.ndim)
            return rows[(*before, slice(*(ends or [None])))]
        plain = {"_unsafe_view": "reshape", "view": "reshape", "split_with_sizes": "split"}.get(
            name, name
        )
        moved = getattr(torch, plain, None) or getattr(Tensor, plain)
        result = moved(rows, *args, **keywords)
        return result if part is None else result[part]

    return view


_PAIR = 1 << 31


def paired(rows: Tensor) -> Tensor:
    """Two row numbers in one, for a rotation that treats pairs of entries as complex numbers.

    >>> unpaired(paired(torch.tensor([[4, 5]]))).tolist()
    [[4, 5]]
    """
    return rows.select(-1, 0) * _PAIR + rows.select(-1, 1)


def unpaired(pairs: Tensor) -> Tensor:
    return torch.stack([pairs // _PAIR, pairs % _PAIR], dim=-1)
