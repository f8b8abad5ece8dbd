"""Studies of the learning rate as tables of losses, and questions about them with three fits.

A design fixes both before the runs: which losses are compared, which curves are fitted, and that
nothing counts unless all fits give it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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
    slopes_by_seed,
)
from mupscale.analysis.verdicts import judge_drift
from mupscale.studies import Study, StudyConfig
from mupscale.studies.config import Cell
from mupscale.studies.searching import grid
from mupscale.studies.study import CONFIG
from mupscale.studies.trials import TrialRecord

ABOVE_ZERO, NOT_ABOVE_ZERO, DIVERGED = "above 0", "indistinguishable from 0", "diverged"
MEASURED = "measured"
"""In place of a fit's name, for differences of losses that were measured."""

_ENDED = ("finished", "diverged")


@dataclass(frozen=True, eq=False)
class RateTable:
    """A cell: losses by seed and rate; NaN is a run that diverged or is missing."""

    rule: str
    model: str
    'As in a sentence: "width 256".'
    seeds: tuple[int, ...]
    log2_rates: tuple[float, ...]
    losses: NDArray[np.float64]
    ended: int
    diverged: int
    study: str = ""
    "The folder of its study, inside that of the experiment."
    parameter: str = "lr"
    "Whose values are called rates here."
    reach: float = 1.0
    "How much farther than usual the fits reach."

    @property
    def expected(self) -> int:
        return self.losses.size

    @property
    def complete(self) -> bool:
        return self.ended == self.expected

    @cached_property
    def best(self) -> float | None:
        """The rate of the grid with the lowest mean loss over the seeds, in log2."""
        column = best_column(self.losses)
        return None if column is None else self.log2_rates[column]

    @property
    def open_at(self) -> str | None:
        """The end of the range at which the lowest mean loss lies."""
        ends = {self.log2_rates[0]: "lower", self.log2_rates[-1]: "upper"}
        return None if self.best is None else ends.get(self.best)

    @cached_property
    def lowest(self) -> dict[str, tuple[LowestPoint, ...]]:
        """The lowest point of each seed's curve, by fit."""
        return {
            fit: lowest_points(fit, self.log2_rates, self.losses, reach=self.reach) for fit in FITS
        }

    def at(self, seed: int, log2_rate: float | None) -> float | None:
        """The loss of a run; NaN if it diverged, None if the table does not hold it yet."""
        if seed not in self.seeds or log2_rate not in self.log2_rates:
            return None
        loss = self.losses[self.seeds.index(seed), self.log2_rates.index(log2_rate)]
        return None if math.isnan(loss) and not self.complete else float(loss)

    def of_seeds(self, fit: str, seeds: Sequence[int]) -> list[LowestPoint]:
        return [self.lowest[fit][self.seeds.index(seed)] for seed in seeds]


def rate_tables(
    config: StudyConfig,
    folder: Path,
    label: Callable[[StudyConfig, Cell], str],
    parameter: str = "lr",
    reach: float = 1.0,
) -> list[RateTable]:
    """The cells of a study over one parameter. `config` counts only as long as the folder has no
    study.
    """
    study = Study.open(folder) if (folder / CONFIG).exists() else Study(folder, config)
    trials = [trial for trial in study.trials if trial.status in _ENDED]
    tables: list[RateTable] = []
    for cell in study.config.cells():
        points = grid(cell.space, study.config.seeds, study.config.search.step)
        rates = sorted({_log2(point.params[parameter]) for point in points})
        own = [trial for trial in trials if trial.cell == cell.name]
        losses = _losses(study.config.seeds, parameter, rates, own)
        tables.append(
            RateTable(
                cell.rule_name,
                label(study.config, cell),
                study.config.seeds,
                tuple(rates),
                losses,
                len(own),
                sum(trial.loss is None for trial in own),
                folder.name,
                parameter,
                reach,
            )
        )
    return tables


def _losses(
    seeds: Sequence[int], parameter: str, rates: list[float], trials: Sequence[TrialRecord]
) -> NDArray[np.float64]:
    losses = np.full((len(seeds), len(rates)), math.nan)
    for trial in trials:
        if trial.loss is not None:
            place = seeds.index(trial.seed), rates.index(_log2(trial.params[parameter]))
            losses[place] = trial.loss
    return losses


def _log2(rate: float) -> float:
    """Rates of a grid are powers of two, up to rounding."""
    return round(math.log2(rate), 6)


# Questions


