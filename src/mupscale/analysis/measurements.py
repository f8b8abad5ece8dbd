"""What crosses from runs to analysis: one plain row a run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Member:
    """A model of a family over which an optimum should hold still.

    `position` is where it stands on the family's axis: its r, its width, its number of parameters;
    None where nothing is varied.
    """

    label: str
    position: float | None = None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run that came to its end; `loss` is None if it diverged. `params` holds what was
    searched.
    """

    rule: str
    member: Member
    seed: int
    params: Mapping[str, float]
    loss: float | None
    steps: int | None = None

    def log2(self, name: str) -> float:
        """Of a searched parameter.

        >>> run = Measurement(rule="mup", member=Member(label=""), seed=1, params={"lr": 0.25}, loss=2.0)
        >>> run.log2("lr")
        -2.0
        """
        return math.log2(self.params[name])
