"""Which factor on the rate of shared key/value heads is the right one? The exponent γ of f = ((1 + √r)/2)^γ.

Two questions, which need not have one answer. "still": with which f does the optimum of the learning rate stay where
it is without sharing? "loss": which f gives the lowest loss, each at its own optimum?

At each r a parabola in log2 f goes through the optima (or the losses) of the factors that were tried. For a candidate γ
the distance of that curve from the optimum of the base (or its slope) is a sum of cells with known weights, and so is
the sum of these over all r, each weighted by log2 of the paper's factor there. The interval holds every γ at which that
sum cannot be told from zero, as Fieller's does: exact for normal noise, and without an end where the data set none. No
curve is followed beyond the factors that were tried, so an interval that reaches them has no end either.

A loss curve may lean, which draws a parabola's vertex: as much lean as recorded curves have (`ASYMMETRY`) counts as
error. `drills/exponent_coverage.py` measures how often the intervals hold.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import f as fisher

from mupscale.analysis.contrasts import Located
from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import CellAnalysis, analyse
from mupscale.analysis.measurements import Measurement, Member
from mupscale.analysis.optima import ASYMMETRY, REACH, RECORDED_SPREAD
from mupscale.analysis.seed_blocks import SeedBlocks
from mupscale.analysis.slopes import t_quantile
from mupscale.analysis.verdicts import POWER, SEEDS_LIMIT
from mupscale.errors import DimensionError

Array = NDArray[np.float64]
Question = Literal["still", "loss"]
QUESTIONS: tuple[Question, ...] = ("still", "loss")

_GRID, _FINER = 121, 33
_LEAST = 3
"""Losses that a parabola needs; those far away are left out only where more remain."""
_NO_PLACE = frozenset(("few", "saddle", "edge", "flat"))
"""Flags of an optimum that is no place yet."""


@dataclass(frozen=True)
class Factored:
    """Runs at one r with one factor on the key/value rate. The base is that with the least r, where the factor is 1."""

    r: float
    log2_factor: float
    "Over the hidden rate, relative to the base."
    runs: Sequence[Measurement]


@dataclass(frozen=True)
class FactorCell:
    """A factor at one r: where its optimum is, and its loss there."""

    r: float
    log2_factor: float
    analysis: CellAnalysis

    @property
    def usable(self) -> bool:
        return self.analysis.optimum is not None and not _NO_PLACE & set(self.analysis.flags)


@dataclass(frozen=True)
class Exponent:
    """γ with its interval, which has no end where the data set none; None where no curve could be drawn."""

    question: Question
    gamma: Estimate | None
    by_r: Mapping[float, Estimate]
    "The same from each r alone."
    one_serves: float | None
    "How likely data such as these are if one γ serves every r; None for one r."
    swept: tuple[float, float]
    "The γ that every r was tried around."
    more_seeds: int | None
    "That should give it two ends; 0 where it has them, None where seeds alone will not do."


@dataclass(frozen=True)
class Exponents:
    """Both answers, from the same runs."""

    base: FactorCell
    cells: tuple[FactorCell, ...]
    still: Exponent
    loss: Exponent
    runs: int
    seeds: int

    def answer(self, question: Question) -> Exponent:
        return self.still if question == "still" else self.loss


def log2_paper_factor(r: float, base_r: float = 1.0) -> float:
    """log2 of (1 + √r)/2, relative to the base: what γ is counted in.

    >>> round(2 ** log2_paper_factor(4), 6), round(2 ** log2_paper_factor(9, base_r=4), 6)
    (1.5, 1.333333)
    """
    return math.log2((1 + math.sqrt(r)) / (1 + math.sqrt(base_r)))


def fit_exponents(tried: Sequence[Factored], *, confidence: float = 0.95) -> Exponents:
    """γ for both questions, from runs at the base and at one r or more above it."""
    first = min((one.r for one in tried), default=math.nan)
    if len({one.r for one in tried}) < 2 or sum(one.r == first for one in tried) != 1:
        raise DimensionError(
            f"r = {sorted(one.r for one in tried)}: an exponent needs the base once, and factors at one r or more "
            "above it."
        )
    found = analyse([run for one in tried for run in _renamed(one)], axis="r", confidence=confidence)
    labels = {(cell.rule, cell.member.position): cell for cell in found.cells}
    cells = [FactorCell(one.r, one.log2_factor, labels[_name(one), one.r]) for one in tried]
    base = next(cell for cell in cells if cell.r == first)
    others = tuple(sorted((c for c in cells if c is not base), key=lambda cell: (cell.r, cell.log2_factor)))
    still, loss = (_answer(question, base, others, confidence) for question in QUESTIONS)
    seeds = {run.seed for one in tried for run in one.runs}
    return Exponents(base, others, still, loss, sum(len(one.runs) for one in tried), len(seeds))


def _name(one: Factored) -> str:
    return f"f = 2^{one.log2_factor:.9g}"


def _renamed(one: Factored) -> list[Measurement]:
    """Cells are told apart by their factor, whatever the rule was called."""
    return [replace(run, rule=_name(one), member=Member(label=f"r = {one.r:g}", position=one.r)) for run in one.runs]


# One question


@dataclass(frozen=True)
class _Curve:
    """A polynomial in log2 f through the cells of one r: what each cell weighs in its coefficients."""

    lever: float
    "log2 of the paper's factor at this r: log2 f for each unit of γ."
    offsets: Array
    "log2 f of the cells."
    to_coefficients: Array
    cells: tuple[Located, ...]
    bend: float = 0.0
    "Of a loss curve: half its second derivative, as a parabola has it."

    @property
    def swept(self) -> tuple[float, float]:
        return float(self.offsets.min()) / self.lever, float(self.offsets.max()) / self.lever

    def height(self, gammas: Array) -> Array:
        """Weights that give the curve at each γ."""
        powers = np.arange(len(self.to_coefficients))
        return (gammas[:, None] * self.lever) ** powers @ self.to_coefficients

    def slope(self, gammas: Array) -> Array:
        """Weights that give its slope there, in log2 f."""
        powers = np.arange(1, len(self.to_coefficients))
        return (powers * (gammas[:, None] * self.lever) ** (powers - 1)) @ self.to_coefficients[1:]

    def lean(self, gammas: Array) -> Array:
        """By how much the slope would be off if the curve had its minimum here and leaned as recorded curves do."""
        away = self.offsets - gammas[:, None] * self.lever
        return ASYMMETRY * self.bend * (self.slope(gammas) * away**3).sum(axis=1)


@dataclass(frozen=True)
class _Sums:
    """What must be zero at the right γ, for several γ: its value, its standard error, its degrees of freedom."""

    values: Array
    errors: Array
    freedom: Array
    leans: Array
    "What part of the errors is allowed for a lean."

    def excess(self, confidence: float) -> Array:
        """By how much zero lies outside of the interval; not above 0 where it lies inside."""
        reach = np.array([t_quantile(freedom, confidence, 1) if freedom > 0 else math.inf for freedom in self.freedom])
        with np.errstate(invalid="ignore"):
            half = np.where(np.isfinite(self.errors) & np.isfinite(reach), reach * self.errors, math.inf)
        return np.abs(self.values) - half


@dataclass(frozen=True)
class _Test:
    """The cells of a question, and how to weigh them."""

    question: Question
    base: Located | None
    "Its optimum, which others are measured from; None for losses, which are compared at one r."
    curves: Sequence[_Curve]
    confidence: float

    @property
    def swept(self) -> tuple[float, float]:
        return max(curve.swept[0] for curve in self.curves), min(curve.swept[1] for curve in self.curves)

    @cached_property
    def levers(self) -> Array:
        return np.array([curve.lever for curve in self.curves])

    @cached_property
    def _blocks(self) -> list[tuple[Located, ...]]:
        return [*(curve.cells for curve in self.curves), *([(self.base,)] if self.base else [])]

    @cached_property
    def _seeds(self) -> SeedBlocks | None:
        recorded = (RECORDED_SPREAD**2, 2.0) if self.question == "still" else (0.0, 0.0)
        return SeedBlocks.of(self._blocks, recorded)

    def at(self, gammas: Array, shares: Array | None = None) -> _Sums:
        """The sum over r at each γ, every r with its share: by the lever unless given."""
        weights, lean = self._weights(gammas, self.levers if shares is None else shares)
        cells = [cell for block in self._blocks for cell in block]
        values = weights @ [cell.value for cell in cells]
        variance, freedom = self._variance(weights, cells)
        return _Sums(values, np.sqrt(variance + lean**2), freedom, lean)

    def _weights(self, gammas: Array, shares: Array) -> tuple[Array, Array]:
        """Of each cell, and what a lean would add."""
        loss = self.question == "loss"
        own = [
            share * (curve.slope(gammas) if loss else curve.height(gammas))
            for share, curve in zip(shares, self.curves, strict=True)
        ]
        if self.base is not None:
            own.append(np.full((len(gammas), 1), -shares.sum()))
        leans = [share * curve.lean(gammas) for share, curve in zip(shares, self.curves, strict=True)] if loss else []
        return np.hstack(own), sum(leans, np.zeros(len(gammas)))

    def _variance(self, weights: Array, cells: Sequence[Located]) -> tuple[Array, Array]:
        squares = np.square(weights)
        alone = np.array([cell.degrees_of_freedom for cell in cells])
        if self._seeds is None:  # seeds that differ from cell to cell: every cell stands alone
            parts = squares * [cell.error**2 for cell in cells]
        else:
            parts = squares * [cell.extra_error**2 for cell in cells]
        shared, freedom = (0.0, 1.0) if self._seeds is None else self._seeds.variance(weights)
        total = parts.sum(axis=1) + shared
        if not np.isfinite(total).all():
            return total, np.zeros(len(total))
        inverse = (
            np.divide(parts**2, alone, out=np.zeros_like(parts), where=alone > 0).sum(axis=1) + shared**2 / freedom
        )
        return total, np.divide(total**2, inverse, out=np.full_like(total, math.inf), where=inverse > 0)

    def alone(self, curve: _Curve) -> "_Test":
        return replace(self, curves=[curve])


def _answer(question: Question, base: FactorCell, cells: Sequence[FactorCell], confidence: float) -> Exponent:
    still = question == "still"
    curves = _curves(question, base.r, cells)
    if curves is None or (still and not base.usable):
        return Exponent(question, None, {}, None, (math.nan, math.nan), None)
    test = _Test(question, _located(base, question) if still else None, list(curves.values()), confidence)
    gamma = _solved(test)
    return Exponent(
        question,
        gamma,
        {r: _solved(test.alone(curve)) for r, curve in curves.items()},
        _agreement(test) if len(curves) > 1 else None,
        test.swept,
        _more_seeds(test, gamma, len(base.analysis.seeds)),
    )


def _curves(question: Question, base_r: float, cells: Sequence[FactorCell]) -> dict[float, _Curve] | None:
    """One for each r; None where one of them has too few cells with an optimum."""
    blocks = {r: [cell for cell in cells if cell.r == r and cell.usable] for r in sorted({cell.r for cell in cells})}
    if question == "loss":
        blocks = {r: _near_lowest(block) for r, block in blocks.items()}
    located = {r: tuple(_located(cell, question) for cell in block) for r, block in blocks.items()}
    seeds = SeedBlocks.of(list(located.values()))
    noise = math.inf if seeds is None else math.sqrt(seeds.within / seeds.seeds)
    curves: dict[float, _Curve] = {}
    for r, block in blocks.items():
        lever, offsets = log2_paper_factor(r, base_r), np.array([cell.log2_factor for cell in block])
        still = question == "still"
        curve = _optima_curve(lever, offsets, located[r]) if still else _loss_curve(lever, offsets, located[r], noise)
        if curve is None:
            return None
        curves[r] = curve
    return curves


def _near_lowest(cells: list[FactorCell]) -> list[FactorCell]:
    """Far from its minimum a loss curve is no cubic: what lies beyond the reach of an optimum's fit is left out."""
    if not cells:
        return cells
    lowest = min(cells, key=lambda cell: cell.analysis.loss or 0.0).log2_factor
    near = [cell for cell in cells if abs(cell.log2_factor - lowest) <= REACH]
    return near if len(near) > _LEAST else cells


