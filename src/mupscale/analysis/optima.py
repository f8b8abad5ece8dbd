"""Where a curve of losses has its minimum, with an interval for it.

Near the optimum, losses are fitted by least squares as a cubic in log2 of the rate plus a level for
each seed. A parabola is not enough: measured curves are asymmetric, and with ten seeds the interval
of a parabola covered the optimum in only 15 to 32 % of cases. If there are too few rates to measure
the asymmetry, its size comes from earlier studies (`ASYMMETRY`, from gqa-dense); if there are few
seeds, so does the distance between the optima of seeds (`RECORDED_SPREAD`). With enough rates and
seeds, neither matters.

The interval is Fieller's: all x around the optimum at which the slope is indistinguishable from
zero, |f'(x)| ≤ t·se(f'(x)). It is exact for normal noise and any design, which the delta method is
not. If the curvature is indistinguishable from zero it has no end, and the optimum is `flat`. The
error of the slope has two parts: how far the slopes of the seeds lie apart, and how well the common
bend is known. `drills/optimum_coverage.py` measures the coverage.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mupscale.analysis.slopes import t_quantile
from mupscale.errors import DimensionError, OptionError

Array = NDArray[np.float64]
Groups = NDArray[np.int64]

REACH = 2.0
"""Points within this many octaves (factors of two) of the lowest loss are fitted. Further away, a
cubic does not describe the losses.
"""

ASYMMETRY = 0.2
"""Cubic over square coefficient, per octave, as measured in the cells of gqa-dense."""

RECORDED_SPREAD = 0.1
"""Standard deviation of the optima of seeds, in octaves, beyond their own noise. From the cells of
gqa-dense.
"""

# From 0.75 octaves on, a run that rises 15 times as steeply as the median run has exploded. Nearer,
# noise alone makes a large ratio; curves with the recorded asymmetry differ by a factor of two.
_FAR, _EXPLODED = 0.75, 15.0

# The recorded spread counts as much as three more seeds would: enough to keep two seeds that happen
# to agree from giving a tiny interval, little enough that ten seeds outweigh it.
_RECORDED_FREEDOM = 2.0

# A cubic with a level has four coefficients; the prior on the asymmetry is the point more that
# leaves a degree of freedom for the noise.
_LEAST_POINTS = 4
# With fewer degrees of freedom, a noise estimate is rougher than the biased one of a parabola.
_ENOUGH_FREEDOM = 4


@dataclass(frozen=True)
class Spread:
    """How far the optima of seeds lie apart, noise included, estimated from several cells."""

    variance: float
    "In squared octaves."
    degrees_of_freedom: float


@dataclass(frozen=True)
class Optimum:
    """The minimum of a fitted curve, in log2 units; `low` and `high` are infinite if the data set
    no bound.

    `within` is half the interval for these seeds only: how far more rates could still move it. The
    interval itself is for any seed, and includes how far the optima of seeds lie apart.

    Flags: "edge" (the lowest points lie at an end of the range), "flat" (curvature
    indistinguishable from zero), "seeds" (too few for how far they differ), "diverged" (points
    beyond one side of the optimum diverged or exploded), "few" (too few points for an interval).
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
    within_freedom: float = 0
    "Degrees of freedom of the noise around the curve, for `within`."
    range: tuple[float, float] = (math.nan, math.nan)
    "Of the fitted points."
    bend: tuple[float, ...] = ()
    "The curve above its minimum: coefficients of (x − value)², (x − value)³."
    error: float = math.inf
    "Standard error of the value, for any seed, in octaves."
    bend_error: float = 0.0
    "The part of `error` that no seed's own optimum shows: how well the common bend is known."
    seed_optima: Mapping[int, float] = field(default_factory=dict[int, float])
    "The optimum of each seed with the common bend; empty unless every seed has three rates."
    seed_losses: Mapping[int, float] = field(default_factory=dict[int, float])
    "The loss of each seed at the common optimum."

    @property
    def half_width(self) -> float:
        return max(self.high - self.value, self.value - self.low)

    def loss_at(self, x: float) -> float:
        """The fitted curve, which is only valid near the optimum.

        >>> optimum = fit_optimum([-9, -8, -7, -6, -5], [2.42, 2.20, 2.11, 2.19, 2.41])
        >>> round(optimum.loss_at(-6), 2)
        2.19
        """
        offset = x - self.value
        return self.loss + sum(
            term * offset**power for power, term in enumerate(self.bend, start=2)
        )


