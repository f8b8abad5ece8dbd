"""When a trial is stopped early: it lies so far behind the best one of its seed that it cannot
matter any more.

Trials of a seed see the same batches in the same order, so that their losses at the same step can
be compared closely: the noise of a batch is in both. What counts as far is what the best trial
itself still gained from there on: twice its gain is made by no rate near the optimum. Trials are
judged in the middle of a run only. Before, those at a low rate have hardly begun, and those at a
high one may look best; later, little is left to save, and their loss tells something.
`drills/early_stopping.py` compares this with full runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WINDOWS = 32
"""A run is looked at after each of so many equal parts, by the mean training loss of that part."""

FAR = 1.0
"""In what the best trial still gained: a trial that is further behind is hopeless."""

FROM, TO = 0.4, 0.6
"""Shares of a run between which it is judged."""

_SMOOTH = 2 / WINDOWS


@dataclass(frozen=True)
class Stopping:
    """The best trial's loss at shares of its run, and how far behind it is too far."""

    shares: tuple[float, ...]
    losses: tuple[float, ...]
    far: float = FAR

    def to_dict(self) -> dict[str, Any]:
        return {"shares": self.shares, "losses": self.losses, "far": self.far}


def reference(curve: Sequence[Sequence[float]], steps: int, far: float = FAR) -> Stopping:
    """Of a finished run's curve of (step, loss)."""
    return Stopping(tuple(step / steps for step, _ in curve), tuple(loss for _, loss in curve), far)


def hopeless(stop: Mapping[str, Any] | None, share: float, loss: float) -> bool:
    """Whether a run at this share of its steps, with this mean loss over the window that ends
    there, is too far behind.

    >>> best = reference([[10, 5.0], [20, 4.0], [30, 3.5], [40, 3.0]], steps=40).to_dict()
    >>> hopeless(best, 0.5, 4.9), hopeless(best, 0.5, 5.1), hopeless(best, 1.0, 9.0)
    (False, True, False)
    """
    if stop is None or not FROM <= share <= TO:
        return False
    shares, losses = np.asarray(stop["shares"]), np.asarray(stop["losses"])
    here = _mean(shares, losses, share - 1 / WINDOWS, share)
    gained = _mean(shares, losses, share - _SMOOTH, share + _SMOOTH) - _mean(
        shares, losses, 1 - _SMOOTH, 1.0
    )
    return gained > 0 and loss - here > stop["far"] * gained


def _mean(
    shares: np.ndarray[Any, Any], losses: np.ndarray[Any, Any], low: float, high: float
) -> float:
    """Over what was recorded between two shares; where that is nothing, what lies around it."""
    inside = (shares > low + 1e-9) & (shares <= high + 1e-9)
    return float(losses[inside].mean()) if inside.any() else float(np.interp(high, shares, losses))