def _located(cell: FactorCell, question: Question) -> Located:
    one = cell.analysis.optimum
    assert one is not None
    if question == "still":
        return Located(one.value, one.error, one.degrees_of_freedom, one.seed_optima, one.bend_error)
    return Located(one.loss, math.inf, 0, one.seed_losses)


def _optima_curve(lever: float, offsets: Array, cells: tuple[Located, ...]) -> _Curve | None:
    """A parabola; a line through two optima."""
    degree = min(2, len(np.unique(offsets)) - 1)
    if degree < 1:
        return None
    return _Curve(lever, offsets, _fitting(offsets, degree), cells)


def _fitting(offsets: Array, degree: int) -> Array:
    """From values at the offsets to the coefficients of the polynomial closest to them."""
    return np.linalg.pinv(np.vander(offsets, degree + 1, increasing=True)).astype(np.float64)


def _loss_curve(lever: float, offsets: Array, cells: tuple[Located, ...], noise: float) -> _Curve | None:
    """A cubic whose last term is drawn to 0, so far as noise hides how much the curve leans; a parabola on a hill."""
    if len(np.unique(offsets)) < _LEAST:
        return None
    parabola = _fitting(offsets, 2)
    bend = float(parabola[2] @ [cell.value for cell in cells])
    if bend <= 0 or not math.isfinite(noise):
        return _Curve(lever, offsets, parabola, cells, max(bend, 0.0))
    design = np.vander(offsets, 4, increasing=True)
    pull = np.diag([0.0, 0.0, 0.0, max(noise, 1e-3 * bend) / (ASYMMETRY * bend)])
    return _Curve(
        lever, offsets, np.linalg.solve(design.T @ design + pull**2, design.T).astype(np.float64), cells, bend
    )


