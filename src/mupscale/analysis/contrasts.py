"""Differences between cells that share their seeds.

Each cell has one value per seed: its optimum, or its loss there. Every cell has the same seeds, so
a value is the cell's mean, plus an effect of the seed that is common to all cells, plus an effect
of the seed in this cell (a two-way table without replication; Scheffé 1959, ch. 8). In a sum of
cells whose weights cancel, the common effect cancels too, and all cells together estimate its
error: 9 cells and 3 seeds give 16 degrees of freedom instead of 2.

That holds only if seeds lie equally far apart in every cell. Where a test rejects that
(`spreads.equal_spread_chance`), the weighted sum of cells is one number for each seed, and the
spread of these numbers is its error, with one degree of freedom fewer than there are seeds. That is
exact for any spreads. The interval is never shorter than the pooled one.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chndtr

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.optima import Spread, summed
from mupscale.analysis.slopes import t_quantile
from mupscale.analysis.spreads import POOLING_LEVEL, equal_spread_chance

Array = NDArray[np.float64]


# A ratio of variances at which noise hardly matters.
_CLEAR = 1e4


@dataclass(frozen=True)
class CellValue:
    """A cell's value with its error from this cell alone, and the value of each seed if known.

    `fingerprint` is equal for cells with the same runs, such as the base of two rules.
    """

    value: float
    error: float
    degrees_of_freedom: float
    by_seed: Mapping[int, float]
    extra_error: float = 0.0
    "The part of the error that the seeds' values do not show."
    fingerprint: Hashable = None


@dataclass(frozen=True)
class SeedTable:
    """Mean squares over a set of cells: of the common effects of seeds, and of their interaction
    with cells.
    """

    cells: int
    seeds: int
    of_seeds: float
    of_interaction: float
    alike: bool = True
    "Whether seeds may lie equally far apart in every cell, so that mean squares hold for each."
    effects: Mapping[int, float] = field(default_factory=dict[int, float])
    "Of each seed on all cells; empty without evidence of such an effect."

    @property
    def interaction_freedom(self) -> int:
        return (self.cells - 1) * (self.seeds - 1)

    def own_variance(self, cell: CellValue) -> float:
        """Of one seed's value in this cell, without the effects that all cells share."""
        rest = [value - self.effects.get(seed, 0.0) for seed, value in cell.by_seed.items()]
        # Subtracting effects that were fitted to these cells takes 1/cells of the variance away.
        kept = 1 - 1 / self.cells if self.effects else 1.0
        return float(np.var(rest, ddof=1)) / kept

    def variance(self, total: float, squares: float) -> tuple[float, float]:
        """Variance of Σ w·mean over seeds, with total = Σw and squares = Σw², and its degrees of
        freedom, if the cells are alike.
        """
        shared = total**2 / self.cells
        # Without evidence of a common effect, both mean squares estimate one variance: pool them.
        if self.cells == 1 or self.of_seeds <= self.of_interaction:
            freedom = self.cells * (self.seeds - 1)
            within = (self.of_seeds + (self.cells - 1) * self.of_interaction) / self.cells
            return squares * within / self.seeds, freedom
        parts = [(shared * self.of_seeds / self.seeds, self.seeds - 1.0)]
        if squares > shared:
            own = (squares - shared) * self.of_interaction / self.seeds
            parts.append((own, float(self.interaction_freedom)))
        return summed(parts)


def seed_table(cells: Sequence[CellValue]) -> SeedTable | None:
    """The table of the distinct cells; None unless all have the same two or more seeds."""
    distinct = list({_identity(k, cell): cell for k, cell in enumerate(cells)}.values())
    seeds = sorted(distinct[0].by_seed) if distinct else []
    if len(seeds) < 2 or any(sorted(cell.by_seed) != seeds for cell in distinct):
        return None
    table: Array = np.array([[cell.by_seed[seed] for seed in seeds] for cell in distinct])
    count = len(table)
    by_seed = table.mean(axis=0) - table.mean()
    rest = table - table.mean(axis=1, keepdims=True) - by_seed
    of_seeds = count * float(by_seed @ by_seed) / (len(seeds) - 1)
    freedom = (count - 1) * (len(seeds) - 1)
    of_interaction = float(np.square(rest).sum()) / freedom if freedom else 0.0
    common = count > 1 and of_seeds > of_interaction
    alike = equal_spread_chance(table.tolist(), shared=common) >= POOLING_LEVEL
    effects = dict(zip(seeds, map(float, by_seed), strict=True)) if common else {}
    return SeedTable(count, len(seeds), of_seeds, of_interaction, alike, effects)


