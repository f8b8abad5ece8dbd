"""Where a curve of losses has its minimum, with an interval for it.

Losses near the optimum are a polynomial in log2 of the rate plus a level for each seed, fitted by least squares to the
points around the minimum. The interval is Fieller's: all x at which the slope cannot be told from zero,
|f'(x)| ≤ t·se(f'(x)). For normal noise it is exact whatever the design, where the delta method is not; if the curvature
cannot be told from zero it has no end, and the optimum is `flat`. Where every seed has points enough for a slope of its
own, the spread of these competes with the residuals for the standard error, as in `slopes`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mupscale.analysis.slopes import t_quantile
from mupscale.errors import DimensionError, OptionError

Array = NDArray[np.float64]

REACH = 1.5
"""Points this many powers of two to either side of the lowest loss are fitted."""

_LEAST_POINTS = 4


@dataclass(frozen=True)
class Optimum:
    """The minimum of a fitted curve, in log2 units; `low` and `high` are infinite where the data set no bound.

    `within` is half the interval for these seeds alone: how far more rates could still move it. The interval itself is
    for any seed, and counts how far the optima of seeds lie apart.

    Flags: "edge" (the lowest points lie at an end of what was tried), "flat" (curvature not told from zero), "seeds"
    (too few for how far they differ), "diverged" (points beyond one side of the optimum did not end), "few" (too few
    points for an interval).
    """

    value: float
    low: float
    high: float
    loss: float
    curvature: float
    noise: float
    degrees_of_freedom: float
    points: int
    seeds: int
    flags: tuple[str, ...]
    within: float = math.inf

    @property
    def half_width(self) -> float:
        return max(self.high - self.value, self.value - self.low)


@dataclass(frozen=True)
class _Fit:
    """Least squares of losses on a polynomial around `centre` with a level for each seed."""

    centre: float
    coefficients: Array
    covariance: Array
    "Of the coefficients, for noise of variance 1."
    noise: float
    degrees_of_freedom: float
    levels: Array
    "Of each seed at the centre, by its number; NaN for one without points."

    def slope(self, x: Array) -> Array:
        return _derivative(x - self.centre, len(self.coefficients)) @ self.coefficients

    def slope_error(self, x: Array) -> Array:
        """Standard error of the slope for noise of variance 1."""
        rows = _derivative(x - self.centre, len(self.coefficients))
        return np.sqrt(np.einsum("ij,jk,ik->i", rows, self.covariance, rows))


def fit_optimum(
    x: Sequence[float],
    losses: Sequence[float | None],
    seeds: Sequence[int] | None = None,
    *,
    confidence: float = 0.95,
    reach: float = REACH,
) -> Optimum | None:
    """The optimum of losses at x = log2 of a rate; None stands for a run that diverged. None if no run ended.

    >>> optimum = fit_optimum([-9, -8, -7, -6, -5], [2.42, 2.20, 2.11, 2.19, 2.41])
    >>> round(optimum.value, 2), round(optimum.low, 2), round(optimum.high, 2), optimum.flags
    (-6.96, -7.62, -6.69, ())
    """
    xs, ys, groups, bad = _points(x, losses, seeds)
    if len(xs) == 0:
        return None
    near = _around(xs, _lowest(xs, ys, groups), reach)
    for _ in range(3):  # the window follows the vertex, which the window decides
        fit = _fitted(xs[near], ys[near], groups[near])
        if fit is None or fit.coefficients[1] <= 0:
            break
        moved = _around(xs, _vertex(fit, xs), reach)
        if np.array_equal(moved, near):
            break
        near = moved
    fit = _fitted(xs[near], ys[near], groups[near])
    if fit is None:
        return _too_few(xs, ys, groups)
    return _optimum(fit, xs, ys, groups, near, bad, confidence)


def _points(
    x: Sequence[float], losses: Sequence[float | None], seeds: Sequence[int] | None
) -> tuple[Array, Array, NDArray[np.int64], Array]:
    if len(x) != len(losses) or (seeds is not None and len(seeds) != len(x)):
        raise DimensionError(f"{len(x)} points have {len(losses)} losses. Give one loss, and one seed, for each.")
    if not np.all(np.isfinite(np.asarray(x, dtype=np.float64))):
        raise OptionError("a point is not finite. Pass log2 of the rates.")
    ended = np.array([loss is not None and math.isfinite(loss) for loss in losses], dtype=bool)
    xs = np.asarray(x, dtype=np.float64)
    ys = np.array([loss for loss, good in zip(losses, ended, strict=True) if good], dtype=np.float64)
    groups = np.unique(np.zeros(len(xs)) if seeds is None else np.asarray(seeds), return_inverse=True)[1]
    return xs[ended], ys, groups[ended].astype(np.int64), xs[~ended]


def _lowest(xs: Array, ys: Array, groups: NDArray[np.int64]) -> float:
    """The x of the lowest mean loss, once each seed's own level is taken out, as far as it can be told."""
    fit = _fitted(xs, ys, groups)
    level = np.zeros(len(xs)) if fit is None else fit.levels[groups]
    rates = np.unique(xs)
    means = [float((ys - level)[xs == rate].mean()) for rate in rates]
    return float(rates[int(np.argmin(means))])