@dataclass(frozen=True)
class _Data:
    """Points to fit: log2 rates, losses, and the index of each point's seed."""

    xs: Array
    ys: Array
    groups: Groups

    def where(self, chosen: NDArray[np.bool_]) -> "_Data":
        return _Data(self.xs[chosen], self.ys[chosen], self.groups[chosen])

    @property
    def seeds(self) -> Groups:
        return np.unique(self.groups)


@dataclass(frozen=True)
class _CurveFit:
    """Least squares of losses on a polynomial around `centre` with a level for each seed."""

    centre: float
    coefficients: Array
    "Of the offset, its square, and its cube."
    covariance: Array
    "Of the coefficients, for noise of variance 1."
    noise: float
    degrees_of_freedom: float
    levels: Array
    "Of each seed at the centre, by its index; NaN for one without points."
    residuals: Array
    pull: float
    "Weight of the prior that draws the cubic coefficient to 0."

    def derivative(self, x: float, order: int = 1) -> float:
        polynomial = np.polynomial.Polynomial(np.concatenate([[0.0], self.coefficients]))
        return float(polynomial.deriv(order)(x - self.centre))

    def slope_variance(self, x: float) -> float:
        """Variance of the slope, for noise of variance 1."""
        powers = np.arange(1, len(self.coefficients) + 1)
        row = powers * (x - self.centre) ** (powers - 1)
        return float(row @ self.covariance @ row)

    @property
    def vertex(self) -> float | None:
        """Where the polynomial has its minimum, if it has one."""
        linear, square, *rest = (float(c) for c in self.coefficients)
        cubic = 3 * rest[0] if rest else 0.0
        inside = 4 * square * square - 4 * cubic * linear
        if square <= 0 or inside <= 0:
            return None
        # Of the two roots of the slope, the one with a positive second derivative, √inside. In this
        # form it stays exact as the cubic term goes to 0, where the usual formula is 0/0.
        return self.centre - 2 * linear / (2 * square + math.sqrt(inside))


def fit_optimum(
    x: Sequence[float],
    losses: Sequence[float | None],
    seeds: Sequence[int] | None = None,
    *,
    confidence: float = 0.95,
    reach: float = REACH,
    asymmetry: float = ASYMMETRY,
    spread: Spread | None = None,
) -> Optimum | None:
    """The optimum of losses at x = log2 of a rate; None as a loss is a diverged run. Returns None
    if every run diverged.

    `asymmetry` is the expected size of the cubic term; 0 fits a parabola. `spread` is how far seeds
    lie apart in the other cells of the study.

    >>> optimum = fit_optimum([-9, -8, -7, -6, -5], [2.42, 2.20, 2.11, 2.19, 2.41], asymmetry=0)
    >>> round(optimum.value, 2), round(optimum.low, 2), round(optimum.high, 2), optimum.flags
    (-6.96, -7.23, -6.79, ())
    """
    xs, ys, groups, ended, names = checked_points(x, losses, seeds)
    data, bad = _Data(xs[ended], ys, groups[ended]), xs[~ended]
    if len(ys) == 0:
        return None
    exploded = _exploded(data)
    data, bad = data.where(~exploded), np.concatenate([bad, data.xs[exploded]])
    near = _around(data.xs, _lowest(data), reach)
    fit = _bent(data.where(near), asymmetry)
    # The window is centred on the vertex, which depends on the window. Rounds are limited, since
    # they can alternate between two windows.
    for _ in range(3):
        if fit is None or fit.vertex is None:
            break
        moved = _around(data.xs, _kept_near(fit.vertex, data.xs), reach)
        if np.array_equal(moved, near):
            break
        near, fit = moved, _bent(data.where(moved), asymmetry)
    if fit is None:
        return _too_few(data)
    return _optimum(fit, data, near, bad, names, confidence, spread)


