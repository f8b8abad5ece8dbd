"""Where a curve of losses has its minimum, with an interval for it.

Losses near the optimum are a cubic in log2 of the rate plus a level for each seed, fitted by least
squares to the points around the minimum. A parabola alone will not do: recorded curves lean to one
side, and with ten seeds its interval held the optimum in 15 to 32 % of cases. Where the rates are
too few to tell how much a curve leans, the records of `gqa-dense` say how much to allow for
(`ASYMMETRY`); where seeds are few, they say how far optima of seeds lie apart (`RECORDED_SPREAD`).
With rates and seeds enough, neither matters.

The interval is Fieller's: all x around the optimum at which the slope cannot be told from zero,
|f'(x)| ≤ t·se(f'(x)). It is exact for normal noise whatever the design, where the delta method is
not; if the curvature cannot be told from zero it has no end, and the optimum is `flat`. The error
of the slope has two parts: how far the seeds' own slopes lie apart, and what the common bend adds.
`drills/optimum_coverage.py` measures how often it holds.
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
"""Points this many powers of two to either side of the lowest loss are fitted."""

ASYMMETRY = 0.2
"""How much curves lean: the cubic term over the square one, per octave, as in the cells of
gqa-dense.
"""

RECORDED_SPREAD = 0.1
"""Octaves by which optima of seeds differ, as a standard deviation, beyond their own noise. Cells
of gqa-dense.
"""

_FAR, _EXPLODED = 0.75, 15.0
"""From so many octaves on, a run that rises so many times as steeply as the median run has
exploded.
"""

_RECORDED_FREEDOM = 2.0
"""How much the recorded spread counts beside that of the seeds at hand: as much as three seeds
more.
"""

_LEAST_POINTS = 4
_ENOUGH_FREEDOM = 4
"""Degrees of freedom with which a noise is worth something."""


@dataclass(frozen=True)
class Spread:
    """How far the optima of seeds lie apart, their noise included, where several cells tell it
    together.
    """

    variance: float
    "In squared octaves."
    degrees_of_freedom: float


@dataclass(frozen=True)
class Optimum:
    """The minimum of a fitted curve, in log2 units; `low` and `high` are infinite where the data
    set no bound.

    `within` is half the interval for these seeds alone: how far more rates could still move it. The
    interval itself is for any seed, and counts how far the optima of seeds lie apart.

    Flags: "edge" (the lowest points lie at an end of what was tried), "flat" (curvature not told
    from zero), "seeds" (too few for how far they differ), "diverged" (points beyond one side of the
    optimum did not end, or exploded), "few" (too few points for an interval).
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
    "Degrees of freedom of the noise around the curve, on which that rests."
    range: tuple[float, float] = (math.nan, math.nan)
    "Of the points that were fitted."
    bend: tuple[float, ...] = ()
    "The curve above its minimum: coefficients of (x − value)², (x − value)³."
    error: float = math.inf
    "Standard error of the value, for any seed, in octaves."
    bend_error: float = 0.0
    "That part of it which no seed's own optimum shows: how well the common bend is known."
    seed_optima: Mapping[int, float] = field(default_factory=dict[int, float])
    "Of each seed, with the common bend; only where every seed has three rates."
    seed_losses: Mapping[int, float] = field(default_factory=dict[int, float])
    "Of each seed, at the common optimum."

    @property
    def half_width(self) -> float:
        return max(self.high - self.value, self.value - self.low)

    def loss_at(self, x: float) -> float:
        """Of the fitted curve, which is worth something near the optimum only.

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
    """Points to be fitted: log2 rates, losses, and the number of each point's seed."""

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
    "Of each seed at the centre, by its number; NaN for one without points."
    residuals: Array
    pull: float
    "What draws the cubic term to 0."

    def derivative(self, x: float, order: int = 1) -> float:
        polynomial = np.polynomial.Polynomial(np.concatenate([[0.0], self.coefficients]))
        return float(polynomial.deriv(order)(x - self.centre))

    def slope_variance(self, x: float) -> float:
        """Of the slope, for noise of variance 1."""
        row = _slope_row(x - self.centre, len(self.coefficients))
        return float(row @ self.covariance @ row)

    @property
    def vertex(self) -> float | None:
        """Where the polynomial has its minimum, if it has one."""
        linear, square, *rest = (float(c) for c in self.coefficients)
        cubic = 3 * rest[0] if rest else 0.0
        inside = 4 * square * square - 4 * cubic * linear
        if square <= 0 or inside <= 0:
            return None
        # The root at which the second derivative, √inside, is positive; written so that cubic = 0
        # is no special case.
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
    """The optimum of losses at x = log2 of a rate; None stands for a run that diverged. None if no
    run ended.

    `asymmetry` is how much the curve is expected to lean; 0 fits a parabola. `spread` is what other
    cells of the study say of its seeds.

    >>> optimum = fit_optimum([-9, -8, -7, -6, -5], [2.42, 2.20, 2.11, 2.19, 2.41], asymmetry=0)
    >>> round(optimum.value, 2), round(optimum.low, 2), round(optimum.high, 2), optimum.flags
    (-6.96, -7.23, -6.79, ())
    """
    data, bad, names = _points(x, losses, seeds)
    if len(data.xs) == 0:
        return None
    exploded = _exploded(data)
    data, bad = data.where(~exploded), np.concatenate([bad, data.xs[exploded]])
    near = _around(data.xs, _lowest(data), reach)
    fit = _bent(data.where(near), asymmetry)
    for _ in range(3):  # the window follows the vertex, which the window decides
        if fit is None or fit.vertex is None:
            break
        moved = _around(data.xs, _kept_near(fit.vertex, data.xs), reach)
        if np.array_equal(moved, near):
            break
        near, fit = moved, _bent(data.where(moved), asymmetry)
    if fit is None:
        return _too_few(data)
    return _optimum(fit, data, near, bad, names, confidence, spread)


