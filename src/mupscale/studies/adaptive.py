"""The adaptive search: bracket the optimum, then try the rates that narrow its interval most.

Near the optimum the loss is a + b·s + c·s² with s = log2 of the rate, plus a level and a slope per
seed. We want the vertex; its error is that of the slope there. So the next rate and seed are those
that minimize the variance of the slope (Bayesian linear design; Chaloner & Verdinelli 1995). This
places pairs of points on both sides of the vertex, and adds seeds once more points on one seed
would say more about that seed than about the optimum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mupscale.analysis.optima import Optimum, fit_optimum
from mupscale.studies.trials import Point, Space, TrialRecord

Array = NDArray[np.float64]
Span = tuple[float, float]

TOLERANCE = 0.25
"""Octaves (powers of two) to either side: rates that differ by less than a fifth."""

SPACING = 1.0
"""Octaves between the first points."""

WINDOW = 1.0
"""Octaves to either side of the vertex in which points are tried: further out, the loss is no
parabola.
"""

REACH = 1.5
"""Octaves to either side in which a parabola is fitted: a few rates do not show asymmetry."""

LEVEL_SD, SLOPE_SD = 3.0, 1.0
"""Expected difference between seeds, in standard deviations of a single loss (per octave, for the
slope).
"""

VERTEX_SD = 0.5
"""Uncertainty of the vertex in octaves: the larger it is, the more the curvature matters."""

_LEAST_FREEDOM = 3
"""Degrees of freedom of the noise: with fewer, points that happen to lie on a parabola would end
the search.
"""

_APART = 0.12
"""Octaves within which a second rate with the same seed adds nothing."""


@dataclass(frozen=True)
class Observation:
    """A trial at x = log2 of its rate. `loss` is None if it diverged or was stopped early."""

    x: float
    loss: float | None
    seed: int


def adaptive_round(
    space: Space,
    seeds: Sequence[int],
    trials: Sequence[TrialRecord],
    count: int,
    tolerance: float,
) -> list[Point]:
    """The next trials of a cell; empty if its optimum is known well enough."""
    low, high = space["lr"]
    seen = [Observation(trial.log2_lr, trial.loss, trial.seed) for trial in trials if trial.has_run]
    span = math.log2(low), math.log2(high)
    found = next_points(seen, span, seeds, count, tolerance)
    return [Point({"lr": float(np.clip(2.0**x, low, high))}, seed) for x, seed in found]


def next_points(
    seen: Sequence[Observation],
    span: Span,
    seeds: Sequence[int],
    count: int,
    tolerance: float,
    start: float | None = None,
) -> list[tuple[float, int]]:
    """Up to `count` pairs of x and seed; none if the optimum is known to ± `tolerance`.

    >>> next_points([], (-8, -4), [1, 2, 3], 3, 0.25)
    [(-6.0, 1), (-7.0, 1), (-5.0, 1)]
    """
    chosen: list[tuple[float, int]] = []
    finished = [one for one in seen if one.loss is not None]
    if not finished:
        return _first(seen, span, seeds[0], count, sum(span) / 2 if start is None else start)
    missing = _unbracketed(seen, finished, span)
    if missing:
        return [(x, seeds[0]) for x in missing[:count]]
    if _is_known(seen, tolerance, len(seeds)):
        return []
    vertex = min(max(present_vertex(seen, finished), span[0]), span[1])
    for _ in range(count):
        best = _most_telling([*((one.x, one.seed) for one in seen), *chosen], vertex, span, seeds)
        if best is None:
            break
        chosen.append(best)
    return chosen


def _first(
    seen: Sequence[Observation], span: Span, seed: int, count: int, start: float
) -> list[tuple[float, int]]:
    """The start and points to both sides of it; lower ones if all so far diverged."""
    low, high = span
    spacing = min(SPACING, (high - low) / 4)
    if seen:
        lowest = min(one.x for one in seen)
        return [
            (max(low, lowest - spacing * k), seed)
            for k in range(1, count + 1)
            if lowest - spacing * (k - 1) > low
        ]
    steps = [0.0, *(sign * k * spacing for k in range(1, count + 1) for sign in (-1, 1))]
    inside = [start + step for step in steps if low <= start + step <= high]
    return [(x, seed) for x in inside[:count]]


def _unbracketed(
    seen: Sequence[Observation], finished: Sequence[Observation], span: Span
) -> list[float]:
    """Where to look next while the lowest loss has a neighbour on one side only."""
    low, high = span
    spacing = min(SPACING, (high - low) / 4)
    lowest = min(finished, key=lambda one: one.loss or 0.0).x
    points: list[float] = []
    if not any(one.x < lowest - _APART for one in seen) and lowest > low + _APART:
        points += [max(low, lowest - spacing), max(low, lowest - 2 * spacing)]
    if not any(one.x > lowest + _APART for one in seen) and lowest < high - _APART:
        points += [min(high, lowest + spacing), min(high, lowest + 2 * spacing)]
    return list(dict.fromkeys(points[::2] + points[1::2]))


def present_vertex(seen: Sequence[Observation], finished: Sequence[Observation]) -> float:
    """The current estimate: from the fit, or from the lowest point and its neighbours while there
    are too few points for a fit.
    """
    lowest = min(finished, key=lambda one: one.loss or 0.0).x
    found = _fitted(seen)
    if found is None or "few" in found.flags:
        return _interpolated(finished, lowest)
    return found.value if found.curvature > 0 else lowest


def _is_known(seen: Sequence[Observation], tolerance: float, available: int) -> bool:
    """Whether the optimum of these seeds (of at least two, if available) is known well enough.

    The spread between seeds is part of the reported interval, and only further seeds narrow it.
    """
    found = _fitted(seen)
    if found is None or found.within_freedom < _LEAST_FREEDOM or found.seeds < min(2, available):
        return False
    return found.within <= tolerance


def _fitted(seen: Sequence[Observation]) -> Optimum | None:
    xs, losses = [one.x for one in seen], [one.loss for one in seen]
    return fit_optimum(xs, losses, [one.seed for one in seen], reach=REACH, asymmetry=0)


def _interpolated(finished: Sequence[Observation], lowest: float) -> float:
    """The vertex of the parabola through the lowest point and its two neighbours."""
    by_x = sorted({one.x: one.loss or 0.0 for one in finished}.items())
    place = [x for x, _ in by_x].index(lowest)
    if not 0 < place < len(by_x) - 1:
        return lowest
    (x0, y0), (x1, y1), (x2, y2) = by_x[place - 1 : place + 2]
    below, above = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    square = (above - below) / (x2 - x0)
    if square <= 0:
        return lowest
    return float(np.clip((x0 + x1) / 2 - below / (2 * square), x0, x2))


def _most_telling(
    tried: Sequence[tuple[float, int]], vertex: float, span: Span, seeds: Sequence[int]
) -> tuple[float, int] | None:
    """The rate and seed that minimize the variance of the slope, averaged over where the vertex may
    be.
    """
    information = _prior(len(seeds))
    for x, seed in tried:
        if abs(x - vertex) <= 2 * WINDOW and seed in seeds:
            row = _features(x - vertex, seeds.index(seed), len(seeds))
            information += np.outer(row, row)
    best: tuple[float, tuple[float, int]] | None = None
    for x in np.arange(max(span[0], vertex - WINDOW), min(span[1], vertex + WINDOW) + 1e-9, 1 / 16):
        for place, seed in enumerate(seeds):
            if any(other == seed and abs(x - known) < _APART for known, other in tried):
                continue
            row = _features(float(x) - vertex, place, len(seeds))
            covariance = np.linalg.inv(information + np.outer(row, row))
            variance = float(covariance[1, 1] + 4 * VERTEX_SD**2 * covariance[2, 2])
            if best is None or variance < best[0] - 1e-12:
                best = variance, (float(x), seed)
    return None if best is None else best[1]


def _features(offset: float, seed: int, seeds: int) -> Array:
    """Level, slope and curvature of the mean curve, then level and slope of each seed."""
    row = np.zeros(3 + 2 * seeds)
    row[:3] = 1.0, offset, offset * offset
    row[3 + seed], row[3 + seeds + seed] = 1.0, offset
    return row


def _prior(seeds: int) -> Array:
    """Almost flat for the mean curve; seeds differ from it by LEVEL_SD and SLOPE_SD."""
    precisions = [1e-6, 1e-6, 1e-6, *[LEVEL_SD**-2] * seeds, *[SLOPE_SD**-2] * seeds]
    return np.diag(precisions).astype(np.float64)