def checked_points(
    points: Sequence[float] | Sequence[tuple[float, float]],
    losses: Sequence[float | None],
    seeds: Sequence[int] | None,
) -> tuple[Array, Array, Groups, NDArray[np.bool_], list[int]]:
    """Points, the losses that are finite, the index of each point's seed, which points have a
    finite loss, and the seeds by index.
    """
    if len(points) != len(losses) or (seeds is not None and len(seeds) != len(points)):
        raise DimensionError(
            f"{len(points)} points have {len(losses)} losses. Give one loss, and one seed, for "
            "each."
        )
    every = np.asarray(points, dtype=np.float64)
    if not np.all(np.isfinite(every)):
        raise OptionError("a point is not finite. Pass log2 of the parameters.")
    values = np.array([math.nan if loss is None else loss for loss in losses], dtype=np.float64)
    ended = np.isfinite(values)
    names, groups = np.unique(
        np.zeros(len(every), int) if seeds is None else np.asarray(seeds), return_inverse=True
    )
    return every, values[ended], groups.astype(np.int64), ended, [int(name) for name in names]


def _exploded(data: _Data) -> NDArray[np.bool_]:
    """Runs that ended so far above the rest that they are not part of the curve: as good as
    diverged.

    The measure is height over squared distance. It is the same everywhere on a parabola, and within
    a factor of two on curves with the recorded asymmetry, wherever the points lie.
    """
    above = data.ys.copy()
    for one in data.seeds:
        above[data.groups == one] -= data.ys[data.groups == one].min()
    distances = np.abs(data.xs - data.xs[int(np.argmin(above))])
    far = distances >= _FAR
    if far.sum() < _LEAST_POINTS:
        return np.zeros(len(data.xs), dtype=np.bool_)
    rise = np.where(far, above / np.maximum(distances, _FAR) ** 2, 0.0)
    return rise > _EXPLODED * float(np.median(rise[far]))


def _lowest(data: _Data) -> float:
    """The x of the lowest mean loss, after each seed's level is subtracted if it can be fitted.

    Without that, a lucky seed that was run at few rates would decide where the minimum is.
    """
    fit = _fitted(data, 2)
    level = np.zeros(len(data.xs)) if fit is None else fit.levels[data.groups]
    rates = np.unique(data.xs)
    means = [float((data.ys - level)[data.xs == rate].mean()) for rate in rates]
    return float(rates[int(np.argmin(means))])


def _around(xs: Array, centre: float, reach: float) -> NDArray[np.bool_]:
    """Points within reach of the centre, and at least the nearest four rates."""
    distances = np.abs(xs - centre)
    nearest = np.unique(np.round(distances, 9))
    needed = nearest[min(len(nearest), _LEAST_POINTS) - 1]
    return distances <= max(reach, needed) + 1e-9


def _kept_near(vertex: float, xs: Array) -> float:
    """The vertex, at most a quarter of the range outside of it: no fit is valid further out."""
    span = float(xs.max() - xs.min())
    return float(np.clip(vertex, xs.min() - span / 4, xs.max() + span / 4))


