"""The paper's dichotomy: with few key/value heads, either the learning rate transfers and runs get
noisier, or the noise is held and the rate drifts.

With r repetitions the effective matrix repeats n/r rows, and the relative spread of ‖W⊕x‖/‖x‖ over
draws of the weights is √(r/2n). How much of that shows in training? Two rules differ only in the
key/value learning rate: `complete-p` leaves it alone, and `gqa-mup` raises it with r. Measured over
seeds:

- updates: the spread of ‖ΔW‖/‖W0‖ of keys and values over a few steps, absolute and relative to the
  mean;
- a study: the spread of the optimal rate, and of the loss there.

A spread has its χ² interval. Its growth with r is a slope in log-log, with the jackknife's interval
over seeds and a permutation test. The spread of optima is not corrected: it includes how uncertain
each optimum is, with few rates.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mupscale import reports
from mupscale.analysis import Estimate
from mupscale.analysis.families import CellAnalysis
from mupscale.analysis.spreads import growth_by_chance, sd_growth, sd_of
from mupscale.checks import CheckResult
from mupscale.paper import catalogue
from mupscale.paper.claims import Claim, Kind, Verdict, by_one_fit, decided
from mupscale.paper.costs import study_cost
from mupscale.paper.dry_run import validate
from mupscale.paper.experiment import QUIETLY, Cost, Execution, Findings, Scale
from mupscale.paper.few_steps import (
    PAPER_HEADS,
    FewSteps,
    FewStepsExperiment,
    Judged,
    Table,
    panel_line,
    relative_updates,
    save_panels,
    signed,
)
from mupscale.reports.panels import Line
from mupscale.studies import Study
from mupscale.studies.measured import analysis_of
from mupscale.targets import Family
from mupscale.text import text_table
from mupscale.theory import rule_named

CHECKS = {name: rule_named(name) for name in ("complete-p", "gqa-mup")}
_SMALL = Family("gpt:cpu_192_r1,depth=2")
SIZES: Mapping[Scale, FewSteps] = {
    "cpu": replace(
        PAPER_HEADS, family=_SMALL, seeds=tuple(range(1, 41)), steps=3, batch=2, sequence=128
    ),
    "paper": PAPER_HEADS,
}


@dataclass(frozen=True)
class Noise:
    """One quantity under one rule, by seed over r."""

    quantity: str
    rule: str
    r: tuple[int, ...]
    values: Table
    "By seed, over r."
    theory: tuple[float, ...] = ()
    "The spread that theory expects of the initial matrix."

    @property
    def seeds(self) -> int:
        return len(self.values)

    def spreads(self) -> list[Estimate]:
        """At each r, with its χ² interval."""
        return [sd_of(column) for column in zip(*self.values, strict=True)]

    def growth(self, comparisons: int = 1) -> Estimate:
        return sd_growth(self.r, self.values, comparisons=comparisons)

    def chance(self) -> float:
        return growth_by_chance(self.r, self.values)


class GqaNoise(FewStepsExperiment):
    """The spread over seeds against r, of updates and of a study's optimum and loss."""

    name, sizes, checks = "gqa-noise", SIZES, CHECKS

    def cost(self, scale: Scale, workers: int) -> Cost:
        return study_cost(catalogue.load(self.name, scale), workers) + super().cost(scale, workers)

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        """First the updates, in `folder/updates`, then the study, in the folder itself."""
        study = Study.create(catalogue.load(self.name, scale), folder)
        before = self.runs(self.sizes[scale])
        total = before + sum(study.snapshot().expected.values())
        super().run(scale, folder / "updates", Execution(**how.part(0, total)))
        study.run(
            engine=how.on(study.engine),
            report=lambda now: how.report(before + len(now.trials), total),
            remark=how.remark,
        )

    def findings(self, scale: Scale, folder: Path) -> Findings:
        size = self.sizes[scale]
        updates = _updates(size, self.checked(size, folder / "updates"))
        trained, runs, remarks = _trained(folder)
        theory = "√(r/2n), of the\ninitial matrix"
        what = f"‖ΔW‖/‖W0‖ over {len(size.seeds)} seeds"
        paths = _saved(updates, folder / "updates" / "spreads", what, theory)
        if trained:
            what = f"training runs over {trained[0].seeds} seeds"
            paths += _saved(trained, folder / "spreads", what, "")
        claims = (*_update_claims(updates, size.starts), *_trained_claims(trained, runs))
        return Findings((_table([*updates, *trained]), *remarks), claims, tuple(paths))

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        size = self.sizes[scale]
        updates = _updates(size, self.checked(size, folder / "updates"))
        trained, runs, _ = _trained(folder)
        return (*_update_claims(updates, size.starts), *_trained_claims(trained, runs))

    def dry_run(self, scale: Scale) -> Iterator[str]:
        size = self.sizes[scale]
        yield f"{self.name}: updates under {' and '.join(CHECKS)} over"
        yield from size.described(CHECKS.values())
        yield size.training(self.runs(size))
        yield f"{self.name}: the study"
        yield from validate(catalogue.load(self.name, scale))