# Solving for γ


def _solved(test: _Test) -> Estimate:
    """The γ at which the sum is zero, and all at which it might be."""
    grid = _with_crossings(test, np.linspace(*test.swept, _GRID))
    sums = test.at(grid)
    excess, freedom = sums.excess(test.confidence), float(sums.freedom.min())
    inside = np.flatnonzero(excess <= 0)
    root = _root(test.question, grid, sums.values)
    if not len(inside):  # not one γ that was swept will do
        return _beyond(test.question, grid, sums.values)
    if root is None and test.question == "loss":  # a hill, or a slope without an end
        end = grid[-1] if sums.values.sum() < 0 else grid[0]
        return Estimate(float(end), -math.inf, math.inf, freedom)
    value = float(grid[int(np.argmin(excess))]) if root is None else root
    low = -math.inf if inside[0] == 0 else _between(grid, excess, int(inside[0]) - 1)
    high = math.inf if inside[-1] == len(grid) - 1 else _between(grid, excess, int(inside[-1]))
    return Estimate(value, min(low, value), max(high, value), freedom)


def _with_crossings(test: _Test, grid: Array) -> Array:
    """An interval may be narrower than the grid: where the sum is zero, it is made finer."""
    values = test.at(grid).values
    crossings = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
    finer = [np.linspace(grid[place], grid[place + 1], _FINER)[1:-1] for place in crossings]
    roots = [_between(grid, values, int(place)) for place in crossings]
    return np.sort(np.concatenate([grid, *finer, roots]))