def _bent(data: _Data, asymmetry: float) -> _CurveFit | None:
    """A cubic whose asymmetry combines the data with the prior; a parabola if that cubic has no
    minimum.
    """
    parabola = _fitted(data, 2)
    if parabola is None or asymmetry == 0 or parabola.coefficients[1] <= 0:
        return parabola
    free = _fitted(data, 3)
    # To a parabola, asymmetry looks like noise. If the points allow it, the noise is that around a
    # cubic without a prior.
    enough = free is not None and free.degrees_of_freedom >= _ENOUGH_FREEDOM
    noise = free.noise if free is not None and enough else parabola.noise
    # A normal prior on the cubic coefficient, with mean 0 and sd asymmetry × square coefficient, is
    # one more observation with weight noise / sd. Without noise it would vanish, and three rates
    # would leave the coefficient undetermined: hence the floor.
    pull = max(noise, 1e-4 * float(data.ys.std())) / (asymmetry * float(parabola.coefficients[1]))
    cubic = _fitted(data, 3, pull=pull)
    return parabola if cubic is None or cubic.vertex is None else cubic


def _fitted(
    data: _Data, terms: int, *, pull: float = 0.0, own_slopes: bool = False
) -> _CurveFit | None:
    """A polynomial with a level for each seed; None if there are too few points for it and its
    noise.

    `pull` is the weight of the prior on the cubic term. With `own_slopes`, each seed has its own
    linear term, and so its own optimum; the slope of the fit is the mean of theirs.
    """
    seeds = data.seeds
    belongs = (data.groups[:, None] == seeds).astype(np.float64)
    # Centred offsets keep the normal equations well conditioned: log2 rates are all around -8.
    offsets = data.xs - (centre := float(data.xs.mean()))
    slopes = offsets[:, None] * belongs if own_slopes else offsets[:, None]
    design = np.column_stack([slopes, *(offsets**power for power in range(2, terms + 1)), belongs])
    count = slopes.shape[1]
    rows, values = design, data.ys
    if pull:
        prior = np.zeros((1, design.shape[1]))
        prior[0, count + terms - 2] = pull
        rows, values = np.vstack([design, prior]), np.append(values, 0.0)
    freedom = len(values) - design.shape[1]
    if freedom < 1 or np.linalg.matrix_rank(rows) < design.shape[1]:
        return None
    solution: Array = np.linalg.lstsq(rows, values, rcond=None)[0].astype(np.float64)
    to_mean = np.zeros((terms, design.shape[1]))
    to_mean[0, :count] = 1 / count
    to_mean[range(1, terms), range(count, count + terms - 1)] = 1.0
    covariance: Array = (to_mean @ np.linalg.inv(rows.T @ rows) @ to_mean.T).astype(np.float64)
    levels = np.full(int(data.groups.max()) + 1, math.nan)
    levels[seeds] = solution[count + terms - 1 :]
    errors = values - rows @ solution
    noise = math.sqrt(errors @ errors / freedom)
    residuals = data.ys - design @ solution
    return _CurveFit(
        centre, to_mean @ solution, covariance, noise, freedom, levels, residuals, pull
    )


def _too_few(data: _Data) -> Optimum:
    lowest = _lowest(data)
    ends = (float(data.xs.min()), float(data.xs.max()))
    return Optimum(
        value=lowest,
        low=-math.inf,
        high=math.inf,
        loss=float(data.ys[data.xs == lowest].mean()),
        curvature=math.nan,
        noise=math.nan,
        degrees_of_freedom=0,
        points=len(data.xs),
        seeds=len(data.seeds),
        flags=("few", "edge") if lowest in ends else ("few",),
        range=ends,
    )


