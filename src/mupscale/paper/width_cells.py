"""The runs of the width study as tables of losses, and its questions answered with three fits.

The design (results/width/README.md) was fixed before the runs: which curves are fitted, which
losses are compared, and that nothing counts unless all fits give it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from mupscale.studies.searching import grid
from mupscale.studies.study import CONFIG
from mupscale.studies.trials import TrialRecord

STILL_PER_DOUBLING = 0.17
"""A drift is still if its whole interval lies within this many octaves per doubling."""

ABOVE_ZERO, NOT_ABOVE_ZERO, DIVERGED = "above 0", "indistinguishable from 0", "diverged"

_ENDED = ("finished", "diverged")


@dataclass(frozen=True, eq=False)
class RateTable:
    """A rule at one width: losses by seed and rate; NaN is a run that diverged or is missing."""

    rule: str
    width: int
    seeds: tuple[int, ...]
    log2_rates: tuple[float, ...]
    losses: NDArray[np.float64]
    ended: int
    diverged: int

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
        return {fit: lowest_points(fit, self.log2_rates, self.losses) for fit in FITS}

    def at(self, seed: int, log2_rate: float) -> float | None:
        """The loss of a run; NaN if it diverged, None if the table does not hold it yet."""
        if seed not in self.seeds or log2_rate not in self.log2_rates:
            return None
        loss = self.losses[self.seeds.index(seed), self.log2_rates.index(log2_rate)]
        return None if math.isnan(loss) and not self.complete else float(loss)

    def of_seeds(self, fit: str, seeds: Sequence[int]) -> list[LowestPoint]:
        return [self.lowest[fit][self.seeds.index(seed)] for seed in seeds]


def rate_tables(config: StudyConfig, folder: Path) -> list[RateTable]:
    """The cells of a part. `config` counts only as long as the folder has no study."""
    study = Study.open(folder) if (folder / CONFIG).exists() else Study(folder, config)
    trials = [trial for trial in study.trials if trial.status in _ENDED]
    tables: list[RateTable] = []
    for cell in study.config.cells():
        points = grid(cell.space, study.config.seeds, study.config.search.step)
        rates = sorted({_log2(point.params["lr"]) for point in points})
        own = [trial for trial in trials if trial.cell == cell.name]
        tables.append(_table(cell.rule_name, cell.dimensions["width"], rates, study.config, own))
    return tables


def _table(
    rule: str, width: int, rates: list[float], config: StudyConfig, trials: list[TrialRecord]
) -> RateTable:
    losses = np.full((len(config.seeds), len(rates)), math.nan)
    for trial in trials:
        if trial.loss is not None:
            losses[config.seeds.index(trial.seed), rates.index(_log2(trial.params["lr"]))] = (
                trial.loss
            )
    diverged = sum(trial.loss is None for trial in trials)
    return RateTable(rule, width, config.seeds, tuple(rates), losses, len(trials), diverged)


def _log2(rate: float) -> float:
    """Rates of a grid are powers of two, up to rounding."""
    return round(math.log2(rate), 6)


@dataclass(frozen=True)
class FitAnswer:
    """One quantity of one rule: a value per seed by each fit, or why there is none."""

    question: str
    rule: str
    seeds: tuple[int, ...]
    by_fit: Mapping[str, tuple[float, ...] | None]
    "None for a fit that located no optimum for one of the seeds."
    missing: str
    "Why there is no value at all; empty if there is one."
    judge: Callable[[Estimate], str]
    runs: int
    "That it rests on."

    def estimate(self, fit: str) -> Estimate | None:
        values = self.by_fit.get(fit)
        return None if values is None else mean_over_seeds(values)

    @cached_property
    def agreement(self) -> Agreement:
        if self.missing:
            return Agreement(self.missing, None)
        return agreed({fit: self.estimate(fit) for fit in FITS}, self.judge)


@dataclass(frozen=True)
class WidthRuns:
    """All runs of the study. `given` are the tables of rules at the largest width, trained at the
    base's best rate where that lies outside of their range.
    """

    widths: tuple[int, ...]
    rules: tuple[str, ...]
    reference: str
    "The rule that the others are compared with."
    tables: Mapping[tuple[str, int], RateTable]
    "By rule and width. At the base all rules are one training, and share one table."
    given: Mapping[str, RateTable]

    @property
    def base(self) -> RateTable:
        return self.tables[self.reference, self.widths[0]]

    @property
    def target(self) -> int:
        return self.widths[-1]

    @property
    def _counted(self) -> list[RateTable]:
        """Each table once: at the base, the rules share one."""
        return list(dict.fromkeys([*self.tables.values(), *self.given.values()]))

    @property
    def ended(self) -> int:
        return sum(table.ended for table in self._counted)

    @property
    def expected(self) -> int:
        return sum(table.expected for table in self._counted)

    @property
    def diverged(self) -> int:
        return sum(table.diverged for table in self._counted)

    @property
    def complete(self) -> bool:
        """All runs are there, and no range must grow: results may be compared."""
        return all(table.complete for table in self._counted) and not any(
            table.open_at for table in self.tables.values()
        )

    @property
    def best_rate(self) -> float | None:
        """The base's best rate, which a user would copy, in log2; None until its runs have
        ended.
        """
        return self.base.best if self.base.complete else None

    def at_best_rate(self, rule: str, seed: int) -> float | None:
        """The measured loss of the largest width at the base's best rate; NaN if it diverged, None
        if it has not run yet.
        """
        if self.best_rate is None:
            return None
        tables = [
            self.tables[rule, self.target],
            *([self.given[rule]] if rule in self.given else []),
        ]
        found = (table.at(seed, self.best_rate) for table in tables)
        return next((loss for loss in found if loss is not None), None)

    def regret(self, rule: str) -> FitAnswer:
        """L(target at the base's best rate) − min L(target), paired by seed."""
        table = self.tables[rule, self.target]
        measured = [self.at_best_rate(rule, seed) for seed in table.seeds]
        missing = self._missing([self.base, table])
        if not missing and None in measured:
            count = sum(one is not None for one in measured)
            missing = f"not run yet ({count} of {len(measured)} runs at the base's best rate)"
        losses = [math.nan if one is None else one for one in measured]
        if not missing and any(math.isnan(loss) for loss in losses):
            missing = DIVERGED

        def values(fit: str) -> list[float]:
            lowest = table.of_seeds(fit, table.seeds)
            return [loss - one.loss for loss, one in zip(losses, lowest, strict=True)]

        answer = self._answer("regret", rule, table.seeds, missing, values, _above_zero, [table])
        given = self.given[rule].ended if rule in self.given else 0
        return replace(answer, runs=self.base.ended + table.ended + given)

    def drift(self, rule: str, widths: Sequence[int]) -> FitAnswer:
        """The slope of log2 of the best rate over log2 of the width, for each seed."""
        tables = [self.tables[rule, width] for width in widths]
        seeds = [seed for seed in tables[0].seeds if all(seed in one.seeds for one in tables)]
        doublings = math.log2(widths[-1] / widths[0])

        def values(fit: str) -> list[float]:
            by_width = [[one.log2_rate for one in table.of_seeds(fit, seeds)] for table in tables]
            return slopes_by_seed(widths, np.transpose(by_width))

        def judge(one: Estimate) -> str:
            return judge_drift(one, doublings, still=STILL_PER_DOUBLING * doublings).movement

        question = f"drift, {widths[0]} to {widths[-1]}"
        missing = self._missing(tables)
        return self._answer(question, rule, tuple(seeds), missing, values, judge, tables)

    def above_reference(self, rule: str) -> FitAnswer:
        """The lowest loss at the target of a rule minus that of the reference, paired by seed."""
        tables = [self.tables[one, self.target] for one in (rule, self.reference)]
        seeds = tables[0].seeds

        def values(fit: str) -> list[float]:
            first, second = (table.of_seeds(fit, seeds) for table in tables)
            return [a.loss - b.loss for a, b in zip(first, second, strict=True)]

        return self._answer(
            "lowest loss", rule, seeds, self._missing(tables), values, _lower_or_higher, tables
        )

    def answers(self) -> list[FitAnswer]:
        """Every question of the design, in its order."""
        others = [rule for rule in self.rules if rule != self.reference]
        spans = (self.widths[:-1], self.widths)
        return [
            *(self.regret(rule) for rule in self.rules),
            *(self.drift(rule, span) for rule in self.rules for span in spans),
            *(self.above_reference(rule) for rule in others),
        ]

    def _missing(self, tables: Sequence[RateTable]) -> str:
        """Why tables cannot be compared yet; empty if they can."""
        if not all(table.complete for table in tables):
            ended = sum(table.ended for table in tables)
            return f"not run yet ({ended} of {sum(one.expected for one in tables)} runs)"
        open_ends = [
            f"{table.rule} at width {table.width} at the {table.open_at} end"
            for table in tables
            if table.open_at
        ]
        return f"open: the range must grow for {', '.join(open_ends)}" if open_ends else ""

    def _answer(
        self,
        question: str,
        rule: str,
        seeds: tuple[int, ...],
        missing: str,
        values: Callable[[str], Sequence[float]],
        judge: Callable[[Estimate], str],
        tables: Sequence[RateTable],
    ) -> FitAnswer:
        by_fit: dict[str, tuple[float, ...] | None] = {}
        for fit in FITS if not missing else ():
            located = all(one.inside for table in tables for one in table.of_seeds(fit, seeds))
            by_fit[fit] = tuple(values(fit)) if located else None
        runs = sum(table.ended for table in tables)
        return FitAnswer(question, rule, seeds, by_fit, missing, judge, runs)


def _above_zero(one: Estimate) -> str:
    return ABOVE_ZERO if one.low > 0 else NOT_ABOVE_ZERO


def _lower_or_higher(one: Estimate) -> str:
    if one.low > 0:
        return "higher"
    return "lower" if one.high < 0 else "indistinguishable"
