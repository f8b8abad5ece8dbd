"""Checks of the numbers in a parameter group."""

import math
from numbers import Real
from typing import Any, cast

from torch import Tensor

from mupscale.errors import OptionError

Group = dict[str, Any]


def check_number(name: str, value: object, example: float, below: float = math.inf) -> None:
    """Raise unless 0 ≤ `value` < `below`, which excludes NaN and infinity."""
    is_number = isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)
    if is_number and 0 <= float(value) < below:  # pyright: ignore[reportArgumentType]
        return
    expected = "a finite number ≥ 0" if math.isinf(below) else f"a number from 0 to below {below:g}"
    raise OptionError(f"{name}={value!r} is not {expected}. Give one such as {example:g}.")


def check_numbers(name: str, values: object, example: tuple[float, ...]) -> None:
    """Raise unless `values` are finite numbers, as many as in `example`."""
    numbers = cast(list[object], values) if isinstance(values, (tuple, list)) else []
    if len(numbers) == len(example) and all(
        isinstance(v, Real) and math.isfinite(v) for v in numbers
    ):
        return
    wanted = f"a sequence of {len(example)} finite numbers"
    raise OptionError(f"{name}={values!r} is not {wanted}. Give some such as {example}.")


def label(group: Group, index: int) -> str:
    """A parameter in a message: its name if the group has names.

    >>> label({"name": "hidden"}, 1)
    "parameter 1 of group 'hidden'"
    """
    if index < len(group.get("param_names") or ()):
        return f"parameter {group['param_names'][index]!r}"
    return f"parameter {index}" + (f" of group {group['name']!r}" if "name" in group else "")
