"""Which factor on the rate of shared key/value heads is the right one? The exponent γ of f = ((1 +
√r)/2)^γ.

Two questions, which need not have one answer. "still": with which f does the optimum of the
learning rate stay where it is without sharing? "loss": which f gives the lowest loss, each at its
own optimum?

"still": at each r, lines in log2 f join the optima of the factors that were tried. For a candidate
γ the distance of that curve from the optimum of the base is a sum of cells with known weights, and
so is the sum of these over all r, each weighted by log2 of the paper's factor there. The interval
holds every γ at which that sum cannot be told from zero, as Fieller's does, and has no end where
the data set none.

"loss": at each r a cubic goes through the losses. The interval holds every γ whose loss, summed
over r, cannot be told from the lowest, be it the curve's or, among those tried, that of the best
one tried. It is wider than one for the place of a minimum, which would hang on the shape of the
curve: in records, it is flat on one side and a cliff on the other.

No curve is followed beyond the factors that were tried, so an interval that reaches them has no end
there. `drills/exponent_coverage.py` measures how often the intervals hold.
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
from scipy.stats import t as student

from mupscale.analysis.contrasts import CellValue
from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import CellAnalysis, analyse
from mupscale.analysis.measurements import Measurement, Member
from mupscale.analysis.optima import RECORDED_SPREAD
from mupscale.analysis.seed_blocks import SeedBlocks
from mupscale.analysis.slopes import t_quantile
from mupscale.analysis.verdicts import POWER, SEEDS_LIMIT
from mupscale.errors import DimensionError

Array = NDArray[np.float64]
Question = Literal["still", "loss"]
QUESTIONS: tuple[Question, ...] = ("still", "loss")

_GRID, _FINER = 121, 33
_LEAST: dict[Question, int] = {"still": 2, "loss": 3}
"""Factors at each r: a line crosses the base's optimum, a lowest loss has a neighbour on each
side.
"""
_NO_PLACE = frozenset(("few", "saddle", "edge", "flat"))
"""Flags of an optimum that is no place yet."""


@dataclass(frozen=True)
class Factored:
    """Runs at one r with one factor on the key/value rate. The base is that with the least r, where
    the factor is 1.
    """

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
    """γ with its interval, which has no end where the data set none; None where no curve could be
    drawn.
    """

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
            f"r = {sorted(one.r for one in tried)}: an exponent needs the base once, and factors "
            "at one r or more "
            "above it."
        )
    found = analyse(
        [run for one in tried for run in _renamed(one)], axis="r", confidence=confidence
    )
    labels = {(cell.rule, cell.member.position): cell for cell in found.cells}
    cells = [FactorCell(one.r, one.log2_factor, labels[_name(one), one.r]) for one in tried]
    base = next(cell for cell in cells if cell.r == first)
    others = tuple(
        sorted((c for c in cells if c is not base), key=lambda cell: (cell.r, cell.log2_factor))
    )
    still, loss = (_answer(question, base, others, confidence) for question in QUESTIONS)
    seeds = {run.seed for one in tried for run in one.runs}
    return Exponents(base, others, still, loss, sum(len(one.runs) for one in tried), len(seeds))


def _name(one: Factored) -> str:
    return f"f = 2^{one.log2_factor:.9g}"


def _renamed(one: Factored) -> list[Measurement]:
    """Cells are told apart by their factor, whatever the rule was called."""
    return [
        replace(run, rule=_name(one), member=Member(label=f"r = {one.r:g}", position=one.r))
        for run in one.runs
    ]


# One question


@dataclass(frozen=True)
class _Curve:
    """A curve in log2 f through the cells of one r."""

    lever: float
    "log2 of the paper's factor at this r: log2 f for each unit of γ."
    offsets: Array
    "log2 f of the cells, ascending."
    cells: tuple[CellValue, ...]
    smooth: bool
    "A cubic (a parabola through three), or lines from cell to cell."

    @property
    def swept(self) -> tuple[float, float]:
        return float(self.offsets[0]) / self.lever, float(self.offsets[-1]) / self.lever

    def height(self, gammas: Array) -> Array:
        """What each cell weighs in the curve at each γ."""
        at, count = gammas * self.lever, len(self.cells)
        if not self.smooth:
            return np.stack([np.interp(at, self.offsets, unit) for unit in np.eye(count)], axis=1)
        powers = np.arange(min(4, count))
        return at[:, None] ** powers @ np.linalg.pinv(self.offsets[:, None] ** powers)


@dataclass(frozen=True)
class _Sums:
    """Sums of cells, one for each of several γ: value, standard error, degrees of freedom."""

    values: Array
    errors: Array
    freedom: Array

    def reach(self, confidence: float) -> Array:
        """How far from its value each may be."""
        quantiles = [
            t_quantile(freedom, confidence, 1) if freedom > 0 else math.inf
            for freedom in self.freedom
        ]
        with np.errstate(invalid="ignore"):
            known = np.isfinite(self.errors) & np.isfinite(quantiles)
            return np.where(known, quantiles * self.errors, math.inf)


@dataclass(frozen=True)
class _Test:
    """The cells of a question, and how to weigh them."""

    question: Question
    base: CellValue | None
    "Its optimum, which others are measured from; None for losses, which are compared at one r."
    curves: Sequence[_Curve]
    confidence: float

    @property
    def swept(self) -> tuple[float, float]:
        return max(curve.swept[0] for curve in self.curves), min(
            curve.swept[1] for curve in self.curves
        )

    @cached_property
    def levers(self) -> Array:
        return np.array([curve.lever for curve in self.curves])

    @cached_property
    def _blocks(self) -> list[tuple[CellValue, ...]]:
        return [*(curve.cells for curve in self.curves), *([(self.base,)] if self.base else [])]

    @cached_property
    def _seeds(self) -> SeedBlocks | None:
        recorded = (RECORDED_SPREAD**2, 2.0) if self.question == "still" else (0.0, 0.0)
        return SeedBlocks.of(self._blocks, recorded)

    def at(self, gammas: Array, shares: Array | None = None) -> _Sums:
        """Distances from the base's optimum, summed over r, every r with its share: by the lever
        unless given.
        """
        shares = self.levers if shares is None else shares
        own = [
            share * curve.height(gammas) for share, curve in zip(shares, self.curves, strict=True)
        ]
        return self._sums(np.hstack([*own, np.full((len(gammas), 1), -shares.sum())]))

    def above(self, gammas: Array, best: Sequence[float]) -> _Sums:
        """By how much the losses of all r together lie above those at the best γ of each."""
        there = [
            curve.height(np.array([one])) for curve, one in zip(self.curves, best, strict=True)
        ]
        return self._sums(
            np.hstack([c.height(gammas) - low for c, low in zip(self.curves, there, strict=True)])
        )

    def lowest(self, gammas: Array) -> float:
        """Of these γ, that with the lowest loss over all r."""
        first = [float(gammas[0])] * len(self.curves)
        return float(gammas[int(np.argmin(self.above(gammas, first).values))])

    @property
    def tried(self) -> Array:
        """Every γ that was tried at some r, as far as all were tried around it."""
        every = np.unique(np.concatenate([curve.offsets / curve.lever for curve in self.curves]))
        return every[(every >= self.swept[0]) & (every <= self.swept[1])]

    def _sums(self, weights: Array) -> _Sums:
        cells = [cell for block in self._blocks for cell in block]
        variance, freedom = self._variance(weights, cells)
        return _Sums(weights @ [cell.value for cell in cells], np.sqrt(variance), freedom)

    def _variance(self, weights: Array, cells: Sequence[CellValue]) -> tuple[Array, Array]:
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
            np.divide(parts**2, alone, out=np.zeros_like(parts), where=alone > 0).sum(axis=1)
            + shared**2 / freedom
        )
        return total, np.divide(
            total**2, inverse, out=np.full_like(total, math.inf), where=inverse > 0
        )

    def alone(self, curve: _Curve) -> "_Test":
        return replace(self, curves=[curve])


def _answer(
    question: Question, base: FactorCell, cells: Sequence[FactorCell], confidence: float
) -> Exponent:
    still = question == "still"
    curves = _curves(question, base.r, cells)
    if curves is None or (still and not base.usable):
        return Exponent(question, None, {}, None, (math.nan, math.nan), None)
    test = _Test(
        question, _located(base, question) if still else None, list(curves.values()), confidence
    )
    gamma = _solved(test)
    return Exponent(
        question,
        gamma,
        {r: _solved(test.alone(curve)) for r, curve in curves.items()},
        _agreement(test) if len(curves) > 1 else None,
        test.swept,
        _more_seeds(test, gamma, len(base.analysis.seeds)),
    )


def _curves(
    question: Question, base_r: float, cells: Sequence[FactorCell]
) -> dict[float, _Curve] | None:
    """One for each r; None where one of them has too few cells with an optimum."""
    curves: dict[float, _Curve] = {}
    for r in sorted({cell.r for cell in cells}):
        block = [cell for cell in cells if cell.r == r and cell.usable]  # by factor, ascending
        offsets = np.array([cell.log2_factor for cell in block])
        if len(np.unique(offsets)) < _LEAST[question]:
            return None
        located = tuple(_located(cell, question) for cell in block)
        curves[r] = _Curve(
            log2_paper_factor(r, base_r), offsets, located, smooth=question == "loss"
        )
    return curves


def _located(cell: FactorCell, question: Question) -> CellValue:
    one = cell.analysis.optimum
    assert one is not None
    if question == "still":
        return CellValue(
            one.value, one.error, one.degrees_of_freedom, one.seed_optima, one.bend_error
        )
    return CellValue(one.loss, math.inf, 0, one.seed_losses)


# Solving for γ


def _solved(test: _Test) -> Estimate:
    return _lowest(test) if test.question == "loss" else _still(test)


def _lowest(test: _Test) -> Estimate:
    """The γ with the lowest loss, and all that cannot be told from it."""
    fine = np.linspace(*test.swept, 10 * _GRID)
    kept = np.concatenate([_not_above(test, gammas) for gammas in (fine, test.tried)])
    low = -math.inf if kept.min() <= test.swept[0] else float(kept.min())
    high = math.inf if kept.max() >= test.swept[1] else float(kept.max())
    freedom = test.above(np.array(test.swept), [float(fine[0])] * len(test.curves)).freedom
    return Estimate(test.lowest(fine), low, high, float(freedom.min()))


def _not_above(test: _Test, gammas: Array) -> Array:
    """Those whose loss cannot be told from the lowest of them."""
    above = test.above(gammas, [test.lowest(gammas)] * len(test.curves))
    return gammas[above.values <= above.reach(test.confidence)]


def _still(test: _Test) -> Estimate:
    """The γ at which the optimum is that of the base, and all at which it might be."""
    grid = _with_crossings(test, np.linspace(*test.swept, _GRID))
    sums = test.at(grid)
    excess = np.abs(sums.values) - sums.reach(test.confidence)
    if not (excess <= 0).any():  # not one γ that was swept will do
        return _beyond(grid, sums.values)
    root = _root(grid, sums.values)
    value = float(grid[int(np.argmin(excess))]) if root is None else root
    return _hull(grid, excess, value, float(sums.freedom.min()))


def _hull(grid: Array, excess: Array, value: float, freedom: float) -> Estimate:
    """From the first to the last γ that is not ruled out; without an end where that is the end of
    the grid.
    """
    inside = np.flatnonzero(excess <= 0)
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
    return (
        float(low + (high - low) * here / (here - there))
        if math.isfinite(here - there)
        else float(low)
    )


def _root(grid: Array, values: Array) -> float | None:
    """Where the sum is zero; an optimum should fall as the factor grows."""
    crossings = np.flatnonzero(np.sign(values[:-1]) != np.sign(values[1:]))
    falling = [int(k) for k in crossings if values[k] > values[k + 1]]
    chosen = falling or [int(k) for k in crossings]
    return _between(grid, values, chosen[0]) if chosen else None


def _beyond(grid: Array, values: Array) -> Estimate:
    """Where not one γ that was swept will do: on which side it lies, if that can be told."""
    first, last, nearest = float(grid[0]), float(grid[-1]), int(np.argmin(np.abs(values)))
    if 0 < nearest < len(grid) - 1:
        return Estimate(float(grid[nearest]), -math.inf, math.inf, 0)
    return Estimate(last, last, math.inf, 0) if nearest else Estimate(first, -math.inf, first, 0)


def _agreement(test: _Test) -> float:
    return _one_loss(test) if test.question == "loss" else _one_place(test)


def _one_loss(test: _Test) -> float:
    """The p-value of one γ for every r: what each r gives up at the best common γ, against what
    noise would.

    Two-sided, since the lowest of several losses lies below its true value.
    """
    own = [one.lowest(one.tried) for one in map(test.alone, test.curves)]
    common = test.above(np.array([test.lowest(test.tried)]), own)
    value, error, freedom = (
        float(one[0]) for one in (common.values, common.errors, common.freedom)
    )
    if value <= 0 or not math.isfinite(error) or freedom <= 0:
        return 1.0
    return min(1.0, 2 * float(student.sf(value / error, freedom))) if error else 0.0


def _one_place(test: _Test) -> float:
    """The same for optima: the least sum of squares that any γ leaves, against what noise would.

    It has one degree of freedom less than there are r, and less than that where the data hardly
    bound γ, so that the test errs to the side of one γ.
    """
    grid = _with_crossings(test, np.linspace(*test.swept, _GRID))
    count, units = len(test.curves), np.eye(len(test.curves))
    own = [test.at(grid, unit) for unit in units]
    noise = [np.square(one.errors) for one in own]
    if not np.isfinite(noise).all():
        return 1.0
    covariance = np.zeros((len(grid), count, count))
    for i in range(count):
        covariance[:, i, i] = noise[i]
        for j in range(i):
            shared = np.square(test.at(grid, units[i] + units[j]).errors) - noise[i] - noise[j]
            covariance[:, i, j] = covariance[:, j, i] = shared / 2
    values = np.array([one.values for one in own]).T
    distances = (values * np.linalg.solve(covariance, values[:, :, None])[:, :, 0]).sum(axis=1)
    least = int(np.argmin(distances))
    freedom = min(float(one.freedom[least]) for one in own)
    return (
        float(fisher.sf(distances[least] / (count - 1), count - 1, freedom)) if freedom > 0 else 1.0
    )


def _more_seeds(test: _Test, gamma: Estimate, seeds: int) -> int | None:
    """So many that both ends of what was swept are ruled out with a chance of 80 %, if the present
    sums are true.
    """
    if gamma.bounded:
        return 0
    ends = _ends(test, gamma.value)
    if ends is None or not np.isfinite(ends.errors).all() or seeds < 2 or ends.freedom.min() <= 0:
        return None
    return next(
        (more for more in range(1, SEEDS_LIMIT + 1) if _chance(ends, seeds, more, test) >= POWER),
        None,
    )


def _ends(test: _Test, value: float) -> _Sums | None:
    """What would have to be told from zero at both ends of what was swept; None if the answer lies
    at one of them.
    """
    ends = np.array(test.swept)
    if test.question == "loss":
        return test.above(ends, [value] * len(test.curves)) if ends[0] < value < ends[1] else None
    sums = test.at(ends)
    return sums if sums.values[0] * sums.values[1] < 0 else None


def _chance(ends: _Sums, seeds: int, more: int, test: _Test) -> float:
    product = 1.0
    for value, error, freedom in zip(ends.values, ends.errors, ends.freedom, strict=True):
        reach = t_quantile(freedom * (seeds + more - 1) / (seeds - 1), test.confidence, 1)
        product *= float(ndtr(abs(value) / (error * math.sqrt(seeds / (seeds + more))) - reach))
    return product