def _optimum(
    fit: _CurveFit,
    data: _Data,
    near: NDArray[np.bool_],
    bad: Array,
    names: Sequence[int],
    confidence: float,
    spread: Spread | None,
) -> Optimum:
    fitted = data.where(near)
    value = _lowest(data) if fit.vertex is None else _kept_near(fit.vertex, data.xs)
    curvature = fit.derivative(value, 2)
    own = _own_slopes(fit, fitted)
    noise, freedom, bend = _error(fit, fitted, value, curvature, own, spread)
    ends = (float(fitted.xs.min()), float(fitted.xs.max()))
    low, high = _fieller(fit, noise * t_quantile(freedom, confidence, 1), value, ends)
    within = _within(fit, fitted, value, ends, confidence)
    # Each seed's loss at the optimum is its level plus the common curve there; the loss is their
    # mean, so that a seed that was run at more rates does not count more.
    at = value - fit.centre
    shape = sum(float(term) * at**power for power, term in enumerate(fit.coefficients, start=1))
    levels = {names[one]: float(fit.levels[one]) + shape for one in fitted.seeds}
    curved = curvature > 0
    return Optimum(
        value=value,
        low=low,
        high=high,
        loss=float(np.mean(list(levels.values()))),
        curvature=curvature,
        noise=noise,
        degrees_of_freedom=freedom,
        points=int(near.sum()),
        seeds=len(fitted.seeds),
        flags=_flags(value, low, high, within, data.xs, bad),
        within=within,
        within_freedom=fit.degrees_of_freedom,
        range=ends,
        bend=(curvature / 2, *(float(c) for c in fit.coefficients[2:])),
        # An error in the slope moves the optimum by that error over the curvature.
        error=noise * math.sqrt(fit.slope_variance(value)) / curvature if curved else math.inf,
        bend_error=bend / curvature if curved else 0.0,
        seed_optima={names[k]: value - s / curvature for k, s in own.items()} if curved else {},
        seed_losses=levels,
    )


def _flags(
    value: float, low: float, high: float, within: float, xs: Array, bad: Array
) -> tuple[str, ...]:
    flags: list[str] = []
    if not (xs.min() < value < xs.max()):
        flags.append("edge")
    # More rates help against "flat", more seeds against "seeds": a curve that bounds its optimum
    # for these seeds, but not for any seed, needs the latter.
    if not math.isfinite(within):
        flags.append("flat")
    elif not (math.isfinite(low) and math.isfinite(high)):
        flags.append("seeds")
    if len(bad) and (bad.min() > value or bad.max() < value):
        flags.append("diverged")
    return tuple(flags)


def _own_slopes(fit: _CurveFit, data: _Data) -> dict[int, float]:
    """How much each seed's slope differs from the common one; empty unless every seed has three
    rates.
    """
    by_seed = {int(one): data.groups == one for one in data.seeds}
    if any(len(np.unique(data.xs[chosen])) < 3 for chosen in by_seed.values()):
        return {}
    slopes: dict[int, float] = {}
    for one, chosen in by_seed.items():
        centred = data.xs[chosen] - data.xs[chosen].mean()
        slopes[one] = float(centred @ fit.residuals[chosen] / (centred @ centred))
    return slopes


