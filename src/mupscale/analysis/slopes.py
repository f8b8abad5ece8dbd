"""The slope of log y against log x over a few seeds, with an interval that is valid for three.

The slope is a contrast of the mean log curve, Σ c_v E[log y_v] with c_v = (log x_v − mean)/Σ(log x
− mean)². A curve that is not a power law has a slope too, and its bend is not noise. There are two
estimates of the slope's variance:

- the spread of the seeds' own slopes: unbiased for any noise, but with S − 1 degrees of freedom;
- Σ c_v² σ̂_v², after each seed's level and each value's mean are subtracted: many more degrees of
  freedom, but too small if the noise is largest at the ends of x, or if slopes differ by seed.

The larger one is used, with degrees of freedom between theirs. `drills/slope_coverage.py` compares
this with its alternatives, and reports where the coverage falls short.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from mupscale.errors import DimensionError, NonFiniteError, OptionError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Slope:
    """d log y / d log x; `standard_error` is 0, up to rounding, if seeds differ in level only."""

    value: float
    standard_error: float
    degrees_of_freedom: float
    seeds: int
    values: int

    def interval(self, confidence: float = 0.95, comparisons: int = 1) -> tuple[float, float]:
        """Two-sided Student t interval; valid for `comparisons` intervals jointly (Bonferroni).

        >>> slope = Slope(value=0.5, standard_error=0.1, degrees_of_freedom=4, seeds=3, values=4)
        >>> [round(end, 3) for end in slope.interval()]
        [0.222, 0.778]
        >>> [round(end, 3) for end in slope.interval(comparisons=12)]
        [-0.089, 1.089]
        """
        half = t_quantile(self.degrees_of_freedom, confidence, comparisons) * self.standard_error
        return self.value - half, self.value + half


def fit_slope(x: Sequence[float], y: Sequence[Sequence[float]]) -> Slope:
    """The slope of log y against log x, where `y[s][v]` is the statistic of seed s at `x[v]`.

    A seed's level cancels.

    >>> slope = fit_slope([1, 2, 4], [[1.0, 2.1, 4.0], [3.0, 5.9, 12.2]])
    >>> round(slope.value, 3), round(slope.standard_error, 3)
    (1.006, 0.016)
    """
    logs = _log_table(x, y)
    contrast = log_contrast(x)
    seeds, values = logs.shape
    variance, degrees_of_freedom = _variance(logs, contrast)
    value = float((logs @ contrast).mean())
    return Slope(value, math.sqrt(variance), degrees_of_freedom, seeds, values)


def curve_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of one curve without noise, such as a prediction: what `fit_slope` estimates.

    >>> repetitions = [1, 2, 3, 4, 6, 12]
    >>> round(curve_slope(repetitions, [2 / (1 + math.sqrt(r)) for r in repetitions]), 3)
    -0.323
    """
    contrast = log_contrast(x)
    _check_length(y, "y", len(x))
    return float(_logs(y, "y") @ contrast)


def t_quantile(degrees_of_freedom: float, confidence: float, comparisons: int) -> float:
    """How many standard errors a two-sided interval reaches to each side.

    >>> round(t_quantile(2, confidence=0.95, comparisons=1), 3)
    4.303
    """
    if not 0 < confidence < 1:
        raise OptionError(f"confidence={confidence} must be between 0 and 1, such as 0.95.")
    if comparisons < 1:
        raise OptionError(
            f"comparisons={comparisons} must be at least 1: the number of joint intervals."
        )
    return -float(stdtrit(degrees_of_freedom, (1 - confidence) / comparisons / 2))


def _variance(logs: Array, contrast: Array) -> tuple[float, float]:
    """The variance of the mean slope, and its degrees of freedom."""
    seeds = len(logs)
    of_slopes = float((logs @ contrast).var(ddof=1)) / seeds
    of_values = _variance_by_value(logs, contrast) / seeds
    variance = max(of_slopes, of_values)
    # If the slopes of seeds differ by more than the noise, the variance is mostly an estimate from
    # S slopes, with S − 1 degrees of freedom.
    share = of_values / variance if variance else 1.0
    return variance, (seeds - 1) / (share / _independent_values(contrast) + 1 - share)


def _variance_by_value(logs: Array, contrast: Array) -> float:
    """Σ c_v² σ̂_v², the variance of one seed's slope if its values are independent.

    Subtracting a seed's level reduces equal variances by the factor 1 − 1/V (the HC2 correction).
    """
    seeds, values = logs.shape
    residuals = logs - logs.mean(axis=0)
    residuals = residuals - residuals.mean(axis=1, keepdims=True)
    variances = np.square(residuals).sum(axis=0) / (seeds - 1) / (1 - 1 / values)
    return float(np.square(contrast) @ variances)


def _independent_values(contrast: Array) -> float:
    """Degrees of freedom of Σ c_v² σ̂_v² for each of S − 1 seeds: 1 for two values, V − 1 for equal
    weights.

    Bell & McCaffrey 2002: Satterthwaite's formula under equal variances, (tr MP)²/tr (MP)² with M =
    diag(c²)/(1 − 1/V) and P = I − 11ᵀ/V. Estimated variances would be too rough at three seeds.
    """
    weights = np.square(contrast) / np.square(contrast).sum()
    concentration = float(np.square(weights).sum())
    return 1 / (concentration + (1 - concentration) / (len(contrast) - 1) ** 2)


def log_contrast(x: Sequence[float]) -> Array:
    """Weights that give the least-squares slope of y over log x as a sum."""
    logs = _logs(x, "x")
    if len(set(logs.tolist())) < 2:
        raise OptionError(
            f"x={list(x)} has fewer than two distinct values, so no slope. Measure at another x."
        )
    centred = logs - logs.mean()
    return centred / (centred @ centred)


def _log_table(x: Sequence[float], y: Sequence[Sequence[float]]) -> Array:
    if len(y) < 2:
        raise DimensionError(
            f"y has {len(y)} seeds. One seed gives no interval: its noise is indistinguishable "
            "from its slope. Run at least 2; 3 to 10 are usual."
        )
    for seed, row in enumerate(y):
        _check_length(row, f"y[{seed}]", len(x))
    return np.stack([_logs(row, f"y[{seed}]") for seed, row in enumerate(y)])


def _check_length(row: Sequence[float], name: str, values: int) -> None:
    if len(row) != values:
        raise DimensionError(
            f"{name} has {len(row)} values, but x has {values}. Measure every seed at every x, or "
            "drop the x it lacks."
        )


def _logs(numbers: Sequence[float], name: str) -> Array:
    for position, number in enumerate(numbers):
        if not 0 < number < math.inf:
            raise NonFiniteError(
                f"{name}[{position}]={number} has no finite logarithm. Pass positive, finite "
                "numbers: leave this x out for every seed, or run it again."
            )
    return np.log(np.asarray(numbers, dtype=np.float64))
