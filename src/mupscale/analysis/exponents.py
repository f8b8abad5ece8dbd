"""The best factor on the rate of shared key/value heads: the exponent γ of f = ((1 + √r)/2)^γ.

There are two questions, which can have different answers. "still": with which f does the optimum of
the learning rate stay where it is without sharing? "loss": which f gives the lowest loss, each at
its own optimum? r is the number of query heads per key/value head.

"still": at each r, the optima of the factors tried are connected by straight lines in log2 f. For a
candidate γ, the distance of that curve from the base's optimum is a weighted sum of cells, and so
is its sum over all r, each r weighted by log2 of the paper's factor there. As in Fieller's method,
the interval contains every γ at which that sum is indistinguishable from zero. It has no end if the
data set none.

"loss": at each r a cubic is fitted to the losses. The interval contains every γ whose loss, summed
over r, is indistinguishable from the lowest, be it that of the curve or that of the best γ tried.
It is wider than an interval for the position of a minimum, which would depend on the shape of the
curve: in records, the curve is flat on one side and steep on the other.

Curves are not extrapolated beyond the factors tried, so an interval that reaches these has no end
there. `drills/exponent_coverage.py` measures the coverage.
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

from mupscale.analysis.by_fit import seed_optima
from mupscale.analysis.contrasts import CellValue
from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import CellAnalysis, analyse, optimum_value
from mupscale.analysis.fits import FITS
from mupscale.analysis.flags import NO_OPTIMUM
from mupscale.analysis.measurements import Measurement, Member
from mupscale.analysis.optima import RECORDED_SPREAD
from mupscale.analysis.seed_blocks import SeedBlocks
from mupscale.analysis.slopes import t_quantile
from mupscale.analysis.verdicts import POWER, SEEDS_LIMIT
from mupscale.errors import DimensionError

Array = NDArray[np.float64]
Question = Literal["still", "loss"]
QUESTIONS: tuple[Question, ...] = ("still", "loss")

# Candidates for γ over the swept range, and between two of them where the sum changes its sign.
_GRID, _FINER = 121, 33
# Factors needed at each r: two for a line to cross the base's optimum, three for a lowest loss with
# a neighbour on each side.
_LEAST: dict[Question, int] = {"still": 2, "loss": 3}


@dataclass(frozen=True)
class Factored:
    """Runs at one r with one factor on the key/value rate. The base has the smallest r; its factor
    is 1.
    """

    r: float
    log2_factor: float
    "Of the key/value rate over the hidden rate, relative to the base."
    runs: Sequence[Measurement]


@dataclass(frozen=True)
class FactorCell:
    """A factor at one r, with its optimum and the loss there."""

    r: float
    log2_factor: float
    analysis: CellAnalysis

    @property
    def usable(self) -> bool:
        return self.analysis.optimum is not None and not NO_OPTIMUM & set(self.analysis.flags)


@dataclass(frozen=True)
class Exponent:
    """γ with its interval, which has no end if the data set none; None if there is no curve."""

    question: Question
    gamma: Estimate | None
    by_r: Mapping[float, Estimate]
    "The same from each r alone."
    one_serves: float | None
    "p-value of the hypothesis that one γ fits every r; None for one r."
    swept: tuple[float, float]
    "The range of γ that was tried at every r."
    more_seeds: int | None
    "Seeds that should bound the interval; 0 if it is bounded, None if seeds alone are not enough."


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
    """log2 of (1 + √r)/2, relative to the base: the unit of γ.

    >>> round(2 ** log2_paper_factor(4), 6), round(2 ** log2_paper_factor(9, base_r=4), 6)
    (1.5, 1.333333)
    """
    return math.log2((1 + math.sqrt(r)) / (1 + math.sqrt(base_r)))


def fit_exponents(tried: Sequence[Factored], *, confidence: float = 0.95) -> Exponents:
    """γ for both questions, from runs at the base and at one or more larger r."""
    first = min((one.r for one in tried), default=math.nan)
    if len({one.r for one in tried}) < 2 or sum(one.r == first for one in tried) != 1:
        raise DimensionError(
            f"r = {sorted(one.r for one in tried)}: an exponent needs the base once, and factors "
            "at one or more larger r."
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


def _member(one: Factored) -> Member:
    return Member(label=f"r = {one.r:g}", position=one.r)


def _renamed(one: Factored) -> list[Measurement]:
    """The runs with their factor as the rule's name: cells are analysed by factor."""
    return [replace(run, rule=_name(one), member=_member(one)) for run in one.runs]


