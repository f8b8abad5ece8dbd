"""Early stopping: a trial ends if it is too far behind the best one of its seed to matter.

Trials of a seed see the same batches in the same order, so their losses at the same step can be
compared closely: both contain the noise of the batch. "Far" is measured by what the best trial
itself still gained from there on: no rate near the optimum gains twice as much. Trials are judged
only in the middle of a run. Earlier, trials at a low rate have hardly started, and trials at a high
rate may look best; later, little time is left to save, and the final loss is informative.
`drills/early_stopping.py` compares this with full runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

WINDOWS = 32
"""A run is judged after each of this many equal parts, by the mean training loss of the part."""

FAR = 1.0
"""A trial further behind than this is stopped; the unit is the best trial's further gain."""

FROM, TO = 0.4, 0.6
"""A run is judged between these shares of its steps."""

_SMOOTH = 2 / WINDOWS


def reference(curve: Sequence[Sequence[float]], steps: int, far: float = FAR) -> dict[str, Any]:
    """The best trial's loss at shares of its run, from its (step, loss) pairs, and what counts as
    far behind.
    """
    shares, losses = [step / steps for step, _ in curve], [loss for _, loss in curve]
    return {"shares": shares, "losses": losses, "far": far}


def hopeless(stop: Mapping[str, Any] | None, share: float, loss: float) -> bool:
    """Whether a run is too far behind: `loss` is its mean over the window that ends at `share` of
    its steps.

    >>> best = reference([[10, 5.0], [20, 4.0], [30, 3.5], [40, 3.0]], steps=40)
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
    """Over the points between two shares; interpolated if there are none."""
    inside = (shares > low + 1e-9) & (shares <= high + 1e-9)
    return float(losses[inside].mean()) if inside.any() else float(np.interp(high, shares, losses))
