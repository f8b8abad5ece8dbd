"""The lowest point of a curve of losses over log2 of a rate, by three different fits.

`optima.fit_optimum` fits one cubic with a level for each seed, and borrows what few runs cannot
show from earlier records. Here each seed's curve is fitted on its own and nothing is borrowed, so
that differences can be paired by seed, and the shape of the curve is varied instead: a result
counts only if every fit gives it (`agreed`).

A table of losses has one row per seed and one column per rate. NaN is a run without a loss: it is
left out of the fits.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize, minimize_scalar

from mupscale.analysis.estimates import Estimate
from mupscale.errors import DimensionError, OptionError

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]

Place = Literal["inside", "open below", "open above", "too few rates", "only noise"]

_PER_OCTAVE = 64
"""Points of the grid that brackets the lowest point of a curve, before it is refined."""


@dataclass(frozen=True)
class LowestPoint:
    """The lowest point of a fitted curve, between the lowest and the highest fitted rate.

    It is an optimum only `inside`. At an end of the range (`open`) the curve may go on falling
    beyond it. With too few rates, or if noise alone explains the losses, it is not located, and
    `log2_rate` and `loss` are NaN.
    """

    log2_rate: float
    loss: float
    place: Place
    points: int
    "Runs that were fitted."

    @property
    def inside(self) -> bool:
        return self.place == "inside"


@dataclass(frozen=True)
class CurveShape:
    """A kind of curve: `fitted` returns one for rates and losses, None if there is only noise."""

    reach: float
    "Rates within this many octaves of the lowest mean loss are fitted."
    least: int
    "Fewer rates leave no degree of freedom for noise."
    fitted: Callable[[Array, Array], Curve | None]


def _polynomial(degree: int, x: Array, y: Array) -> Curve:
    return np.polynomial.Polynomial.fit(x, y, degree)


@dataclass(frozen=True)
class GaussianProcess:
    """A constant plus a squared exponential process plus noise (Rasmussen & Williams 2006, ch. 2).

    The covariance of losses at x and x' is variance · ((1 − s) exp(−(x − x')²/(2 length²)) + s [x =
    x']), with s the share of noise.
    """

    x: Array
    y: Array
    length: float
    "In octaves."
    noise_share: float

    def _correlation(self, x: Array) -> Array:
        square = np.square(x[:, None] - self.x[None, :])
        return (1 - self.noise_share) * np.exp(-square / (2 * self.length**2))

    @cached_property
    def _factor(self) -> tuple[Array, bool]:
        noise = self.noise_share * np.eye(len(self.x))
        return cho_factor(self._correlation(self.x) + noise, lower=True)

    @cached_property
    def mean(self) -> float:
        """The constant of greatest likelihood, given the other parameters."""
        weights = cho_solve(self._factor, np.ones(len(self.x)))
        return float(weights @ self.y / weights.sum())

    @cached_property
    def variance(self) -> float:
        """Of process and noise together, of greatest likelihood, given the other parameters."""
        rest = self.y - self.mean
        return float(rest @ cho_solve(self._factor, rest)) / len(self.x)

    @property
    def log_likelihood(self) -> float:
        """With that mean and variance."""
        log_determinant = 2 * float(np.log(np.diag(self._factor[0])).sum())
        count = len(self.x)
        return -0.5 * (count * math.log(2 * math.pi * math.e * self.variance) + log_determinant)

    def __call__(self, x: Array) -> Array:
        """The expected loss without noise."""
        weights = cho_solve(self._factor, self.y - self.mean)
        return self.mean + self._correlation(np.atleast_1d(x)) @ weights


def gaussian_process(x: Array, y: Array) -> GaussianProcess | None:
    """The process of greatest likelihood; None if that is noise alone, without a curve.

    The length lies between the smallest step and four times the range. Longer ones give the same
    curve, a polynomial, from a matrix that is harder to invert.
    """
    if np.ptp(y) == 0:
        return None
    steps = np.diff(np.unique(x))
    bounds = [
        (math.log(steps.min()), math.log(4 * np.ptp(x))),
        # A curve as smooth as a parabola is a small part of a long process with a huge variance:
        # the share of noise then is tiny, however noisy the losses are.
        (math.log(1e-10), 0.0),
    ]

    def at(logs: Sequence[float]) -> GaussianProcess:
        return GaussianProcess(x, y, math.exp(logs[0]), math.exp(logs[1]))

    def unlikely(logs: Array) -> float:
        return -at([float(one) for one in logs]).log_likelihood

    # The likelihood has several peaks (a long process with little noise, a short one with much):
    # the best points of a grid are refined, and the best result is kept.
    axes = (np.linspace(*ends, 9) for ends in bounds)
    starts = sorted((np.array(point) for point in itertools.product(*axes)), key=unlikely)[:3]
    found = [minimize(unlikely, start, method="L-BFGS-B", bounds=bounds).x for start in starts]
    best = at([float(one) for one in min([*found, starts[0]], key=unlikely)])
    noise_alone = at([bounds[0][0], 0.0])
    return best if best.log_likelihood > noise_alone.log_likelihood + 1e-6 else None


FITS: Mapping[str, CurveShape] = {
    "quadratic": CurveShape(1.0, 4, partial(_polynomial, 2)),
    "cubic": CurveShape(2.0, 5, partial(_polynomial, 3)),
    # Length, noise, variance and mean are four parameters.
    "Gaussian process": CurveShape(math.inf, 5, gaussian_process),
}
"""Each fit by name: the reach, the least number of rates, and how it is computed."""


def best_column(losses: ArrayLike) -> int | None:
    """The rate with the lowest mean loss over the seeds, of those where each seed has a loss.

    >>> best_column([[2.0, 1.5, math.nan], [2.1, 1.7, 1.0]])
    1
    """
    table = np.atleast_2d(np.asarray(losses, dtype=np.float64))
    means = table.mean(axis=0)
    return None if np.isnan(means).all() else int(np.nanargmin(means))


def lowest_points(
    fit: str, log2_rates: ArrayLike, losses: ArrayLike, *, reach: float = 1.0
) -> tuple[LowestPoint, ...]:
    """The lowest point of each seed's own curve, around the rate with the lowest mean loss. `reach`
    multiplies how far the fit reaches.

    Where that rate is an end of the range, every seed's curve is open there.

    >>> rates = [-9, -8.5, -8, -7.5, -7, -6.5, -6]
    >>> curves = [[2 + (rate + 7.7) ** 2, 3 + (rate + 7.5) ** 2] for rate in rates]
    >>> [round(one.log2_rate, 3) for one in lowest_points("quadratic", rates, np.transpose(curves))]
    [-7.7, -7.5]
    """
    shape = FITS[fit]
    rates, table = _checked(log2_rates, losses)
    best = best_column(table)
    if best is None:
        return (LowestPoint(math.nan, math.nan, "too few rates", 0),) * len(table)
    if rates[best] in (rates.min(), rates.max()):
        place: Place = "open below" if rates[best] == rates.min() else "open above"
        return tuple(LowestPoint(float(rates[best]), float(row[best]), place, 0) for row in table)
    # Rates are sums of steps, and log2 of what was read from a file: rounded in the last digits.
    near = np.abs(rates - rates[best]) <= reach * shape.reach + 1e-6
    return tuple(_lowest(shape, rates, row, near & np.isfinite(row)) for row in table)


def _checked(log2_rates: ArrayLike, losses: ArrayLike) -> tuple[Array, Array]:
    rates = np.asarray(log2_rates, dtype=np.float64)
    table = np.atleast_2d(np.asarray(losses, dtype=np.float64))
    if rates.ndim != 1 or table.shape[1:] != rates.shape:
        raise DimensionError(
            f"{rates.size} rates have losses of shape {table.shape}. Give one row per seed, with "
            "one loss for each rate."
        )
    if not np.isfinite(rates).all() or len(np.unique(rates)) < len(rates):
        raise OptionError("a rate is not finite or occurs twice. Give log2 of different rates.")
    return rates, np.where(np.isfinite(table), table, math.nan)


def _lowest(shape: CurveShape, rates: Array, row: Array, chosen: NDArray[np.bool_]) -> LowestPoint:
    x, y = rates[chosen], row[chosen]
    if len(x) < shape.least:
        return LowestPoint(math.nan, math.nan, "too few rates", len(x))
    # Centred and scaled, so that neither the unit of the rate nor that of the loss matters.
    centre, level, unit = float(x.mean()), float(y.mean()), float(y.std()) or 1.0
    curve = shape.fitted(x - centre, (y - level) / unit)
    if curve is None:
        return LowestPoint(math.nan, math.nan, "only noise", len(x))
    at, height, place = _minimum(curve, float(x.min()) - centre, float(x.max()) - centre)
    return LowestPoint(centre + at, level + unit * height, place, len(x))


def _minimum(curve: Curve, low: float, high: float) -> tuple[float, float, Place]:
    """Of the whole curve between two rates, where it may have several minima."""
    grid = np.linspace(low, high, math.ceil((high - low) * _PER_OCTAVE) + 1)
    heights = curve(grid)
    place = int(np.argmin(heights))
    if place in (0, len(grid) - 1):
        return float(grid[place]), float(heights[place]), "open above" if place else "open below"
    found = minimize_scalar(
        lambda at: float(curve(np.array([at]))[0]),
        bounds=(grid[place - 1], grid[place + 1]),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(found.x), float(found.fun), "inside"


def mean_over_seeds(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The mean of one value per seed, with Student's interval; unbounded for a single seed.

    >>> one = mean_over_seeds([0.1, 0.3])
    >>> round(one.value, 3), round(one.low, 3), round(one.high, 3), one.degrees_of_freedom
    (0.2, -1.071, 1.471, 1)
    """
    if not values:
        raise OptionError("there is no mean over no seeds. Give one value per seed.")
    count = len(values)
    error = float(np.std(values, ddof=1)) / math.sqrt(count) if count > 1 else math.inf
    return Estimate.student(float(np.mean(values)), error, count - 1, confidence)


def slopes_by_seed(sizes: ArrayLike, log2_rates: ArrayLike) -> list[float]:
    """Slope of log2 of the best rate over log2 of the size, in octaves per doubling, for each seed:
    one row per seed, one column per size.

    >>> slopes_by_seed([64, 128, 256], [[-7, -8, -9], [-7, -7.25, -7.5]])
    [-1.0, -0.25]
    """
    x = np.log2(np.asarray(sizes, dtype=np.float64))
    weights = (x - x.mean()) / np.square(x - x.mean()).sum()
    return [float(one) for one in np.atleast_2d(np.asarray(log2_rates, np.float64)) @ weights]


DISAGREE = "undecided: the fits disagree"


@dataclass(frozen=True)
class Agreement:
    """What all fits say of one quantity, and the interval that contains those of all fits."""

    verdict: str
    widest: Estimate | None
    "None unless every fit has a value; the value is the median of theirs."


def agreed(by_fit: Mapping[str, Estimate | None], judge: Callable[[Estimate], str]) -> Agreement:
    """The verdict of `judge` if it is the same with every fit. Nothing else is claimed.

    >>> found = {"quadratic": Estimate(0.3, 0.1, 0.5), "cubic": Estimate(0.2, -0.1, 0.5)}
    >>> both = agreed(found, lambda one: "differs from 0" if one.excludes(0) else "may be 0")
    >>> both.verdict, both.widest.low, both.widest.high
    ('undecided: the fits disagree', -0.1, 0.5)
    """
    missing = [fit for fit, one in by_fit.items() if one is None]
    known = [one for one in by_fit.values() if one is not None]
    if missing or not known:
        without = " and ".join(missing) or "any fit"
        return Agreement(f"undecided: not located by the {without}", None)
    verdicts = {judge(one) for one in known}
    widest = Estimate(
        float(np.median([one.value for one in known])),
        min(one.low for one in known),
        max(one.high for one in known),
        min(one.degrees_of_freedom for one in known),
    )
    return Agreement(verdicts.pop() if len(verdicts) == 1 else DISAGREE, widest)