# One question


@dataclass(frozen=True)
class _Curve:
    """A curve in log2 f through the cells of one r."""

    lever: float
    "log2 of the paper's factor at this r: log2 f per unit of γ."
    offsets: Array
    "log2 f of the cells, ascending."
    cells: tuple[CellValue, ...]
    smooth: bool
    "A cubic (a parabola through three), or lines from cell to cell."

    @property
    def swept(self) -> tuple[float, float]:
        return float(self.offsets[0]) / self.lever, float(self.offsets[-1]) / self.lever

    def height(self, gammas: Array) -> Array:
        """The weight of each cell in the curve at each γ.

        The curve is linear in the cells' values, so these weights give its error as well.
        """
        at, count = gammas * self.lever, len(self.cells)
        if not self.smooth:
            return np.stack([np.interp(at, self.offsets, unit) for unit in np.eye(count)], axis=1)
        # A pseudoinverse: with more than four cells, the cubic is the least-squares one.
        powers = np.arange(min(4, count))
        return at[:, None] ** powers @ np.linalg.pinv(self.offsets[:, None] ** powers)


@dataclass(frozen=True)
class _Sums:
    """Sums of cells, one for each of several γ: value, standard error, degrees of freedom."""

    values: Array
    errors: Array
    freedom: Array

    def reach(self, confidence: float) -> Array:
        """Half the interval of each; infinite without degrees of freedom."""
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
    "Its optimum, from which distances are measured; None for losses, compared within each r."
    curves: Sequence[_Curve]
    confidence: float
    pooled: bool = True
    "Whether spreads of seeds may be pooled where they are alike."

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
        # Optima differ by seed even if these few seeds happen to agree; the recorded spread counts
        # for two degrees of freedom, as in `optima`. Losses have no such record.
        recorded = (RECORDED_SPREAD**2, 2.0) if self.question == "still" else (0.0, 0.0)
        return SeedBlocks.of(self._blocks, recorded, pooled=self.pooled)

    def at(self, gammas: Array, shares: Array | None = None) -> _Sums:
        """Distances from the base's optimum, summed over r with these shares (default: the levers).

        Sharing by lever gives most weight to the r at which γ matters most.
        """
        shares = self.levers if shares is None else shares
        own = [
            share * curve.height(gammas) for share, curve in zip(shares, self.curves, strict=True)
        ]
        return self._sums(np.hstack([*own, np.full((len(gammas), 1), -shares.sum())]))

    def above(self, gammas: Array, best: Sequence[float]) -> _Sums:
        """How far the losses, summed over r, lie above those at the best γ of each r."""
        there = [
            curve.height(np.array([one])) for curve, one in zip(self.curves, best, strict=True)
        ]
        return self._sums(
            np.hstack([c.height(gammas) - low for c, low in zip(self.curves, there, strict=True)])
        )

    def lowest(self, gammas: Array) -> float:
        """The γ with the lowest loss, summed over r."""
        first = [float(gammas[0])] * len(self.curves)
        return float(gammas[int(np.argmin(self.above(gammas, first).values))])

    @property
    def tried(self) -> Array:
        """Every γ that was tried at some r and lies in the range of every r."""
        every = np.unique(np.concatenate([curve.offsets / curve.lever for curve in self.curves]))
        return every[(every >= self.swept[0]) & (every <= self.swept[1])]

    def _sums(self, weights: Array) -> _Sums:
        cells = [cell for block in self._blocks for cell in block]
        variance, freedom = self._variance(weights, cells)
        return _Sums(weights @ [cell.value for cell in cells], np.sqrt(variance), freedom)

    def _variance(self, weights: Array, cells: Sequence[CellValue]) -> tuple[Array, Array]:
        squares = np.square(weights)
        alone = np.array([cell.degrees_of_freedom for cell in cells])
        # If seeds differ from cell to cell, every cell has its own error; if they are shared, the
        # blocks give it, except for the part that the seeds' values do not show.
        own = "error" if self._seeds is None else "extra_error"
        parts = squares * [getattr(cell, own) ** 2 for cell in cells]
        shared, freedom = (0.0, 1.0) if self._seeds is None else self._seeds.variance(weights)
        total = parts.sum(axis=1) + shared
        if not np.isfinite(total).all():
            return total, np.zeros(len(total))
        # Satterthwaite's degrees of freedom, as in `optima.summed`, for all γ at once.
        inverse = (
            np.divide(parts**2, alone, out=np.zeros_like(parts), where=alone > 0).sum(axis=1)
            + shared**2 / freedom
        )
        pooled = np.divide(total**2, inverse, out=np.full_like(total, math.inf), where=inverse > 0)
        by_seed = None if self._seeds is None else self._seeds.by_seed(weights)
        if by_seed is None:
            return total, pooled
        # Not pooled, the whole error has the few degrees of freedom of the seeds: Satterthwaite's
        # would be too many where they agree by chance. For the same reason the pooled error is kept
        # where its interval is wider.
        unlike, few = parts.sum(axis=1) + by_seed[0], np.full_like(total, by_seed[1])
        wider = unlike * self._square(few) >= total * self._square(pooled)
        return np.where(wider, unlike, total), np.where(wider, few, pooled)

    def _square(self, freedom: Array) -> Array:
        """Of Student's quantile."""
        return np.square(student.ppf((1 + self.confidence) / 2, freedom))

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
    """One for each r; None if one of them has too few cells with an optimum."""
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
        return optimum_value(one)
    return CellValue(one.loss, math.inf, 0, one.seed_losses)