def _around(xs: Array, centre: float, reach: float) -> NDArray[np.bool_]:
    """Points within reach of the centre, and at least the nearest four rates."""
    distances = np.abs(xs - centre)
    nearest = np.unique(np.round(distances, 9))
    needed = nearest[min(len(nearest), _LEAST_POINTS) - 1]
    return distances <= max(reach, needed) + 1e-9


def _fitted(xs: Array, ys: Array, groups: NDArray[np.int64], own_slopes: bool = False) -> _Fit | None:
    """A parabola with a level for each seed; None without points enough for it and its noise.

    With `own_slopes`, each seed has an optimum of its own, and the slope is the mean of theirs.
    """
    seeds = np.unique(groups)
    belongs = (groups[:, None] == seeds).astype(np.float64)
    offsets = xs - (centre := float(xs.mean()))
    slopes = offsets[:, None] * belongs if own_slopes else offsets[:, None]
    design = np.column_stack([slopes, np.square(offsets), belongs])
    freedom = len(xs) - design.shape[1]
    if freedom < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    solution: Array = np.linalg.lstsq(design, ys, rcond=None)[0].astype(np.float64)
    residuals = ys - design @ solution
    count = slopes.shape[1]
    to_mean = np.zeros((2, design.shape[1]))
    to_mean[0, :count], to_mean[1, count] = 1 / count, 1.0
    covariance: Array = (to_mean @ np.linalg.inv(design.T @ design) @ to_mean.T).astype(np.float64)
    levels = np.full(int(groups.max()) + 1, math.nan)
    levels[seeds] = solution[count + 1 :]
    noise = math.sqrt(residuals @ residuals / freedom)
    return _Fit(centre, to_mean @ solution, covariance, noise, freedom, levels)


def _derivative(offsets: Array, terms: int) -> Array:
    return np.column_stack([power * offsets ** (power - 1) for power in range(1, terms + 1)])


def _vertex(fit: _Fit, xs: Array) -> float:
    """Of a parabola that opens upwards; kept within a step of what was tried."""
    linear, square = fit.coefficients
    span = float(xs.max() - xs.min())
    return float(np.clip(fit.centre - linear / (2 * square), xs.min() - span / 4, xs.max() + span / 4))


def _too_few(xs: Array, ys: Array, groups: NDArray[np.int64]) -> Optimum:
    lowest = _lowest(xs, ys, groups)
    flags = ("few", "edge") if lowest in (xs.min(), xs.max()) else ("few",)
    loss = float(ys[xs == lowest].mean())
    return Optimum(
        lowest, -math.inf, math.inf, loss, math.nan, math.nan, 0, len(xs), len(np.unique(groups)), flags
    )  # fmt: skip


