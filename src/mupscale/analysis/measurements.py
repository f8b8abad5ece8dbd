"""The input of the analysis: one plain row per run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Member:
    """A model of a family over which an optimum should not move.

    `position` is its place on the family's axis: r, width, or number of parameters; None if nothing
    is varied.
    """

    label: str
    position: float | None = None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One finished run; `loss` is None if it diverged. `params` are the searched parameters."""

    rule: str
    member: Member
    seed: int
    params: Mapping[str, float]
    loss: float | None
    steps: int | None = None

    def log2(self, name: str) -> float:
        """log2 of a searched parameter."""
        return math.log2(self.params[name])
