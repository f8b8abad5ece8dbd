"""What a recipe was told of the training beside base values. What nobody said is not made up, but
asked for.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mupscale.errors import OptionError

Betas = tuple[float, float]
Teller = Literal["the study", "given"]

NAMES = {
    "weight_decay": "weight decay",
    "std": "init std",
    "tokens": "tokens of a run",
    "betas": "betas",
    "eps": "eps",
    "clip": "clipping",
    "floor": "floor of the schedule",
    "sequence": "sequence",
}
"""Arguments of `transfer` that may have to be asked for, and what they are in words."""


@dataclass(frozen=True)
class Told:
    """How the study trained, or what the caller wants instead; None where neither says it."""

    betas: Betas | None
    clip: float | None
    "Of the gradients' norm, as on the base; 0 where they are not clipped."
    floor: float | None
    "Of the rate, at the end of the cosine."
    by: Mapping[str, Teller]
    "Who said what is known."

    @staticmethod
    def of(settings: Mapping[str, Any], given: Mapping[str, Any]) -> "Told":
        """Of a study's settings, with those given put over them."""
        both = {
            name: settings.get(name) if value is None else value for name, value in given.items()
        }
        by: dict[str, Teller] = {
            name: "the study" if given[name] is None else "given"
            for name, value in both.items()
            if value is not None
        }
        return Told(_betas(both["betas"]), _clip(both["clip"]), _floor(both["floor"]), by)


def _betas(value: Any) -> Betas | None:
    if value is None:
        return None
    numbers = tuple(value) if isinstance(value, list | tuple) else ()
    if len(numbers) != 2 or not all(_is_number(beta) and 0 <= beta < 1 for beta in numbers):
        raise OptionError(f"betas={value!r} must be two numbers from 0 to below 1, as (0.9, 0.95).")
    return float(numbers[0]), float(numbers[1])


def _clip(value: Any) -> float | None:
    if value is None:
        return None
    if not _is_number(value) or value < 0:
        raise OptionError(f"clip={value!r} must be a finite number above 0, or 0 for no clipping.")
    return float(value)


def _floor(value: Any) -> float | None:
    if value is None:
        return None
    if not _is_number(value) or not 0 <= value <= 1:
        raise OptionError(f"floor={value!r} must be a share of the rate, from 0 to 1.")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def in_words(names: Iterable[str]) -> str:
    """What is not known.

    >>> in_words(["betas", "clip"])
    'betas, clipping'
    """
    return ", ".join(NAMES[name] for name in names)


def request(names: Iterable[str]) -> str:
    """How to say all of it, in Python and on the command line.

    >>> request(["weight_decay", "clip"])
    'Pass weight_decay=…, clip=… (--weight-decay …, --clip …).'
    """
    listed = list(names)
    flags = ", ".join(f"--{name.replace('_', '-')} …" for name in listed)
    return f"Pass {', '.join(f'{name}=…' for name in listed)} ({flags})."