@dataclass(frozen=True)
class Question:
    """What a design asks about each rule."""

    name: str
    'Short, for tables: "regret".'
    meaning: str
    "What the numbers are."
    asks: str
    "For the table of claims; {rule} stands for the rule."
    unit: str
    judge: Callable[[Estimate], str]

    @property
    def digits(self) -> int:
        return 4 if self.unit == "nats" else 2


@dataclass(frozen=True)
class FitAnswer:
    """A question about one rule: a value per seed by each fit, or why there is none."""

    question: Question
    rule: str
    seeds: tuple[int, ...]
    by_fit: Mapping[str, tuple[float, ...] | None]
    "None for a fit that located no optimum for one of the seeds."
    missing: str
    "Why there is no value at all; empty if there is one."
    runs: int
    "That it rests on."

    def estimate(self, fit: str) -> Estimate | None:
        values = self.by_fit.get(fit)
        return None if values is None else mean_over_seeds(values)

    @cached_property
    def agreement(self) -> Agreement:
        if self.missing:
            return Agreement(self.missing, None)
        return agreed({fit: self.estimate(fit) for fit in self.by_fit}, self.question.judge)


def regret(
    question: Question,
    base: RateTable,
    target: RateTable,
    given: RateTable | None = None,
) -> FitAnswer:
    """L(target at the base's best rate) − min L(target), paired by seed. `given` holds runs of the
    target at that rate, where it lies outside of the target's range.
    """
    measured = [loss_at(seed, base.best, target, given) for seed in target.seeds]
    missing = missing_in([base, target])
    if not missing and None in measured:
        count = sum(one is not None for one in measured)
        missing = f"not run yet ({count} of {len(measured)} runs at the base's best rate)"
    losses = [math.nan if one is None else one for one in measured]
    if not missing and any(math.isnan(loss) for loss in losses):
        missing = DIVERGED

    def values(fit: str) -> list[float]:
        lowest = target.of_seeds(fit, target.seeds)
        return [loss - one.loss for loss, one in zip(losses, lowest, strict=True)]

    runs = base.ended + target.ended + (given.ended if given else 0)
    by_fit = {} if missing else _by_fit([target], target.seeds, values)
    return FitAnswer(question, target.rule, target.seeds, by_fit, missing, runs)


def loss_at(seed: int, log2_rate: float | None, *tables: RateTable | None) -> float | None:
    """The loss in the first table that has this run; NaN if it diverged, None if none has it."""
    found = (table.at(seed, log2_rate) for table in tables if table is not None)
    return next((loss for loss in found if loss is not None), None)


def drift(question: Question, rule: str, sizes: Mapping[float, RateTable]) -> FitAnswer:
    """The slope of log2 of the best rate over log2 of the size, for each seed."""
    tables = list(sizes.values())
    seeds = common_seeds(tables)

    def values(fit: str) -> list[float]:
        by_size = [[one.log2_rate for one in table.of_seeds(fit, seeds)] for table in tables]
        return slopes_by_seed(list(sizes), np.transpose(by_size))

    return _answer(question, rule, tables, seeds, values)


def lowest_above(question: Question, table: RateTable, reference: RateTable) -> FitAnswer:
    """The lowest loss of a cell minus that of another one, paired by seed."""
    seeds = common_seeds([table, reference])

    def values(fit: str) -> list[float]:
        first, second = (one.of_seeds(fit, seeds) for one in (table, reference))
        return [a.loss - b.loss for a, b in zip(first, second, strict=True)]

    return _answer(question, table.rule, [table, reference], seeds, values)


AtRate = tuple[RateTable, tuple[RateTable, RateTable]]
"""A base, whose best rate is used, and the two cells to compare there."""


def above_at_rate(question: Question, compared: Sequence[AtRate]) -> FitAnswer:
    """The loss of a cell minus that of another at the base's best rate, paired by seed. Of two
    comparisons, the first difference minus the second.
    """
    terms = [(one, base.best) for base, pair in compared for one in pair]
    return measured_difference(question, terms[0][0].rule, terms, [base for base, _ in compared])


Term = tuple[RateTable, float | None]
"""A cell, and log2 of the rate at which its loss is taken; None if every rate has diverged."""