def _optimum(
    fit: _Fit,
    xs: Array,
    ys: Array,
    groups: NDArray[np.int64],
    near: NDArray[np.bool_],
    bad: Array,
    confidence: float,
) -> Optimum:
    linear, square = fit.coefficients
    flags: list[str] = []
    lowest = _lowest(xs, ys, groups)
    value = _vertex(fit, xs) if square > 0 else lowest
    noise, freedom = _with_seeds(fit, xs[near], ys[near], groups[near], value)
    low, high = _fieller(fit, noise * t_quantile(freedom, confidence, 1), value)
    own = _fitted(xs[near], ys[near], groups[near], own_slopes=True) or fit
    # Which of the two fits, seeds with one optimum or with their own, is the narrower: nothing is claimed for others.
    within = min(_half_width(one, value, confidence) for one in (fit, own))
    if not (xs.min() < value < xs.max()):
        flags.append("edge")
    if not math.isfinite(within):
        flags.append("flat")
    elif not (math.isfinite(low) and math.isfinite(high)):
        flags.append("seeds")
    if len(bad) and (bad.min() > value or bad.max() < value):
        flags.append("diverged")
    levels = np.unique(groups[near])
    offsets = xs[near] - fit.centre
    shape = linear * offsets + square * np.square(offsets)
    level = float(np.mean([(ys[near] - shape)[groups[near] == one].mean() for one in levels]))
    at = value - fit.centre
    loss = level + float(linear * at + square * at * at)
    return Optimum(
        value, low, high, loss, 2 * float(square), noise, freedom, int(near.sum()), len(levels), tuple(flags), within
    )  # fmt: skip


def _half_width(fit: _Fit, value: float, confidence: float) -> float:
    low, high = _fieller(fit, fit.noise * t_quantile(fit.degrees_of_freedom, confidence, 1), value)
    return max(value - low, high - value)


def _with_seeds(fit: _Fit, xs: Array, ys: Array, groups: NDArray[np.int64], value: float) -> tuple[float, float]:
    """Noise and degrees of freedom, the larger for seeds whose optima differ by more than the residuals say."""
    slopes = [
        _own_slope(xs[groups == one], ys[groups == one], float(fit.coefficients[1]), value)
        for one in np.unique(groups)
        if len(np.unique(xs[groups == one])) >= 3
    ]
    count = len(slopes)
    if count < 2 or count < len(np.unique(groups)) or fit.noise == 0:
        return fit.noise, fit.degrees_of_freedom
    between = float(np.var(slopes, ddof=1)) / count
    within = (fit.noise * float(fit.slope_error(np.array([value]))[0])) ** 2
    if between <= within:
        return fit.noise, fit.degrees_of_freedom
    share = within / between
    freedom = 1 / (share / fit.degrees_of_freedom + (1 - share) / (count - 1))
    return fit.noise / math.sqrt(share), freedom


def _own_slope(xs: Array, ys: Array, square: float, value: float) -> float:
    """One seed's slope at the common optimum, with the common curvature."""
    rest = ys - square * np.square(xs - value)
    centred = xs - xs.mean()
    return float(centred @ rest / (centred @ centred))


def _fieller(fit: _Fit, reach: float, value: float) -> tuple[float, float]:
    """The x around the optimum at which the slope is within `reach` unit errors of zero; infinite where it has no end.

    (b + 2as)² ≤ k²(v_b + 4 s c_ab + 4 s² v_a) is a quadratic inequality in the offset s.
    """
    b, a = fit.coefficients
    (v_b, c), (_, v_a) = fit.covariance
    k = reach * reach
    square, linear, constant = 4 * (a * a - k * v_a), 4 * (a * b - k * c), b * b - k * v_b
    inside = linear * linear - 4 * square * constant
    if a <= 0 or square <= 0:
        return -math.inf, math.inf
    root = math.sqrt(max(inside, 0.0))
    low, high = (float((-linear + sign * root) / (2 * square) + fit.centre) for sign in (-1, 1))
    return min(low, value), max(high, value)
