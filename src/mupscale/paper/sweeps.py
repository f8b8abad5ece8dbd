"""Experiments that are studies: run like any other, with the paper's figures and claims on top."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from mupscale import reports
from mupscale.analysis import Estimate, StudyAnalysis, analyse
from mupscale.analysis.by_fit import CellKey, SeedOptima, seed_optima
from mupscale.analysis.families import CellAnalysis, Comparison, RuleTransfer, drift_weights
from mupscale.analysis.measurements import Measurement
from mupscale.analysis.verdicts import DriftVerdict, judge_drift
from mupscale.paper.catalogue import load
from mupscale.paper.claims import UNDECIDED, Claim, Verdict, combined, decided
from mupscale.paper.costs import study_cost
from mupscale.paper.dry_run import validate
from mupscale.paper.experiment import (
    QUIETLY,
    Cost,
    Execution,
    Experiment,
    Findings,
    Scale,
    refuse_empty,
)
from mupscale.records import write_whole
from mupscale.reports.maps import MapGrid, map_grids
from mupscale.reports.page import study_page
from mupscale.reports.page.of_study import page_data
from mupscale.studies import Snapshot, Study, StudyConfig
from mupscale.studies.measured import measured
from mupscale.studies.summary import rows, table_text

FIGURES = ("png", "svg")


@dataclass(frozen=True)
class SweepFinding:
    """A study's runs and their analysis."""

    analysis: StudyAnalysis
    runs: Sequence[Measurement]

    @property
    def rules(self) -> list[str]:
        return list(dict.fromkeys(cell.rule for cell in self.analysis.cells))

    @cached_property
    def grids(self) -> list[MapGrid]:
        """The maps over two searched parameters: seconds of work, used by several claims."""
        return map_grids(self.analysis, self.runs)

    def transfer(self, rule: str) -> RuleTransfer | None:
        return next((one for one in self.analysis.transfers if one.rule == rule), None)

    def cells(self, rule: str) -> list[CellAnalysis]:
        return [cell for cell in self.analysis.cells if cell.rule == rule]

    def comparison(self, quantity: str, first: str, second: str) -> Comparison | None:
        """`first` minus `second`, in whichever order the analysis has them."""
        for one in self.analysis.comparisons:
            if one.quantity != quantity:
                continue
            if (one.first, one.second) == (first, second):
                return one
            if (one.first, one.second) == (second, first):
                turned = Estimate(-one.difference.value, -one.difference.high, -one.difference.low)
                return Comparison(quantity, one.unit, first, second, turned, one.better)
        return None

    @cached_property
    def optima_by_fit(self) -> SeedOptima:
        """Of each seed, where only the learning rate is searched: a second of work."""
        return seed_optima([run for run in self.runs if set(run.params) == {"lr"}])

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.runs})

    def whole(self, *rules: str) -> bool:
        """Whether every model has an optimum under these rules: the others are no fair sample."""
        return all(
            (transfer := self.transfer(rule)) is not None
            and len(transfer.members) == len(self.cells(rule))
            for rule in rules
        )

    def drifts_by_fit(self, rule: str) -> dict[str, Estimate | None]:
        """Of the optimum under a rule, in octaves per doubling, by each of the three fits."""
        return self.optima_by_fit.contrast(self._weights(rule), self.analysis.confidence)

    def movements(self, rule: str) -> dict[str, DriftVerdict]:
        """Whether the optimum moves, by the one curve for all seeds and by the three fits."""
        places = [cell.member.position for cell in self.cells(rule)]
        known = [place for place in places if place]
        doublings = math.log2(max(known) / min(known)) if known else 0.0
        others = {fit: judge_drift(one, doublings) for fit, one in self.drifts_by_fit(rule).items()}
        return {"one curve": self.analysis.drift_verdict(rule), **others}

    def further_by_fit(self, first: str, second: str) -> dict[str, Estimate | None]:
        """How much further the optimum moves under one rule than under another, whichever direction
        each has, by each of the three fits.
        """
        own, other = self.drifts_by_fit(first), self.drifts_by_fit(second)
        found: dict[str, Estimate | None] = {}
        for fit, one in own.items():
            against = other[fit]
            if one is None or against is None:
                found[fit] = None
                continue
            weights = {
                key: sign * math.copysign(1.0, drift.value) * weight
                for sign, rule, drift in ((1, first, one), (-1, second, against))
                for key, weight in self._weights(rule).items()
            }
            every = self.optima_by_fit.contrast(weights, self.analysis.confidence)
            found[fit] = every[fit]
        return found

    def _weights(self, rule: str) -> dict[CellKey, float]:
        members = [cell.member for cell in self.cells(rule)]
        weights = drift_weights(members)
        return {(rule, one): w for one, w in zip(members, weights or [], strict=False)}

    def count(self, *rules: str) -> int:
        """Runs that ended, of these rules or of all."""
        return sum(not rules or run.rule in rules for run in self.runs)