def _points(
    x: Sequence[float], losses: Sequence[float | None], seeds: Sequence[int] | None
) -> tuple[_Data, Array, list[int]]:
    """Runs that ended, where others diverged, and the names of the seeds."""
    if len(x) != len(losses) or (seeds is not None and len(seeds) != len(x)):
        raise DimensionError(
            f"{len(x)} points have {len(losses)} losses. Give one loss, and one seed, for each."
        )
    if not np.all(np.isfinite(np.asarray(x, dtype=np.float64))):
        raise OptionError("a point is not finite. Pass log2 of the rates.")
    ended = np.array([loss is not None and math.isfinite(loss) for loss in losses], dtype=bool)
    xs = np.asarray(x, dtype=np.float64)
    ys = np.array(
        [loss for loss, good in zip(losses, ended, strict=True) if good], dtype=np.float64
    )
    names, groups = np.unique(
        np.zeros(len(xs), int) if seeds is None else np.asarray(seeds), return_inverse=True
    )
    return (
        _Data(xs[ended], ys, groups[ended].astype(np.int64)),
        xs[~ended],
        [int(name) for name in names],
    )


def _exploded(data: _Data) -> NDArray[np.bool_]:
    """Runs that ended, but so far above the rest that they are no part of the curve: as good as
    diverged.

    Told by how steeply the loss rises, height over squared distance, which is the same everywhere
    on a parabola and within a factor of two on curves that lean as recorded, wherever the points
    lie.
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
    """The x of the lowest mean loss, once each seed's own level is taken out, as far as it can be
    told.
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
    """Within a step of what was tried."""
    span = float(xs.max() - xs.min())
    return float(np.clip(vertex, xs.min() - span / 4, xs.max() + span / 4))


def _bent(data: _Data, asymmetry: float) -> _CurveFit | None:
    """A cubic that leans as much as the data and the records say together; a parabola where that
    has no minimum.
    """
    parabola = _fitted(data, 2)
    if parabola is None or asymmetry == 0 or parabola.coefficients[1] <= 0:
        return parabola
    free = _fitted(data, 3)
    # To a parabola a lean looks like noise: where the points can tell, the noise is that around a
    # free cubic.
    noise = (
        free.noise
        if free is not None and free.degrees_of_freedom >= _ENOUGH_FREEDOM
        else parabola.noise
    )
    # Without noise the pull vanishes, and three rates would leave the cubic term open.
    pull = max(noise, 1e-4 * float(data.ys.std())) / (asymmetry * float(parabola.coefficients[1]))
    cubic = _fitted(data, 3, pull=pull)
    return parabola if cubic is None or cubic.vertex is None else cubic


def _fitted(
    data: _Data, terms: int, *, pull: float = 0.0, own_slopes: bool = False
) -> _CurveFit | None:
    """A polynomial with a level for each seed; None without points enough for it and its noise.

    `pull` draws the cubic term to 0, as one observation more. With `own_slopes`, each seed has an
    optimum of its own, and the slope is the mean of theirs.
    """
    seeds = data.seeds
    belongs = (data.groups[:, None] == seeds).astype(np.float64)
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
    return _CurveFit(
        centre,
        to_mean @ solution,
        covariance,
        noise,
        freedom,
        levels,
        data.ys - design @ solution,
        pull,
    )


def _slope_row(offset: float, terms: int) -> Array:
    return np.array([power * offset ** (power - 1) for power in range(1, terms + 1)])