def _error(
    fit: _CurveFit,
    data: _Data,
    value: float,
    curvature: float,
    own: Mapping[int, float],
    spread: Spread | None,
) -> tuple[float, float, float]:
    """The noise that gives the slope its error for any seed, its degrees of freedom, and the part
    of the error that the bend adds.

    All variances are of the slope: an optimum's, in squared octaves, times curvature².
    """
    unit = fit.slope_variance(value)
    count = len(data.seeds)
    recorded = (RECORDED_SPREAD * curvature) ** 2
    apart = None
    if count > 1 and own:
        apart = _fitted(data, len(fit.coefficients), own_slopes=True, pull=fit.pull)
    if apart is None:  # these seeds do not show how far they lie apart: the records do
        total, freedom = summed(
            [(fit.noise**2 * unit, fit.degrees_of_freedom), (recorded / count, math.inf)]
        )
        return math.sqrt(total / unit), freedom, 0.0
    # `jitter` is what noise alone adds to the variance of one seed's slope.
    by_seed = [data.xs[data.groups == one] for one in data.seeds]
    squares = [np.square(xs - xs.mean()).sum() for xs in by_seed]
    jitter = apart.noise**2 * float(np.mean([1 / square for square in squares]))
    if spread is None:
        variance, freedom = float(np.var(list(own.values()), ddof=1)), count - 1.0
    else:
        variance, freedom = spread.variance * curvature**2, spread.degrees_of_freedom
    # The records enter like further seeds: variances weighted by degrees of freedom (an inverse
    # gamma prior). The result is at least the jitter: slopes cannot differ by less than noise.
    expected = jitter + recorded
    variance = (freedom * variance + _RECORDED_FREEDOM * expected) / (freedom + _RECORDED_FREEDOM)
    bend = max(apart.noise**2 * unit - jitter / count, 0.0)
    total = max(variance, jitter) / count + bend
    # Satterthwaite weights each part's degrees of freedom by its share of the error. A few seeds
    # estimate that share badly, so the expected one is used: the degrees of freedom then do not
    # depend on the luck of the seeds.
    seeds = (expected / count, freedom + _RECORDED_FREEDOM)
    _, freedom = summed([seeds, (bend, apart.degrees_of_freedom)])
    return math.sqrt(total / unit), freedom, math.sqrt(bend)


def summed(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Variances that add up, with Satterthwaite's degrees of freedom.

    >>> summed([(1.0, 4), (1.0, 4)])
    (2.0, 8.0)
    """
    total = sum(variance for variance, _ in parts)
    inverse = sum(variance**2 / freedom for variance, freedom in parts)
    return total, total**2 / inverse if inverse > 0 else math.inf


def _within(
    fit: _CurveFit, data: _Data, value: float, ends: tuple[float, float], confidence: float
) -> float:
    """Half the interval for these seeds, by the better of two fits: with one optimum for all seeds,
    or with one for each.
    """
    own = _fitted(data, len(fit.coefficients), own_slopes=True, pull=fit.pull) or fit
    halves: list[float] = []
    for one in (fit, own):
        reach = one.noise * t_quantile(one.degrees_of_freedom, confidence, 1)
        low, high = _fieller(one, reach, value, ends)
        halves.append(max(value - low, high - value))
    return min(halves)


def _fieller(
    fit: _CurveFit, reach: float, value: float, ends: tuple[float, float]
) -> tuple[float, float]:
    """The x around the optimum at which the slope is within `reach` unit errors of zero; an end is
    infinite if there is none.

    The ends are roots of f'(s)² − reach²·var f'(s), a polynomial in the offset s.
    """
    terms = len(fit.coefficients)
    powers = np.arange(1, terms + 1)
    slope = powers * fit.coefficients
    if fit.coefficients[1] <= 0 or fit.vertex is None:
        return -math.inf, math.inf
    variance = np.zeros(2 * terms - 1)
    for i in range(terms):
        for j in range(terms):
            variance[i + j] += powers[i] * powers[j] * fit.covariance[i, j]
    beyond = np.convolve(slope, slope) - reach * reach * variance
    # For a parabola, a leading coefficient ≤ 0 means that its curvature is indistinguishable from
    # zero: the x at which the slope is not significant then reach to infinity.
    if terms == 2 and beyond[-1] <= 0:
        return -math.inf, math.inf
    roots = np.roots(beyond[::-1])
    # Rounding turns a double root into a pair with tiny imaginary parts.
    real = roots[np.abs(roots.imag) < 1e-4].real + fit.centre
    low = max((float(root) for root in real if root <= fit.vertex), default=-math.inf)
    high = min((float(root) for root in real if root >= fit.vertex), default=math.inf)
    if terms > 2:
        # A cubic turns around somewhere outside its points: a root out there is not an end.
        room = (ends[1] - ends[0]) / 4
        low = low if low >= ends[0] - room else -math.inf
        high = high if high <= ends[1] + room else math.inf
    return min(low, value), max(high, value)