def finding_in(study: Study | Snapshot) -> SweepFinding:
    runs, axis = measured(study)
    return SweepFinding(analyse(runs, axis=axis), runs)


def with_ends(estimate: Estimate | None, digits: int = 2) -> str:
    """A number and its interval, for a sentence.

    >>> with_ends(Estimate(-0.051, -0.11, 0.02)), with_ends(Estimate(1, 0, float("inf")))
    ('-0.05 [-0.11, 0.02]', '1.00 (not bounded)')
    """
    if estimate is None:
        return "not found"
    value = f"{estimate.value:z.{digits}f}"
    if not estimate.bounded:
        return f"{value} (not bounded)"
    return f"{value} [{estimate.low:z.{digits}f}, {estimate.high:z.{digits}f}]"


class Sweep(Experiment):
    """An experiment that is a study. Subclasses judge the paper's claims by its runs."""

    study: ClassVar[str]
    "The TOML file, by scale."

    def config(self, scale: Scale) -> StudyConfig:
        return load(self.study, scale)

    def folder(self, scale: Scale) -> Path:
        """Experiments on the same study share its runs."""
        return Path("runs/paper") / f"{self.study}-{scale}"

    def cost(self, scale: Scale, workers: int) -> Cost:
        return study_cost(self.config(scale), workers)

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        study = Study.create(self.config(scale), folder)
        study.run(
            engine=how.on(study.engine),
            report=lambda now: how.report(len(now.trials), sum(now.expected.values())),
            remark=how.remark,
        )

    def findings(self, scale: Scale, folder: Path) -> Findings:
        refuse_empty(folder, "records.jsonl")
        study = Study.open(folder)
        snapshot = study.snapshot()
        finding = finding_in(snapshot)
        page, analysis = folder / "report.html", finding.analysis
        data = page_data(study, snapshot=snapshot, analysis=analysis)
        write_whole(page, study_page(data).encode("utf-8", errors="replace"))
        figures = folder / "figures"
        paths = [page, *reports.save_study_figures(analysis, finding.runs, figures, FIGURES)]
        lines = [table_text(rows(snapshot, analysis)), "", *self.lines(finding)]
        return Findings(tuple(lines), tuple(self.claims(finding)), tuple(paths))

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        """Without drawing anything."""
        refuse_empty(folder, "records.jsonl")
        return tuple(self.claims(finding_in(Study.open(folder))))

    def dry_run(self, scale: Scale) -> Iterator[str]:
        yield from validate(self.config(scale))

    def lines(self, finding: SweepFinding) -> Iterator[str]:
        """Lines to print after the table of optima."""
        yield from ()

    @abstractmethod
    def claims(self, finding: SweepFinding) -> Iterator[Claim]:
        """The paper's claims with what these runs show."""


def drift_words(finding: SweepFinding, rule: str) -> str:
    """As "mup: drift -0.02 [-0.09, 0.04] per doubling (cubic -0.01 [-0.06, 0.04]), sd 0.04 [0.00,
    0.12]".
    """
    transfer, count = finding.transfer(rule), len(finding.cells(rule))
    if transfer is None or transfer.mean is None:
        return f"{rule}: no optimum found"
    if len(transfer.members) < count:
        return f"{rule}: no drift known ({len(transfer.members)} of {count} models have an optimum)"
    drift, sd = with_ends(transfer.drift), with_ends(transfer.sd)
    fits = fit_words(finding.drifts_by_fit(rule))
    return f"{rule}: drift {drift} per doubling ({fits}), sd {sd}"


def fit_words(by_fit: Mapping[str, Estimate | None]) -> str:
    """As "quadratic 0.01 [-0.02, 0.04], cubic not located"."""
    return ", ".join(
        f"{fit} {'not located' if one is None else with_ends(one)}" for fit, one in by_fit.items()
    )


def movement_words(finding: SweepFinding, rule: str) -> str:
    """What each fit says of the movement, with the definition."""
    own, *others = finding.movements(rule).items()
    rest = ", ".join(f"{fit} {one.movement}" for fit, one in others)
    return f"{own[1].sentence}; by the other fits: {rest}"


def difference_words(finding: SweepFinding, first: str, second: str) -> str:
    """How much further the optimum moves under the first rule; empty if that is not known."""
    found = finding.comparison("drift", first, second)
    if found is None or not finding.whole(first, second):
        return ""
    fits = fit_words(finding.further_by_fit(first, second))
    return f"{first} drifts {with_ends(found.difference)} further than {second} ({fits})"


def less_drift(finding: SweepFinding, first: str, second: str) -> Verdict:
    """Whether the optimum moves less under the first rule than under the second."""
    found = finding.comparison("drift", first, second)
    if found is None or not finding.whole(first, second):
        return UNDECIDED
    every = [found.difference, *finding.further_by_fit(first, second).values()]
    return combined(
        [UNDECIDED if one is None else decided(one.high < 0, one.low > 0) for one in every]
    )