def _between(grid: Array, heights: Array, place: int) -> float:
    """Where a line through two neighbours is zero."""
    (here, there), (low, high) = heights[place : place + 2], grid[place : place + 2]
    return float(low + (high - low) * here / (here - there)) if math.isfinite(here - there) else float(low)


def _root(question: Question, grid: Array, values: Array) -> float | None:
    """Where the sum is zero. A lowest loss is where the slope rises; an optimum should fall as the factor grows."""
    crossings = np.flatnonzero(np.sign(values[:-1]) != np.sign(values[1:]))
    rising = [int(k) for k in crossings if values[k] < values[k + 1]]
    falling = [int(k) for k in crossings if values[k] > values[k + 1]]
    chosen = rising if question == "loss" else falling or rising
    return _between(grid, values, chosen[0]) if chosen else None


def _beyond(question: Question, grid: Array, values: Array) -> Estimate:
    """Where not one γ that was swept will do: on which side it lies, if that can be told."""
    first, last, nearest = float(grid[0]), float(grid[-1]), int(np.argmin(np.abs(values)))
    if question == "still" and 0 < nearest < len(grid) - 1:
        return Estimate(float(grid[nearest]), -math.inf, math.inf, 0)
    above = bool(values[0] < 0) if question == "loss" else nearest > 0
    return Estimate(last, last, math.inf, 0) if above else Estimate(first, -math.inf, first, 0)


