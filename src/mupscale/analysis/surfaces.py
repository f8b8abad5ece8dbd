"""Where a surface of losses over two parameters has its minimum, with intervals and their
correlation.

Near the minimum, losses are fitted as a quadratic in log2 of both parameters plus a level for each
seed, with cubic terms for the same asymmetry as in curves (`optima`). The minimum has the region of
Box & Hunter (1954): all points at which the gradient is indistinguishable from zero, gᵀ V⁻¹ g ≤ 2F.
The interval of one parameter is the profile of the same quantity, with t² in place of 2F; for a
single parameter that is Fieller's interval. How far seeds lie apart comes from earlier studies,
since sweeps of two parameters usually have one seed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.optima import ASYMMETRY, RECORDED_SPREAD, checked_points
from mupscale.analysis.slopes import t_quantile

Array = NDArray[np.float64]

SHARE = 0.5
"""The share of the points that is fitted: those nearest to the minimum. Further away, losses are
not quadratic.
"""

# A quadratic in two parameters with a level has six coefficients: twice as many points.
_LEAST_POINTS = 12
_GRID = 81
# Runs this many times as far above the lowest loss as the median run are not part of the bowl.
_EXPLODED = 12.0


@dataclass(frozen=True)
class Surface:
    """The minimum of a quadratic in log2 of two parameters.

    `correlation` is that of the two estimates. Flags: "few" (too few points to fit) and "saddle"
    (no minimum), for which the value is the lowest point; "edge" (outside the range), "flat" (an
    interval has no end), "diverged" (a third or more of the runs did).
    """

    names: tuple[str, str]
    found: Mapping[str, Estimate]
    loss: float
    correlation: float
    hessian: tuple[tuple[float, float], tuple[float, float]]
    noise: float
    points: int
    seeds: int
    flags: tuple[str, ...]
    errors: Mapping[str, float] = field(default_factory=dict[str, float])
    "Standard errors of the two, for any seed, in octaves."
    region: tuple[tuple[float, float], ...] = ()
    "The outline of the joint region, for drawing; empty if it has no end."


@dataclass(frozen=True)
class _SurfaceFit:
    """A cubic in the offset z = (u, v) from `centre`; coefficients in the order of `_POWERS`."""

    centre: Array
    coefficients: Array
    covariance: Array
    "Of the coefficients, for noise of variance 1."
    noise: float
    degrees_of_freedom: int
    level: float
    seeds: int

    def derivatives(self, z: Array, order: tuple[int, int]) -> Array:
        """The derivative of this order at each offset, as a row of factors on the coefficients."""
        return np.column_stack([_term(z, powers, order) for powers in _POWERS])

    def hessian(self, z: Array) -> Array:
        uu, uv, vv = (
            float(self.derivatives(z[None], order)[0] @ self.coefficients)
            for order in ((2, 0), (1, 1), (0, 2))
        )
        return np.array([[uu, uv], [uv, vv]])

    def gradients(self, z: Array) -> tuple[Array, Array]:
        """The gradients at offsets z (n×2), and their covariances (n×2×2)."""
        rows = np.stack([self.derivatives(z, (1, 0)), self.derivatives(z, (0, 1))], axis=1)
        return rows @ self.coefficients, self.noise**2 * (
            rows @ self.covariance @ rows.transpose(0, 2, 1)
        )

    @cached_property
    def minimum(self) -> Array | None:
        """The offset with gradient zero, by Newton's method from the centre; None if there is no
        minimum nearby.
        """
        z = np.zeros(2)
        for _ in range(30):
            hessian = self.hessian(z)
            if np.linalg.eigvalsh(hessian)[0] <= 0:
                return None
            step = np.linalg.solve(hessian, self.gradients(z[None])[0][0])
            z = z - step
            if np.abs(step).max() < 1e-10:
                return z
        return None

    @cached_property
    def tilt(self) -> Array:
        """Covariance of the gradient over seeds, from the recorded spread of the rate's optimum.

        Proportional to the hessian: a seed tilts the bowl with no preferred direction, in units in
        which the bowl is round.
        """
        assert self.minimum is not None
        hessian = self.hessian(self.minimum)
        return RECORDED_SPREAD**2 * hessian[0, 0] * hessian / self.seeds

    def distance(self, z: Array) -> Array:
        """gᵀ V⁻¹ g at offsets z: how far the gradient is from zero, in squared standard errors."""
        gradients, variances = self.gradients(z)
        solved = np.linalg.solve(variances + self.tilt, gradients[:, :, None])[:, :, 0]
        return np.einsum("ni,ni->n", gradients, solved)


_POWERS = ((1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (3, 0), (2, 1), (1, 2), (0, 3))


def _term(z: Array, powers: tuple[int, int], order: tuple[int, int]) -> Array:
    """A derivative of u^i v^j.

    >>> _term(np.array([[2.0, 3.0]]), (2, 1), (1, 0))
    array([12.])
    """
    value = np.ones(len(z))
    for axis, (power, times) in enumerate(zip(powers, order, strict=True)):
        value = value * (
            math.perm(power, times) * z[:, axis] ** (power - times) if power >= times else 0.0
        )
    return value


def fit_surface(
    points: Sequence[tuple[float, float]],
    losses: Sequence[float | None],
    seeds: Sequence[int] | None = None,
    *,
    names: tuple[str, str] = ("lr", "weight_decay"),
    confidence: float = 0.95,
) -> Surface | None:
    """The minimum of losses at points = log2 of two parameters; None as a loss is a diverged run.

    >>> import itertools
    >>> grid = list(itertools.product(range(-8, -3), range(-4, 2)))
    >>> losses = [2 + (x + 6.2) ** 2 + (y + 1.4) ** 2 + (x + 6.2) * (y + 1.4) / 2 for x, y in grid]
    >>> surface = fit_surface(grid, losses)
    >>> {name: round(one.value, 3) for name, one in surface.found.items()}
    {'lr': -6.2, 'weight_decay': -1.4}
    """
    every, ys, seed_of, ended, _ = checked_points(points, losses, seeds)
    if len(ys) == 0:
        return None
    xy, groups = every.reshape(-1, 2)[ended], seed_of[ended]
    flags = ("diverged",) if 3 * (len(losses) - len(ys)) >= len(losses) else ()
    lowest = int(np.argmin(ys))
    fit = _around(xy, ys, groups, xy[lowest]) if len(xy) >= _LEAST_POINTS else None
    if fit is None or fit[0].minimum is None:
        return _lowest(names, xy, ys, groups, lowest, ("few" if fit is None else "saddle", *flags))
    if _far_out(fit[0].centre + fit[0].minimum, xy):
        return _lowest(names, xy, ys, groups, lowest, ("edge", *flags))
    return _surface(names, *fit, xy, flags, confidence)


def _around(
    xy: Array, ys: Array, groups: NDArray[np.int64], centre: Array
) -> tuple[_SurfaceFit, NDArray[np.bool_]] | None:
    """A fit to the points nearest to the minimum, which in turn depends on the fit: four rounds."""
    span = np.maximum(np.ptp(xy, axis=0), 1e-9)
    count = min(len(xy), max(_LEAST_POINTS, math.ceil(SHARE * len(xy))))
    found: tuple[_SurfaceFit, NDArray[np.bool_]] | None = None
    above = ys - ys.min()
    for _ in range(4):
        distances = np.square((xy - centre) / span).sum(axis=1)
        near = distances <= np.sort(distances)[count - 1] + 1e-12
        near &= above <= _EXPLODED * float(np.median(above))
        fit = _bent(xy[near], ys[near], groups[near])
        if fit is None or (found is not None and np.array_equal(near, found[1])):
            break
        found = fit, near
        if fit.minimum is None:
            break
        centre = np.clip(fit.centre + fit.minimum, xy.min(axis=0), xy.max(axis=0))
    return found


def _bent(xy: Array, ys: Array, groups: NDArray[np.int64]) -> _SurfaceFit | None:
    """A quadratic with cubic terms that combine data and prior, as for a curve."""
    plain = _fitted(xy, ys, groups, None)
    if plain is None or plain.minimum is None:
        return plain
    bends = plain.coefficients[[2, 4]]
    # A cubic term u^i v^j is expected to be as large as the bends of its two parameters allow, in
    # geometric proportion; for i = 3 this is the prior of a curve.
    leaning = [ASYMMETRY * bends[0] ** (i / 3) * bends[1] ** (j / 3) for i, j in _POWERS[5:]]
    bent = _fitted(xy, ys, groups, max(plain.noise, 1e-4 * float(ys.std())) / np.array(leaning))
    return plain if bent is None or bent.minimum is None else bent


def _fitted(
    xy: Array, ys: Array, groups: NDArray[np.int64], pulls: Array | None
) -> _SurfaceFit | None:
    """Least squares with a level for each seed; `pulls` are the weights of the priors on the four
    cubic terms, None leaves these out.
    """
    seeds = np.unique(groups)
    centre = xy.mean(axis=0)
    terms = 5 if pulls is None else 9
    powers = np.column_stack([_term(xy - centre, powers, (0, 0)) for powers in _POWERS[:terms]])
    design = np.column_stack([powers, (groups[:, None] == seeds).astype(np.float64)])
    values = ys
    if pulls is not None:
        prior = np.zeros((4, design.shape[1]))
        prior[range(4), range(5, 9)] = pulls
        design, values = np.vstack([design, prior]), np.append(values, np.zeros(4))
    freedom = len(values) - design.shape[1]
    if freedom < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    solution: Array = np.linalg.lstsq(design, values, rcond=None)[0].astype(np.float64)
    residuals = values - design @ solution
    covariance = np.zeros((9, 9))
    covariance[:terms, :terms] = np.linalg.inv(design.T @ design)[:terms, :terms]
    coefficients = np.zeros(9)
    coefficients[:terms] = solution[:terms]
    noise = max(math.sqrt(residuals @ residuals / freedom), 1e-12)
    return _SurfaceFit(
        centre, coefficients, covariance, noise, freedom, float(solution[terms:].mean()), len(seeds)
    )


def _far_out(place: Array, xy: Array) -> bool:
    """Whether a point is outside the range by more than a quarter of it: no fit is valid there."""
    room = np.ptp(xy, axis=0) / 4
    return bool(np.any(place < xy.min(axis=0) - room) or np.any(place > xy.max(axis=0) + room))


def _lowest(
    names: tuple[str, str],
    xy: Array,
    ys: Array,
    groups: NDArray[np.int64],
    at: int,
    flags: tuple[str, ...],
) -> Surface:
    found = {
        name: Estimate(float(xy[at, k]), -math.inf, math.inf, 0) for k, name in enumerate(names)
    }
    nan, seeds = math.nan, len(np.unique(groups))
    hessian = ((nan, nan), (nan, nan))
    return Surface(names, found, float(ys[at]), nan, hessian, nan, len(ys), seeds, flags)


def _surface(
    names: tuple[str, str],
    fit: _SurfaceFit,
    near: NDArray[np.bool_],
    xy: Array,
    flags: tuple[str, ...],
    confidence: float,
) -> Surface:
    at = fit.minimum
    assert at is not None
    place = fit.centre + at
    low, high = xy.min(axis=0), xy.max(axis=0)
    hessian = fit.hessian(at)
    inverse = np.linalg.inv(hessian)
    spread = inverse @ (fit.gradients(at[None])[1][0] + fit.tilt) @ inverse
    intervals = [_profile(fit, axis, low, high, confidence) for axis in (0, 1)]
    if np.any(place <= low) or np.any(place >= high):
        flags = ("edge", *flags)
    if not all(one.bounded for one in intervals):
        flags = ("flat", *flags)
    return Surface(
        names,
        dict(zip(names, intervals, strict=True)),
        fit.level + float(fit.derivatives(at[None], (0, 0))[0] @ fit.coefficients),
        float(spread[0, 1] / math.sqrt(spread[0, 0] * spread[1, 1])),
        (
            (float(hessian[0, 0]), float(hessian[0, 1])),
            (float(hessian[1, 0]), float(hessian[1, 1])),
        ),
        fit.noise,
        int(near.sum()),
        fit.seeds,
        flags,
        {name: math.sqrt(float(spread[k, k])) for k, name in enumerate(names)},
        _region(fit, low, high, confidence),
    )


def _profile(fit: _SurfaceFit, axis: int, low: Array, high: Array, confidence: float) -> Estimate:
    """All values of one parameter for which the gradient may be zero at some value of the other.

    The ends are searched in steps and then by bisection, up to the width of the range away.
    """
    assert fit.minimum is not None
    allowed = t_quantile(fit.degrees_of_freedom, confidence, 1) ** 2
    span, other = high - low, 1 - axis
    hessian, at = fit.hessian(fit.minimum), fit.minimum

    def inside(offset: float) -> bool:
        # The other parameter is searched around the valley, where it is best for this offset.
        valley = at[other] - hessian[0, 1] / hessian[other, other] * (offset - at[axis])
        z = np.empty((_GRID, 2))
        z[:, axis], z[:, other] = offset, valley + np.linspace(-0.5, 0.5, _GRID) * span[other]
        return bool(fit.distance(z).min() <= allowed)

    ends = [_end(inside, float(at[axis]), side * float(span[axis])) for side in (-1, 1)]
    value, low_end, high_end = (float(fit.centre[axis]) + one for one in (float(at[axis]), *ends))
    return Estimate(value, low_end, high_end, fit.degrees_of_freedom)


def _end(inside: Callable[[float], bool], start: float, reach: float) -> float:
    """Where `inside` ends on the way from start to start + reach; infinite if it does not."""
    steps = [start + reach * share for share in np.linspace(0, 1, 33)[1:]]
    within, outside = start, None
    for step in steps:
        if not inside(step):
            outside = step
            break
        within = step
    if outside is None:
        return math.copysign(math.inf, reach)
    for _ in range(20):
        middle = (within + outside) / 2
        within, outside = (middle, outside) if inside(middle) else (within, middle)
    return float(within + outside) / 2


def _region(
    fit: _SurfaceFit, low: Array, high: Array, confidence: float
) -> tuple[tuple[float, float], ...]:
    """Box & Hunter's region as an outline of 72 points, followed from the minimum outwards."""
    assert fit.minimum is not None
    allowed = 2 * float(fdtri(2, fit.degrees_of_freedom, confidence))
    shares = np.linspace(0, 1, 201)[1:, None]
    outline: list[tuple[float, float]] = []
    for angle in np.linspace(0, 2 * math.pi, 72, endpoint=False):
        ray = fit.minimum + shares * np.array([math.cos(angle), math.sin(angle)]) * (high - low)
        beyond = fit.distance(ray) > allowed
        if not beyond.any():
            return ()
        x, y = fit.centre + ray[int(np.argmax(beyond))]
        outline.append((float(x), float(y)))
    return tuple(outline)
