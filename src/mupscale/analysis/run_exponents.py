"""How the best rate changes with the batch and the tokens of a run, measured:

    log2 lr* = c + a·log2 B − b·log2 D

Each fit of `fits` locates the best rate of every cell (a batch and a length) for each seed on its
own. The slopes over the cells are computed for each seed, so that what a seed does to all cells
cancels. A result counts only if every fit gives it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.fits import (
    FITS,
    Agreement,
    LowestPoint,
    agreed,
    best_column,
    lowest_points,
    mean_over_seeds,
)
from mupscale.errors import DimensionError

Array = NDArray[np.float64]

AXES = ("batch", "tokens")


@dataclass(frozen=True, eq=False)
class SizedTable:
    """The losses of one batch and length, by seed and rate; NaN is a run without a loss."""

    batch: float
    "In tokens."
    tokens: float
    "Of the whole run."
    seeds: tuple[int, ...]
    log2_rates: tuple[float, ...]
    losses: Array
    diverged: int = 0

    @property
    def name(self) -> str:
        return f"batch {self.batch:,.0f}, {self.tokens:,.0f} tokens"

    @property
    def runs(self) -> int:
        return int(np.isfinite(self.losses).sum()) + self.diverged

    def lowest(self, fit: str) -> tuple[LowestPoint, ...]:
        """The lowest point of each seed's curve."""
        if fit not in self._lowest:
            self._lowest[fit] = lowest_points(fit, self.log2_rates, self.losses)
        return self._lowest[fit]

    @cached_property
    def _lowest(self) -> dict[str, tuple[LowestPoint, ...]]:
        return {}

    def located(self, fit: str) -> bool:
        """Whether a fit finds the best rate of every seed inside of the range."""
        return all(point.inside for point in self.lowest(fit))

    @property
    def best(self) -> float | None:
        """The rate of the grid with the lowest mean loss, in log2."""
        column = best_column(self.losses)
        return None if column is None else self.log2_rates[column]

    def loss_at(self, log2_rate: float) -> Array | None:
        """Each seed's loss at a rate, between those of the grid on a straight line; None outside
        of the grid, or next to a run without a loss.
        """
        found = np.array([np.interp(log2_rate, self.log2_rates, row) for row in self.losses])
        inside = self.log2_rates[0] <= log2_rate <= self.log2_rates[-1]
        return found if inside and np.isfinite(found).all() else None

    def regret(self, fit: str, log2_rate: float) -> Estimate | None:
        """What a rate costs, in nats: its loss minus the lowest of the fitted curve, by seed."""
        there = self.loss_at(log2_rate)
        if there is None or not self.located(fit):
            return None
        lowest = [point.loss for point in self.lowest(fit)]
        return mean_over_seeds([float(a - b) for a, b in zip(there, lowest, strict=True)])


@dataclass(frozen=True)
class FittedExponents:
    """What one fit finds."""

    slopes: Mapping[str, Estimate]
    "Of log2 lr* over log2 of each axis: a for batch, and −b for tokens."
    bends: Mapping[str, Estimate]
    """Change of each slope per doubling of its axis, where at least three sizes were tried: 0 on a
    straight line.
    """
    centre: tuple[float, Mapping[str, float]]
    "log2 lr* in the middle of the cells, and log2 of the sizes there."
    left_out: tuple[str, ...]
    "Cells without a best rate for every seed."


@dataclass(frozen=True)
class RunExponents:
    """The answer of all fits."""

    axes: tuple[str, ...]
    by_fit: Mapping[str, FittedExponents | None]
    "None for a fit that located too few best rates."
    seeds: tuple[int, ...]
    runs: int
    diverged: int
    ranges: Mapping[str, tuple[float, float]]
    "The smallest and the largest size of each axis, in tokens."

    def slope(self, axis: str) -> Agreement:
        """The slope that all fits agree on: its sign, or that it is indistinguishable from 0."""
        return agreed(self._each("slopes", axis), _sign)

    def bend(self, axis: str) -> Agreement:
        """Whether the line is straight."""
        return agreed(self._each("bends", axis), _straight)

    def _each(self, kind: str, axis: str) -> dict[str, Estimate | None]:
        return {
            fit: None if one is None else getattr(one, kind).get(axis)
            for fit, one in self.by_fit.items()
        }

    @property
    def bounded(self) -> bool:
        """Whether every slope has an interval by every fit."""
        found = [self.slope(axis).widest for axis in self.axes]
        return all(one is not None and one.bounded for one in found)


def _sign(slope: Estimate) -> str:
    if not slope.excludes(0):
        return "no significant change"
    return "rises" if slope.value > 0 else "falls"


def _straight(bend: Estimate) -> str:
    return "not a straight line" if bend.excludes(0) else "no significant bend"