EXPERIMENT = GqaNoise()


def _updates(size: FewSteps, checks: Mapping[str, CheckResult]) -> list[Noise]:
    """‖ΔW‖/‖W0‖ of keys and values: its logarithm, whose spread is the relative one, and itself."""
    shape = size.model(size.base).config
    inner = shape.n_heads * shape.head_size  # the paper's n
    found: list[Noise] = []
    for rule, check in checks.items():
        theory = tuple(math.sqrt(r / 2 / inner) for r in check.x)
        for role in ("key", "value"):
            values = relative_updates(check, role)
            logs = [[math.log(value) for value in row] for row in values]
            found.append(Noise(f"update of {role}, relative", rule, check.x, logs, theory))
            found.append(Noise(f"update of {role}", rule, check.x, values))
    return found


_OF_SEEDS: Mapping[str, Callable[[CellAnalysis], Mapping[int, float]]] = {
    "optimal rate, octaves": lambda cell: cell.optimum.seed_optima if cell.optimum else {},
    "loss at the optimum, nats": lambda cell: cell.optimum.seed_losses if cell.optimum else {},
}


def _trained(folder: Path) -> tuple[list[Noise], int, list[str]]:
    """Optima and losses of the study's seeds, the number of runs, remarks on what is missing."""
    if not (folder / "study.toml").exists():
        text = "The study has not been run here: no result for the optimal rate and the loss."
        return [], 0, [text]
    now = Study.open(folder).snapshot()
    if len(now.done) < len(now.cells):
        total = sum(now.expected.values())
        text = f"The study has {len(now.trials)} of {total} runs: no result for the optimal rate "
        return [], 0, [f"{text}and the loss yet."]
    cells = sorted(analysis_of(now).cells, key=lambda cell: cell.member.position or 0)
    found, remarks = list[Noise](), list[str]()
    for quantity, of_seeds in _OF_SEEDS.items():
        lost = [f"{cell.rule} at {cell.member.label}" for cell in cells if not of_seeds(cell)]
        if lost:
            name = quantity.partition(",")[0]
            remarks.append(f"No result for the {name}: no minimum for {', '.join(lost)}.")
            continue
        for rule in CHECKS:
            own = [cell for cell in cells if cell.rule == rule]
            by_seed = [of_seeds(cell) for cell in own]
            seeds = sorted(set.intersection(*map(set, by_seed)))
            values = [[one[seed] for one in by_seed] for seed in seeds]
            r = tuple(int(cell.member.position or 0) for cell in own)
            found.append(Noise(quantity, rule, r, values))
    return found, len(now.trials), remarks


def _saved(noises: Sequence[Noise], stem: Path, what: str, theory: str) -> list[Path]:
    rows = [
        {
            "quantity": one.quantity, "rule": one.rule, "r": r, "seeds": one.seeds,
            "mean": sum(row[place] for row in one.values) / one.seeds, "sd": spread.value,
            "low": spread.low, "high": spread.high,
        }
        for one in noises
        for place, (r, spread) in enumerate(zip(one.r, one.spreads(), strict=True))
    ]  # fmt: skip
    panels: dict[str, list[Line]] = {}
    for one in noises:
        line = panel_line(one.rule, one.r, one.spreads(), one.theory)
        panels.setdefault(one.quantity, []).append(line)
    return [
        reports.save_csv(rows, stem.with_suffix(".csv")),
        *save_panels(
            stem,
            panels,
            x_label="repetitions r",
            y_label="standard deviation over seeds",
            title=f"Spread of {what} (bands: 95 % χ² intervals)",
            theory=theory,
        ),
    ]


