"""Where a surface of losses over two parameters has its minimum, with intervals and their
correlation.

Losses near the minimum are a quadratic in log2 of both, plus a level for each seed, and lean as
curves do (`optima`). The minimum has Box & Hunter's region (1954): all places at which the gradient
cannot be told from zero, gᵀ V⁻¹ g ≤ 2F. An interval of one parameter is the profile of the same
quantity, with t² in place of 2F; for a single parameter that is Fieller's interval. How far seeds
lie apart is taken from the records: sweeps of two parameters have one seed, usually.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.optima import ASYMMETRY, RECORDED_SPREAD
from mupscale.analysis.slopes import t_quantile
from mupscale.errors import DimensionError, OptionError

Array = NDArray[np.float64]

SHARE = 0.5
"""This share of the points, those nearest to the minimum, is fitted: beyond, losses are no
quadratic.
"""

_LEAST_POINTS = 12
_GRID = 81
_EXPLODED = 12.0
"""Runs so many times as far above the lowest as the median run are no part of the bowl."""


@dataclass(frozen=True)
class Surface:
    """The minimum of a quadratic in log2 of two parameters.

    `correlation` is that of the two estimates. Flags: "few" (too few points to fit: the lowest one
    stands), "saddle" (no minimum: the lowest point stands), "edge" (beyond what was tried), "flat"
    (an interval has no end), "diverged" (a third or more did).
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
    "The outline within which both lie together, for drawing; empty where it has no end."


@dataclass(frozen=True)
class _SurfaceFit:
    """A cubic in the offset z = (u, v) from `centre`, its coefficients in the order of
    `_POWERS`.
    """

    centre: Array
    coefficients: Array
    covariance: Array
    "Of the coefficients, for noise of variance 1."
    noise: float
    degrees_of_freedom: int
    level: float
    seeds: int

    def derivatives(self, z: Array, order: tuple[int, int]) -> Array:
        """The derivative of that order at each offset, as a row of factors on the coefficients."""
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
        """The offset with gradient zero, by Newton's steps from the quadratic's; None if there is
        no minimum near.
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
        """Covariance of the gradient over seeds, as recorded for the rate: a tilt without a
        preferred direction.
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
    """The minimum of losses at points = log2 of two parameters; None stands for a run that
    diverged.

    >>> import itertools
    >>> grid = list(itertools.product(range(-8, -3), range(-4, 2)))
    >>> losses = [2 + (x + 6.2) ** 2 + (y + 1.4) ** 2 + 0.5 * (x + 6.2) * (y + 1.4) for x, y in grid]
    >>> surface = fit_surface(grid, losses)
    >>> {name: round(one.value, 3) for name, one in surface.found.items()}
    {'lr': -6.2, 'weight_decay': -1.4}
    """
    xy, ys, groups, diverged = _checked(points, losses, seeds)
    if len(xy) == 0:
        return None
    flags = ("diverged",) if diverged * 3 >= len(losses) else ()
    lowest = int(np.argmin(ys))
    fit = _around(xy, ys, groups, xy[lowest]) if len(xy) >= _LEAST_POINTS else None
    if fit is None or fit[0].minimum is None:
        return _lowest(names, xy, ys, groups, lowest, ("few" if fit is None else "saddle", *flags))
    if _far_out(fit[0].centre + fit[0].minimum, xy):
        return _lowest(names, xy, ys, groups, lowest, ("edge", *flags))
    return _surface(names, *fit, xy, flags, confidence)


def _checked(
    points: Sequence[tuple[float, float]],
    losses: Sequence[float | None],
    seeds: Sequence[int] | None,
) -> tuple[Array, Array, NDArray[np.int64], int]:
    if len(points) != len(losses) or (seeds is not None and len(seeds) != len(points)):
        raise DimensionError(
            f"{len(points)} points have {len(losses)} losses. Give one loss, and one seed, for "
            "each."
        )
    every = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    if not np.all(np.isfinite(every)):
        raise OptionError("a point is not finite. Pass log2 of both parameters.")
    ended = np.array([loss is not None and math.isfinite(loss) for loss in losses], dtype=bool)
    ys = np.array(
        [loss for loss, good in zip(losses, ended, strict=True) if good], dtype=np.float64
    )
    groups = np.unique(
        np.zeros(len(every), int) if seeds is None else np.asarray(seeds), return_inverse=True
    )[1]
    return every[ended], ys, groups[ended].astype(np.int64), int((~ended).sum())


def _around(
    xy: Array, ys: Array, groups: NDArray[np.int64], centre: Array
) -> tuple[_SurfaceFit, NDArray[np.bool_]] | None:
    """A fit to the nearest share of points; the share follows the minimum, which the share
    decides.
    """
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
    """A quadratic with cubic terms as far as the data and the records allow, as for a curve."""
    plain = _fitted(xy, ys, groups, None)
    if plain is None or plain.minimum is None:
        return plain
    bends = plain.coefficients[[2, 4]]
    leaning = [ASYMMETRY * bends[0] ** (i / 3) * bends[1] ** (j / 3) for i, j in _POWERS[5:]]
    bent = _fitted(xy, ys, groups, max(plain.noise, 1e-4 * float(ys.std())) / np.array(leaning))
    return plain if bent is None or bent.minimum is None else bent


def _fitted(
    xy: Array, ys: Array, groups: NDArray[np.int64], pulls: Array | None
) -> _SurfaceFit | None:
    """Least squares with a level for each seed; `pulls` draw the four cubic terms to 0, and None
    leaves them out.
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
    """Beyond what was tried, by more than a quarter of its span: there the fit says nothing."""
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
    nothing = ((math.nan, math.nan), (math.nan, math.nan))
    return Surface(
        names, found, float(ys[at]), math.nan, nothing, math.nan, len(ys), len(np.unique(groups)), flags
    )  # fmt: skip


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
    """All values of one parameter for which some value of the other lets the gradient be zero.

    The ends are found step by step and then by halving, up to a span away; further out there is
    none.
    """
    assert fit.minimum is not None
    allowed = t_quantile(fit.degrees_of_freedom, confidence, 1) ** 2
    span, other = high - low, 1 - axis
    hessian, at = fit.hessian(fit.minimum), fit.minimum

    def inside(offset: float) -> bool:
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