def _identity(place: int, cell: CellValue) -> Hashable:
    """Cells with the same runs count once."""
    return ("place", place) if cell.fingerprint is None else ("fingerprint", cell.fingerprint)


def pooled_spread(cells: Sequence[CellValue]) -> Spread | None:
    """How far the values of seeds lie apart, from all cells together; None if no cell has two, or
    if they do not lie equally far apart in every cell.

    Cells with different seeds, as an adaptive search leaves them, are treated as independent.
    """
    table = seed_table(cells)
    if table is not None:
        if not table.alike:
            return None
        variance, freedom = table.variance(1.0, 1.0)
        return Spread(variance * table.seeds, freedom)
    distinct = {_identity(k, cell): list(cell.by_seed.values()) for k, cell in enumerate(cells)}
    several = [np.array(values) for values in distinct.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom or equal_spread_chance([row.tolist() for row in several]) < POOLING_LEVEL:
        return None
    return Spread(
        sum(float(np.square(values - values.mean()).sum()) for values in several) / freedom, freedom
    )


def contrast(
    cells: Sequence[CellValue], weights: Sequence[float], table: SeedTable | None, confidence: float
) -> Estimate:
    """Σ w·value with its interval. `table` is that of all cells of the study, of which these may
    be a part.
    """
    merged: dict[Hashable, tuple[CellValue, float]] = {}
    for k, (cell, weight) in enumerate(zip(cells, weights, strict=True)):
        known = merged.get(_identity(k, cell), (cell, 0.0))[1]
        merged[_identity(k, cell)] = cell, known + weight
    pairs = [(cell, weight) for cell, weight in merged.values() if abs(weight) > 1e-12]
    value = sum(cell.value * weight for cell, weight in zip(cells, weights, strict=True))
    if not pairs:  # the same runs on both sides: the difference is exactly this
        return Estimate(value, value, value)
    alone = [((weight * cell.error) ** 2, cell.degrees_of_freedom) for cell, weight in pairs]
    if table is None:
        total, freedom = (
            summed(alone) if all(math.isfinite(v) and f > 0 for v, f in alone) else (math.inf, 0.0)
        )
        return Estimate.student(value, math.sqrt(total), freedom, confidence)
    extras = [((weight * cell.extra_error) ** 2, cell.degrees_of_freedom) for cell, weight in pairs]
    extras = [(variance, freedom) for variance, freedom in extras if variance > 0]
    shared = table.variance(
        sum(weight for _, weight in pairs), sum(weight**2 for _, weight in pairs)
    )
    if not table.alike:
        return _by_seed(value, pairs, shared, extras, confidence)
    total, freedom = summed([shared, *extras])
    return Estimate.student(value, math.sqrt(total), freedom, confidence)


def _by_seed(
    value: float,
    pairs: Sequence[tuple[CellValue, float]],
    shared: tuple[float, float],
    extras: Sequence[tuple[float, float]],
    confidence: float,
) -> Estimate:
    """An interval from one sum for each seed. `shared` is the pooled variance of the sum."""
    seeds = sorted(pairs[0][0].by_seed)
    sums = [sum(weight * cell.by_seed[seed] for cell, weight in pairs) for seed in seeds]
    own = float(np.var(sums, ddof=1)) / len(seeds), len(seeds) - 1.0
    # The pooled half-width is the least: a few seeds that agree by chance show nothing.
    half = max(_half(*part, confidence) for part in (own, shared))
    # Half-widths add up in squares, each with its own quantile. Satterthwaite's degrees of freedom
    # would give two seeds that agree by chance those of the other part of the error.
    half = math.hypot(half, _half(*summed(extras), confidence)) if extras else half
    return Estimate(value, value - half, value + half, len(seeds) - 1)


def _half(variance: float, freedom: float, confidence: float) -> float:
    return Estimate.student(0.0, math.sqrt(variance), freedom, confidence).high


def member_noise(cells: Sequence[CellValue], table: SeedTable | None) -> tuple[float, float]:
    """Variance by which a cell's value differs from the others by chance, and its degrees of
    freedom.

    With shared seeds, the common effect of a seed moves all cells together and is not part of it.
    """
    parts = [_own_noise(cell, table) for cell in cells]
    if not all(math.isfinite(variance) and freedom > 0 for variance, freedom in parts):
        return math.inf, 0.0
    total, freedom = summed([(variance / len(parts), freedom) for variance, freedom in parts])
    if table is None or not table.alike:
        return total, freedom
    # The table's part is one estimate that all cells share, not one for each.
    return total, min(freedom, float(table.interaction_freedom))


def _own_noise(cell: CellValue, table: SeedTable | None) -> tuple[float, float]:
    if table is None or not table.interaction_freedom:
        return cell.error**2, cell.degrees_of_freedom
    parts = [(table.of_interaction / table.seeds, float(table.interaction_freedom))]
    if not table.alike:
        parts = [(table.own_variance(cell) / table.seeds, table.seeds - 1.0)]
    if cell.extra_error > 0:
        parts.append((cell.extra_error**2, cell.degrees_of_freedom))
    return summed(parts)


def spread_of_members(
    variance: float, members: int, noise: float, freedom: float, confidence: float = 0.95
) -> Estimate:
    """The standard deviation (ddof 0) of the true values, from that of noisy estimates of them.

    The value is the observed one. The interval inverts a noncentral χ², with Student's factor since
    the noise is estimated: at its ends, a spread as small or as large as the observed one is just
    likely enough. If it reaches 0, noise alone may explain the spread.

    >>> spread_of_members(0.04, 6, noise=0.01, freedom=20)
    Estimate(value=0.2, low=0.0867..., high=0.2688..., degrees_of_freedom=20)
    """
    observed = math.sqrt(variance)
    if members < 2:
        return Estimate(observed, observed, observed, freedom)
    if not math.isfinite(noise) or freedom <= 0:
        return Estimate(observed, 0.0, math.inf, 0)
    unit = noise * (t_quantile(freedom, confidence, 1) / t_quantile(math.inf, confidence, 1)) ** 2
    ratio = variance * members / unit if unit > 0 else math.inf
    if ratio > _CLEAR:  # scipy fails up there, where the sd is linear in the optima
        return Estimate.student(observed, math.sqrt(noise / members), freedom, confidence)
    # Values that happen to lie closer together than noise predicts do not show that they are equal:
    # the upper end is computed as if they lay as far apart as noise predicts.
    ends = (ratio, (1 + confidence) / 2), (max(ratio, members - 1.0), (1 - confidence) / 2)
    low, high = (
        math.sqrt(_noncentrality(sum_of_squares, members - 1, tail) * unit / members)
        for sum_of_squares, tail in ends
    )
    return Estimate(observed, low, high, freedom)


def _noncentrality(sum_of_squares: float, degrees_of_freedom: int, tail: float) -> float:
    """The noncentrality of the χ² that lies below this sum with probability `tail`; 0 if none."""

    def excess(noncentrality: float) -> float:
        return float(chndtr(sum_of_squares, degrees_of_freedom, noncentrality)) - tail

    if excess(0.0) <= 0:
        return 0.0
    top = 4.0 * (sum_of_squares + degrees_of_freedom)
    while excess(top) > 0:
        top *= 2
    return cast(float, brentq(excess, 0.0, top, xtol=1e-9))