def _table(noises: Sequence[Noise]) -> str:
    head = ("spread over seeds of", "rule", "sd at each r", "slope", "interval", "p (grows)")
    rows: list[list[str]] = []
    for one in noises:
        pairs = zip(one.r, one.spreads(), strict=True)
        spreads = "  ".join(f"{r}: {spread.value:.3g}" for r, spread in pairs)
        slope, interval = signed(one.growth()).split(" ", 1)
        rows.append([one.quantity, one.rule, spreads, slope, interval, f"{one.chance():.3f}"])
    return text_table(head, rows, right=("slope", "p (grows)"), details=("sd at each r",))


def _update_claims(noises: Sequence[Noise], runs: int) -> Iterator[Claim]:
    def chosen(rule: str, *, relative: bool) -> list[Noise]:
        own = (one for one in noises if one.rule == rule)
        return [one for one in own if one.quantity.endswith("relative") == relative]

    grown, held = (chosen(rule, relative=False) for rule in ("gqa-mup", "complete-p"))
    says = "Under gqa-mup, updates get noisier with fewer key/value heads"
    yield _claim("first steps", says, grown, runs, _grows(grown))
    says = "Without its factor, their noise is held"
    yield _claim("first steps", says, held, runs, _held(held))
    own = chosen("gqa-mup", relative=True)
    question = "Does the relative noise of updates grow as √r, like the initial matrix's √(r/2n)?"
    yield _claim("first steps", question, own, runs, "ours", _like_root(own))


def _trained_claims(noises: Sequence[Noise], runs: int) -> Iterator[Claim]:
    """Both rules are shown, so all runs count."""
    for quantity in dict.fromkeys(one.quantity for one in noises):
        own = {one.rule: one for one in noises if one.quantity == quantity}
        name = quantity.partition(",")[0]
        says = f"Under gqa-mup, the noise of the {name} grows with fewer key/value heads"
        derived = own["gqa-mup"]
        both = [derived, own["complete-p"]]
        yield _claim("best rates", says, both, runs, by_one_fit(_grows([derived])))


def _claim(
    kind: Kind, says: str, noises: Sequence[Noise], runs: int, verdict: Judged, answer: str = ""
) -> Claim:
    seen = "; ".join(
        f"sd of {one.quantity} ({one.rule}) {one.spreads()[0].value:.3g} at r = {one.r[0]}, "
        f"{one.spreads()[-1].value:.3g} at r = {one.r[-1]}, slope "
        f"{signed(one.growth(len(noises)))}, p = {one.chance():.3f}"
        for one in noises
    )
    seen = f"{answer}{seen} ({noises[0].seeds} seeds)"
    return Claim("gqa-noise", kind, says, seen, runs, verdict)


HALF = 0.5
"""The slope of √r."""


def _grows(noises: Sequence[Noise]) -> Verdict:
    growths = [one.growth(len(noises)) for one in noises]
    return decided(all(one.low > 0 for one in growths), any(one.high < 0 for one in growths))


def _held(noises: Sequence[Noise]) -> Verdict:
    """Held means that the whole interval is below half of √r's slope."""
    growths = [one.growth(len(noises)) for one in noises]
    return decided(all(one.high < HALF / 2 for one in growths), any(one.low > 0 for one in growths))


def _like_root(noises: Sequence[Noise]) -> str:
    """Yes where the interval of the slope excludes 0 but not ½."""
    growths = {one.quantity: one.growth(len(noises)) for one in noises}
    unlike = [quantity for quantity, one in growths.items() if one.excludes(HALF)]
    if unlike:
        return f"No, a slope of ½ is excluded for the {' and the '.join(unlike)}: "
    grows = all(one.excludes(0) for one in growths.values())
    return "Yes: " if grows else "Cannot be decided: "