def _too_few(data: _Data) -> Optimum:
    lowest = _lowest(data)
    flags = ("few", "edge") if lowest in (data.xs.min(), data.xs.max()) else ("few",)
    loss = float(data.ys[data.xs == lowest].mean())
    return Optimum(
        lowest, -math.inf, math.inf, loss, math.nan, math.nan, 0, len(data.xs), len(data.seeds), flags,
        range=(float(data.xs.min()), float(data.xs.max())),
    )  # fmt: skip


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
    flags = _flags(value, low, high, within, data.xs, bad)
    # The mean over seeds of what is left of a loss without the curve.
    at = value - fit.centre
    shape = sum(float(term) * at**power for power, term in enumerate(fit.coefficients, start=1))
    levels = {names[one]: float(fit.levels[one]) + shape for one in fitted.seeds}
    return Optimum(
        value, low, high, float(np.mean(list(levels.values()))), curvature, noise, freedom, int(near.sum()),
        len(fitted.seeds), flags, within, fit.degrees_of_freedom, ends,
        error=noise * math.sqrt(fit.slope_variance(value)) / curvature if curvature > 0 else math.inf,
        bend_error=bend / curvature if curvature > 0 else 0.0,
        bend=(curvature / 2, *(float(c) for c in fit.coefficients[2:])),
        seed_optima={names[one]: value - slope / curvature for one, slope in own.items()} if curvature > 0 else {},
        seed_losses=levels,
    )  # fmt: skip


def _flags(
    value: float, low: float, high: float, within: float, xs: Array, bad: Array
) -> tuple[str, ...]:
    flags: list[str] = []
    if not (xs.min() < value < xs.max()):
        flags.append("edge")
    if not math.isfinite(within):
        flags.append("flat")
    elif not (math.isfinite(low) and math.isfinite(high)):
        flags.append("seeds")
    if len(bad) and (bad.min() > value or bad.max() < value):
        flags.append("diverged")
    return tuple(flags)


def _own_slopes(fit: _CurveFit, data: _Data) -> dict[int, float]:
    """By how much each seed's slope differs from the common one; nothing unless every seed has
    three rates.
    """
    seeds = data.seeds
    if any(len(np.unique(data.xs[data.groups == one])) < 3 for one in seeds):
        return {}
    return {
        int(one): _slope(data.xs[data.groups == one], fit.residuals[data.groups == one])
        for one in seeds
    }


def _slope(xs: Array, ys: Array) -> float:
    centred = xs - xs.mean()
    return float(centred @ ys / (centred @ centred))


def _error(
    fit: _CurveFit,
    data: _Data,
    value: float,
    curvature: float,
    own: Mapping[int, float],
    spread: Spread | None,
) -> tuple[float, float, float]:
    """The noise that gives the slope its error for any seed, its degrees of freedom, and what the
    bend adds to it.
    """
    unit = fit.slope_variance(value)
    count = len(data.seeds)
    recorded = (RECORDED_SPREAD * curvature) ** 2
    apart = (
        _fitted(data, len(fit.coefficients), own_slopes=True, pull=fit.pull)
        if count > 1 and own
        else None
    )
    if apart is None:  # the seeds say nothing of how far they lie apart
        total, freedom = summed(
            [(fit.noise**2 * unit, fit.degrees_of_freedom), (recorded / count, math.inf)]
        )
        return math.sqrt(total / unit), freedom, 0.0
    centred = [
        np.square(xs - xs.mean()).sum()
        for xs in (data.xs[data.groups == one] for one in data.seeds)
    ]
    jitter = apart.noise**2 * float(np.mean([1 / sum_of_squares for sum_of_squares in centred]))
    variance, freedom = (
        (float(np.var(list(own.values()), ddof=1)), count - 1.0)
        if spread is None
        else (spread.variance * curvature**2, spread.degrees_of_freedom)
    )
    expected = jitter + recorded
    variance = (freedom * variance + _RECORDED_FREEDOM * expected) / (freedom + _RECORDED_FREEDOM)
    bend = max(apart.noise**2 * unit - jitter / count, 0.0)
    total = max(variance, jitter) / count + bend
    # A few seeds are too rough to say what share of the error they are: that is taken as recorded.
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
    """Which of two fits, seeds with one optimum or with their own, is the narrower: nothing is said
    of other seeds.
    """
    own = _fitted(data, len(fit.coefficients), own_slopes=True, pull=fit.pull) or fit
    halves: list[float] = []
    for one in (fit, own):
        low, high = _fieller(
            one, one.noise * t_quantile(one.degrees_of_freedom, confidence, 1), value, ends
        )
        halves.append(max(value - low, high - value))
    return min(halves)


def _fieller(
    fit: _CurveFit, reach: float, value: float, ends: tuple[float, float]
) -> tuple[float, float]:
    """The x around the optimum at which the slope is within `reach` unit errors of zero; infinite
    where it has no end.

    Ends are roots of f'(s)² − k²·var f'(s), a polynomial in the offset s. Beyond the points, a
    cubic says nothing.
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
    if terms == 2 and beyond[-1] <= 0:
        return -math.inf, math.inf
    roots = np.roots(beyond[::-1])
    # A double root comes out as a pair that is not quite real.
    real = roots[np.abs(roots.imag) < 1e-4].real + fit.centre
    low = max((float(root) for root in real if root <= fit.vertex), default=-math.inf)
    high = min((float(root) for root in real if root >= fit.vertex), default=math.inf)
    if terms > 2:
        room = (ends[1] - ends[0]) / 4
        low, high = (
            (low if low >= ends[0] - room else -math.inf),
            (high if high <= ends[1] + room else math.inf),
        )
    return min(low, value), max(high, value)