def _agreement(test: _Test) -> float:
    """The p-value of one γ for every r: the least sum of squares that any γ leaves, against what noise would.

    It has one degree of freedom less than there are r, and less than that where the data hardly bound γ, so that the
    test errs to the side of one γ.
    """
    grid = _with_crossings(test, np.linspace(*test.swept, _GRID))
    count, units = len(test.curves), np.eye(len(test.curves))
    own = [test.at(grid, unit) for unit in units]
    noise = [np.square(one.errors) - np.square(one.leans) for one in own]
    if not np.isfinite(noise).all():
        return 1.0
    covariance = np.zeros((len(grid), count, count))
    for i in range(count):
        covariance[:, i, i] = np.square(own[i].errors)  # curves of two r may lean to different sides
        for j in range(i):
            both = test.at(grid, units[i] + units[j])
            shared = np.square(both.errors) - np.square(both.leans) - noise[i] - noise[j]
            covariance[:, i, j] = covariance[:, j, i] = shared / 2
    values = np.array([one.values for one in own]).T
    distances = (values * np.linalg.solve(covariance, values[:, :, None])[:, :, 0]).sum(axis=1)
    least = int(np.argmin(distances))
    freedom = min(float(one.freedom[least]) for one in own)
    return float(fisher.sf(distances[least] / (count - 1), count - 1, freedom)) if freedom > 0 else 1.0


def _more_seeds(test: _Test, gamma: Estimate, seeds: int) -> int | None:
    """So many that both ends of what was swept are ruled out with a chance of 80 %, if the present sums are true."""
    if gamma.bounded:
        return 0
    ends = test.at(np.array(test.swept))
    first, last = ends.values
    crosses = first * last < 0 and (test.question == "still" or first < 0)
    if not crosses or not np.isfinite(ends.errors).all() or seeds < 2 or ends.freedom.min() <= 0:
        return None
    return next((more for more in range(1, SEEDS_LIMIT + 1) if _chance(ends, seeds, more, test) >= POWER), None)


def _chance(ends: _Sums, seeds: int, more: int, test: _Test) -> float:
    product = 1.0
    for value, error, freedom in zip(ends.values, ends.errors, ends.freedom, strict=True):
        reach = t_quantile(freedom * (seeds + more - 1) / (seeds - 1), test.confidence, 1)
        product *= float(ndtr(abs(value) / (error * math.sqrt(seeds / (seeds + more))) - reach))
    return product
