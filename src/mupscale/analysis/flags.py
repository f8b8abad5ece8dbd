"""What may be doubtful about an optimum: the flags, their meaning, and what each one rules out."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class FlagText:
    """`short` fits a table cell; `advice` is a sentence about a cell ("it"), with what to do."""

    short: str
    advice: str


FLAGS = {
    "few": FlagText(
        "too few trials for an interval", "it has too few trials for an interval: add rates"
    ),
    "edge": FlagText(
        "at the edge of the range: widen it",
        "its optimum lies at the edge of the range: widen the range",
    ),
    "flat": FlagText(
        "too flat for an interval", "its curve is too flat for an interval: add rates or seeds"
    ),
    "seeds": FlagText(
        "seeds differ: add seeds for an interval",
        "its seeds differ too much for an interval: add seeds",
    ),
    "saddle": FlagText(
        "no minimum inside the range",
        "its surface has no minimum inside the ranges: widen the ranges",
    ),
    "diverged": FlagText("bounded by diverged trials", "diverged trials bound its interval"),
}

NO_OPTIMUM = frozenset(("few", "saddle", "edge", "flat"))
"""The value is only the best trial, not an optimum: it enters no drift and no comparison."""

UNSURE = NO_OPTIMUM | {"seeds"}
"""The value has no usable interval: it is drawn hollow and makes a recipe inconclusive."""


def flags_text(flags: Collection[str]) -> str:
    """The short texts. Too few trials explain every other flag, so "few" stands alone.

    >>> flags_text(("edge", "flat"))
    'at the edge of the range: widen it; too flat for an interval'
    >>> flags_text(("few", "flat"))
    'too few trials for an interval'
    """
    return "; ".join(FLAGS[flag].short for flag in (["few"] if "few" in flags else flags))