def measured_difference(
    question: Question,
    rule: str,
    terms: Sequence[Term],
    bases: Sequence[RateTable] = (),
    recorded: Sequence[RateTable] = (),
) -> FitAnswer:
    """The loss of the first cell minus that of the second, paired by seed, each at its rate. It
    needs no fit. Of four cells, the first difference minus the second.

    The rates come from `bases`, whose best rates must lie inside of their ranges. `recorded` are
    the tables that the cells were put together from (default: the cells).
    """
    tables = [table for table, _ in terms]
    seeds, needed = common_seeds(tables), [*bases, *(recorded or tables)]
    missing = missing_in(needed, ranges=bases) or _untrained(terms, seeds)
    values: list[float] = []
    for seed in seeds if not missing else ():
        losses = [table.at(seed, rate) for table, rate in terms]
        signed = zip((1, -1, -1, 1), losses, strict=False)
        values.append(sum(sign * loss for sign, loss in signed if loss is not None))
    if not missing and any(math.isnan(value) for value in values):
        missing = DIVERGED
    runs = sum(one.ended for one in dict.fromkeys(needed))
    by_fit = {} if missing else {MEASURED: tuple(values)}
    return FitAnswer(question, rule, seeds, by_fit, missing, runs)


def _untrained(terms: Sequence[Term], seeds: Sequence[int]) -> str:
    """Which cell has no run at its rate; empty if all have one."""
    for table, rate in terms:
        if rate is None:
            return DIVERGED
        if not seeds or any(table.at(seed, rate) is None for seed in seeds):
            return f"not run: {table.rule} at {table.model} with the rate 2^{rate:g}"
    return ""


def with_more_seeds(table: RateTable, *more: RateTable) -> RateTable:
    """Tables of one cell with different seeds as one, at the rates that all of them have."""
    tables = (table, *more)
    rates = [rate for rate in table.log2_rates if all(rate in one.log2_rates for one in more)]
    columns = [[one.log2_rates.index(rate) for rate in rates] for one in tables]
    losses = np.concatenate([one.losses[:, own] for one, own in zip(tables, columns, strict=True)])
    missing = int(np.isnan(losses).sum())
    all_ended = all(one.complete for one in tables)
    return RateTable(
        table.rule,
        table.model,
        tuple(seed for one in tables for seed in one.seeds),
        tuple(rates),
        losses,
        losses.size if all_ended else losses.size - missing,
        missing if all_ended else 0,
        table.study,
    )


def common_seeds(tables: Sequence[RateTable]) -> tuple[int, ...]:
    return tuple(seed for seed in tables[0].seeds if all(seed in one.seeds for one in tables))


def missing_in(tables: Sequence[RateTable], ranges: Sequence[RateTable] | None = None) -> str:
    """Why tables cannot be compared yet; empty if they can. Only those in `ranges` (default: all)
    must have their lowest loss inside of their range.
    """
    tables = list(dict.fromkeys(tables))
    if not all(table.complete for table in tables):
        ended = sum(table.ended for table in tables)
        return f"not run yet ({ended} of {sum(one.expected for one in tables)} runs)"
    open_ends = [
        f"{table.rule} at {table.model} at the {table.open_at} end"
        for table in (tables if ranges is None else ranges)
        if table.open_at
    ]
    return f"open: the range must grow for {', '.join(open_ends)}" if open_ends else ""


def _answer(
    question: Question,
    rule: str,
    tables: Sequence[RateTable],
    seeds: tuple[int, ...],
    values: Callable[[str], Sequence[float]],
) -> FitAnswer:
    missing = missing_in(tables)
    by_fit = {} if missing else _by_fit(tables, seeds, values)
    return FitAnswer(question, rule, seeds, by_fit, missing, sum(one.ended for one in tables))


def _by_fit(
    tables: Sequence[RateTable], seeds: Sequence[int], values: Callable[[str], Sequence[float]]
) -> dict[str, tuple[float, ...] | None]:
    return {
        fit: tuple(values(fit))
        if all(one.inside for table in tables for one in table.of_seeds(fit, seeds))
        else None
        for fit in FITS
    }


# Verdicts


def above_zero(one: Estimate) -> str:
    return ABOVE_ZERO if one.low > 0 else NOT_ABOVE_ZERO


def lower_or_higher(one: Estimate) -> str:
    if one.low > 0:
        return "higher"
    return "lower" if one.high < 0 else "indistinguishable"


def still_within(octaves: float, doublings: float = 1.0) -> Callable[[Estimate], str]:
    """The verdict on a drift per doubling, bounded over this many doublings."""

    def judge(one: Estimate) -> str:
        return judge_drift(one, doublings, still=octaves).movement

    return judge