def fit_run_exponents(
    tables: Sequence[SizedTable], *, confidence: float = 0.95, fits: Sequence[str] = tuple(FITS)
) -> RunExponents:
    """The exponents of the axes that vary, by every fit.

    >>> rates = np.arange(-10, -3.75, 0.5)
    >>> def table(batch, tokens):
    ...     best = -7 + 0.5 * math.log2(batch / 512) - 0.25 * math.log2(tokens / 1e5)
    ...     losses = np.array([2 + 0.1 * (rates - best) ** 2, 2.1 + 0.1 * (rates - best) ** 2])
    ...     return SizedTable(batch, tokens, (1, 2), tuple(rates), losses)
    >>> tables = [table(b, d) for b in (512, 1024, 2048) for d in (1e5, 2e5, 4e5)]
    >>> found = fit_run_exponents(tables).by_fit["cubic"]
    >>> round(found.slopes["batch"].value, 3), round(found.slopes["tokens"].value, 3)
    (0.5, -0.25)
    """
    seeds = {table.seeds for table in tables}
    if len(seeds) != 1:
        raise DimensionError(
            "the cells have different seeds. Train every batch and length with the same ones."
        )
    axes = tuple(axis for axis in AXES if len({getattr(one, axis) for one in tables}) > 1)
    if not axes:
        raise DimensionError(
            "neither the batch nor the tokens of the runs vary, so there is no exponent to "
            "measure. Give at least two of one of them."
        )
    return RunExponents(
        axes=axes,
        by_fit={fit: _fitted(fit, axes, tables, confidence) for fit in fits},
        seeds=seeds.pop(),
        runs=sum(table.runs for table in tables),
        diverged=sum(table.diverged for table in tables),
        ranges={
            axis: (
                min(getattr(one, axis) for one in tables),
                max(getattr(one, axis) for one in tables),
            )
            for axis in AXES
        },
    )


def _fitted(
    fit: str, axes: Sequence[str], tables: Sequence[SizedTable], confidence: float
) -> FittedExponents | None:
    used = [table for table in tables if table.located(fit)]
    columns = [np.log2([getattr(one, axis) for one in used]) for axis in axes] if used else []
    # A plane needs one cell more than it has slopes, and two sizes of every axis.
    if len(used) <= len(axes) or any(len(np.unique(column)) < 2 for column in columns):
        return None
    middles = [float(column.mean()) for column in columns]
    x = [column - middle for column, middle in zip(columns, middles, strict=True)]
    optima = np.array([[point.log2_rate for point in one.lowest(fit)] for one in used])
    plane = _slopes(x, optima, confidence)
    if plane is None:
        return None
    bends: dict[str, Estimate] = {}
    for axis, column in zip(axes, x, strict=True):
        square = column**2 - (column**2).mean()
        curved = _slopes([*x, square], optima, confidence) if len(np.unique(column)) > 2 else None
        if curved is not None:
            last = curved[-1]  # of x², whose slope changes by twice that per doubling
            bends[axis] = Estimate(
                2 * last.value, 2 * last.low, 2 * last.high, last.degrees_of_freedom
            )
    return FittedExponents(
        slopes=dict(zip(axes, plane, strict=True)),
        bends=bends,
        centre=(float(optima.mean()), dict(zip(axes, middles, strict=True))),
        left_out=tuple(table.name for table in tables if not table.located(fit)),
    )


def _slopes(columns: Sequence[Array], optima: Array, confidence: float) -> list[Estimate] | None:
    """Least-squares slopes of optima (a row per cell, a column per seed), with the wider of two
    intervals: from the differences between seeds, and from the scatter of cells about the plane.

    Seeds show no error that they share, such as a surface that is no plane; cells do. With few
    cells beyond the slopes, their scatter is hardly known, and its interval is wide. One seed gives
    no bound.
    """
    x = np.column_stack([np.ones(len(optima)), *columns])
    if np.linalg.matrix_rank(x) < x.shape[1]:
        return None
    inverse = np.linalg.pinv(x)
    by_seed = (inverse @ optima)[1:]  # a row per slope, a column per seed
    mean = optima.mean(axis=1)
    freedom = len(optima) - x.shape[1]
    rest = mean - x @ (inverse @ mean)
    spread = math.sqrt(float(rest @ rest) / freedom) if freedom else 0.0
    errors = spread * np.sqrt(np.diag(inverse @ inverse.T))[1:]
    found: list[Estimate] = []
    for row, error in zip(by_seed, errors, strict=True):
        by_seeds = mean_over_seeds([float(value) for value in row], confidence)
        by_cells = Estimate.student(by_seeds.value, float(error), freedom, confidence)
        wider = by_cells.high - by_cells.low > by_seeds.high - by_seeds.low
        found.append(by_cells if freedom and wider else by_seeds)
    return found