# Other fits


def still_by_fit(
    tried: Sequence[Factored], *, confidence: float = 0.95
) -> dict[str, Estimate | None]:
    """γ for "still" by each of three other fits, to each seed's own runs and without pooling; None
    where a fit locates too few optima.
    """
    first = min(one.r for one in tried)
    optima = seed_optima([run for one in tried for run in _renamed(one)])
    found: dict[str, Estimate | None] = {}
    for fit in FITS:
        located = {
            (one.r, one.log2_factor): value
            for one in sorted(tried, key=lambda one: (one.r, one.log2_factor))
            if (value := optima.located(fit, (_name(one), _member(one))))
        }
        base = next((value for (r, _), value in located.items() if r == first), None)
        curves = [
            _line(r, first, {f: value for (own, f), value in located.items() if own == r})
            for r in sorted({one.r for one in tried} - {first})
        ]
        known = [curve for curve in curves if curve is not None]
        whole = base is not None and len(known) == len(curves)
        test = _Test("still", base, known, confidence, pooled=False)
        found[fit] = _still(test) if whole else None
    return found


def _line(r: float, first: float, cells: Mapping[float, CellValue]) -> _Curve | None:
    if len(cells) < _LEAST["still"]:
        return None
    lever = log2_paper_factor(r, first)
    return _Curve(lever, np.array(list(cells)), tuple(cells.values()), smooth=False)


# Solving for γ


def _solved(test: _Test) -> Estimate:
    return _lowest(test) if test.question == "loss" else _still(test)


def _lowest(test: _Test) -> Estimate:
    """The γ with the lowest loss, and all that are indistinguishable from it."""
    # Both the fitted curve and the factors tried must be able to keep a γ in: a cubic may smooth a
    # real minimum away, and a single cell may be low by chance.
    fine = np.linspace(*test.swept, 10 * _GRID)
    kept = np.concatenate([_not_above(test, gammas) for gammas in (fine, test.tried)])
    low = -math.inf if kept.min() <= test.swept[0] else float(kept.min())
    high = math.inf if kept.max() >= test.swept[1] else float(kept.max())
    freedom = test.above(np.array(test.swept), [float(fine[0])] * len(test.curves)).freedom
    return Estimate(test.lowest(fine), low, high, float(freedom.min()))


def _not_above(test: _Test, gammas: Array) -> Array:
    """Those whose loss is indistinguishable from the lowest of them."""
    lowest = test.lowest(gammas)
    above = test.above(gammas, [lowest] * len(test.curves))
    # The lowest itself differs from itself by rounding alone, and its error is as small.
    return gammas[(above.values <= above.reach(test.confidence)) | (gammas == lowest)]


def _still(test: _Test) -> Estimate:
    """The γ at which the optimum is that of the base, and all γ at which it might be."""
    grid = _with_crossings(test, np.linspace(*test.swept, _GRID))
    sums = test.at(grid)
    excess = np.abs(sums.values) - sums.reach(test.confidence)
    if not (excess <= 0).any():  # no γ in the swept range fits
        return _beyond(grid, sums.values)
    # The estimate is where the sum is zero. If it never is, but comes close enough somewhere, it is
    # the γ that is excluded least.
    root = _root(grid, sums.values)
    value = float(grid[int(np.argmin(excess))]) if root is None else root
    return _hull(grid, excess, value, float(sums.freedom.min()))


