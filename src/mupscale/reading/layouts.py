"""Results of operators on the meta device, with each layout computed once.

Torch derives the layout of most results in Python, which takes most of the time of a forward pass
on the meta device. The blocks of a model repeat the same operators on the same shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.memory_format)


class Layouts:
    """The layouts of one forward pass, by operator and arguments."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[torch.Size, tuple[int, ...], torch.dtype]] = {}
        self._views = set[Any]()
        """Operators that returned a view, or changed a tensor in place."""

    def result(self, operator: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """What the operator returns: a tensor of the known layout if it makes a new one."""
        if operator in self._views:
            return operator(*args, **keywords)
        tensors: list[Tensor] = []
        key = (operator, _key(args, tensors), tuple(keywords), _key(keywords.values(), tensors))
        # Without tensors, the default type decides. With numbers (a mask on the CPU), they may.
        if not tensors or not all(tensor.is_meta for tensor in tensors):
            return operator(*args, **keywords)
        if key in self._known:
            shape, stride, dtype = self._known[key]
            return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        result = operator(*args, **keywords)
        if isinstance(result, Tensor) and result.is_meta:
            if _is_new(result, tensors):
                self._known[key] = (result.shape, result.stride(), result.dtype)
            else:
                self._views.add(operator)
        return result


def _key(values: Iterable[Any], tensors: list[Tensor]) -> Any:
    """What decides the layout of a result; collects the tensors."""
    key: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
            key.append((value.shape, value.stride(), value.dtype))
        elif isinstance(value, (tuple, list)):
            key.append(_key(value, tensors))
        else:  # 1, 1.0 and True are equal, but give results of other types
            known = isinstance(value, _PLAIN)
            key.append((type(value), value) if known else object())  # which equals no other key
    return tuple(key)


def _is_new(result: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether a tensor has a storage of its own."""
    return _storage(result) not in map(_storage, tensors)


def _storage(tensor: Tensor) -> int:
    storage: Any = tensor.untyped_storage()
    return storage._cdata  # its address: there is no data to point to