def _hull(grid: Array, excess: Array, value: float, freedom: float) -> Estimate:
    """From the first to the last γ that is not excluded; an end of the grid is not an end of the
    interval.
    """
    inside = np.flatnonzero(excess <= 0)
    low = -math.inf if inside[0] == 0 else _between(grid, excess, int(inside[0]) - 1)
    high = math.inf if inside[-1] == len(grid) - 1 else _between(grid, excess, int(inside[-1]))
    return Estimate(value, min(low, value), max(high, value), freedom)


def _with_crossings(test: _Test, grid: Array) -> Array:
    """The grid, finer where the sum crosses zero: an interval may be narrower than a grid step."""
    values = test.at(grid).values
    crossings = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
    finer = [np.linspace(grid[place], grid[place + 1], _FINER)[1:-1] for place in crossings]
    roots = [_between(grid, values, int(place)) for place in crossings]
    return np.sort(np.concatenate([grid, *finer, roots]))


def _between(grid: Array, heights: Array, place: int) -> float:
    """Where a line through two neighbours is zero."""
    (here, there), (low, high) = heights[place : place + 2], grid[place : place + 2]
    if not math.isfinite(here - there):
        return float(low)
    return float(low + (high - low) * here / (here - there))


def _root(grid: Array, values: Array) -> float | None:
    """Where the sum is zero. A larger factor should lower the optimum, so a falling crossing is
    preferred to one that noise makes.
    """
    crossings = np.flatnonzero(np.sign(values[:-1]) != np.sign(values[1:]))
    falling = [int(k) for k in crossings if values[k] > values[k + 1]]
    chosen = falling or [int(k) for k in crossings]
    return _between(grid, values, chosen[0]) if chosen else None


def _beyond(grid: Array, values: Array) -> Estimate:
    """If no γ in the swept range fits: the side on which it lies, or no bounds at all."""
    first, last, nearest = float(grid[0]), float(grid[-1]), int(np.argmin(np.abs(values)))
    if 0 < nearest < len(grid) - 1:
        return Estimate(float(grid[nearest]), -math.inf, math.inf, 0)
    return Estimate(last, last, math.inf, 0) if nearest else Estimate(first, -math.inf, first, 0)


def _agreement(test: _Test) -> float:
    return _one_loss(test) if test.question == "loss" else _one_place(test)


def _one_loss(test: _Test) -> float:
    """The p-value of one γ for every r: the loss that each r gives up at the best common γ, against
    noise.

    Two-sided, since the lowest of several noisy losses lies below its true value.
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
    """The same for optima: the smallest sum of squares over γ (Hotelling's T²), against noise.

    γ is fitted, so there is one degree of freedom fewer than there are r. If the data hardly bound
    γ, there are fewer still, and the test then errs on the side of one γ.
    """
    grid = _with_crossings(test, np.linspace(*test.swept, _GRID))
    count, units = len(test.curves), np.eye(len(test.curves))
    own = [test.at(grid, unit) for unit in units]
    noise = [np.square(one.errors) for one in own]
    if not np.isfinite(noise).all():
        return 1.0
    # Covariances from variances of sums: 2·cov(a, b) = var(a + b) − var(a) − var(b).
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
    """Seeds with which both ends of the swept range are excluded with a probability of 80 %, if the
    present sums are true.
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
    """The sums at both ends of the swept range, which must become significant; None if the answer
    lies at an end.
    """
    ends = np.array(test.swept)
    if test.question == "loss":
        return test.above(ends, [value] * len(test.curves)) if ends[0] < value < ends[1] else None
    sums = test.at(ends)
    return sums if sums.values[0] * sums.values[1] < 0 else None


def _chance(ends: _Sums, seeds: int, more: int, test: _Test) -> float:
    product = 1.0
    # More seeds shrink the error by √seeds and add degrees of freedom in proportion to seeds − 1.
    # Both ends must be excluded; their errors are treated as independent.
    for value, error, freedom in zip(ends.values, ends.errors, ends.freedom, strict=True):
        reach = t_quantile(freedom * (seeds + more - 1) / (seeds - 1), test.confidence, 1)
        product *= float(ndtr(abs(value) / (error * math.sqrt(seeds / (seeds + more))) - reach))
    return product
