"""The paper's dichotomy: with few key/value heads either the rate transfers and runs get noisier,
or neither.

With r repetitions the matrix in effect repeats n/r rows, and the relative spread of ‖W⊕x‖/‖x‖ over
draws of the weights is √(r/2n). What of that is seen in training? Two rules, alike but for the
key/value rate: `complete-p` leaves it, and `gqa-mup` raises it with r. Two things are looked at,
over seeds:

- updates: the spread of ‖ΔW‖/‖W0‖ of keys and values over a few steps, as it is and relative to its
mean;
- a study: the spread of the optimal rate, and of the loss there.

A spread has its χ² interval, its growth with r a slope in log-log with the jackknife's interval
over seeds, and beside it a permutation test. The spread of optima is as seen: it holds what few
rates leave uncertain of each.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from mupscale import reports
from mupscale.analysis import Estimate
from mupscale.analysis.families import CellAnalysis
from mupscale.analysis.spreads import growth_by_chance, sd_growth, sd_of
from mupscale.checks import CheckResult, Setup, coordinate_check
from mupscale.checks.judging import NormTable
from mupscale.checks.statistics import STATISTICS, by_step
from mupscale.engines import Engine
from mupscale.paper import catalogue
from mupscale.paper.costs import study_cost
from mupscale.paper.dry_run import validate
from mupscale.paper.experiment import (
    QUIETLY,
    Claim,
    Cost,
    Experiment,
    Findings,
    Running,
    Scale,
    Verdict,
)
from mupscale.paper.few_steps import described, estimated, on_meta, recorded_check, shape_of
from mupscale.planning import Plan, plan
from mupscale.reports.panels import Line, Panel, draw_panels
from mupscale.studies import Study
from mupscale.studies.measured import analysis_of
from mupscale.targets import Family
from mupscale.theory import rule_named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RULES = ("complete-p", "gqa-mup")
KV_HEADS = (12, 6, 4, 3, 2, 1)
ROLES = ("key", "value")


@dataclass(frozen=True)
class NoiseSize:
    """A model with 12 heads, and how it is trained for the spread of its updates."""

    family: Family
    seeds: tuple[int, ...]
    steps: int
    batch: int
    sequence: int

    @property
    def setup(self) -> Setup:
        return Setup(lr=2**-13, eps=1e-12, std=0.1, batch=self.batch, sequence=self.sequence)

    @property
    def starts(self) -> int:
        return len(KV_HEADS) * len(self.seeds)

    @property
    def runs(self) -> int:
        return len(RULES) * self.starts


SIZES: Mapping[Scale, NoiseSize] = {
    "cpu": NoiseSize(
        Family("gpt:cpu_192_r1,depth=2"), tuple(range(1, 41)), steps=3, batch=2, sequence=128
    ),
    # The paper's coordinate check, over bytes.
    "paper": NoiseSize(
        Family("gpt:coordinate_12,vocabulary=256"),
        tuple(range(1, 11)),
        steps=5,
        batch=1,
        sequence=1024,
    ),
}


@dataclass(frozen=True)
class Noise:
    """One quantity under one rule, by seed over r, and its mean where that is of the same kind."""

    quantity: str
    rule: str
    r: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
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


class GqaNoise(Experiment):
    """The spread over seeds against r: of updates after a few steps, and of optimum and loss of a
    study.
    """

    name: ClassVar[str] = "gqa-noise"

    def cost(self, scale: Scale, workers: int) -> Cost:
        size, study = SIZES[scale], study_cost(catalogue.load(self.name, scale), workers)
        passes = len(size.seeds) * len(RULES) * (size.steps + 1)
        models = {shape_of(size.family, n_kv_heads=heads): passes for heads in KV_HEADS}
        updates = estimated(
            models, batch=size.batch, sequence=size.sequence, runs=size.runs, workers=workers
        )
        return Cost(
            study.runs + updates.runs, study.tokens + updates.tokens, study.hours + updates.hours
        )

    def run(self, scale: Scale, folder: Path, how: Running = QUIETLY) -> None:
        """First the updates, in `folder/updates`, then the study, which is the folder itself."""
        config = catalogue.load(self.name, scale)
        study = Study.create(config, folder)
        before, ahead = SIZES[scale].runs, sum(study.snapshot().expected.values())
        run_updates(
            scale,
            folder,
            engine=how.engine,
            report=lambda done: how.report(done, before + ahead),
            remark=how.remark,
        )
        study.run(
            engine=how.engine,
            report=lambda now: how.report(
                before + len(now.trials), before + sum(now.expected.values())
            ),
            remark=how.remark,
        )

    def findings(self, scale: Scale, folder: Path) -> Findings:
        size, updates = SIZES[scale], _updates(folder / "updates", SIZES[scale])
        trained, remarks = _trained(folder)
        paths = _saved(updates, folder / "updates" / "spreads", _updates_figure(updates, size))
        paths += _saved(trained, folder / "spreads", _trained_figure(trained)) if trained else []
        lines = (*_table([*updates, *trained]), *remarks)
        return Findings(
            lines, (*_update_claims(updates, size), *_trained_claims(trained, folder)), tuple(paths)
        )

    def dry_run(self, scale: Scale) -> Iterator[str]:
        size = SIZES[scale]
        yield f"{self.name}: updates under {' and '.join(RULES)} over"
        for heads in KV_HEADS:
            model, base = (
                on_meta(size.family)(n_kv_heads=heads),
                on_meta(size.family)(n_kv_heads=max(KV_HEADS)),
            )
            rates = [
                _key_rate(plan(model, base=base, optimizer="adamw", rule=rule_named(rule)))
                for rule in RULES
            ]
            yield f"  {described(model)}; rate of keys × {rates[0]:.4g} and {rates[1]:.4g}"
        yield f"{len(size.seeds)} seeds, {size.steps} steps of {size.batch} × {size.sequence} tokens: {size.runs} runs"
        yield f"{self.name}: the study"
        yield from validate(catalogue.load(self.name, scale))


EXPERIMENT = GqaNoise()


def _key_rate(made: Plan) -> float:
    return next(one.lr for one in made.parameters.values() if one.role == "key")


def run_updates(
    scale: Scale,
    folder: Path,
    *,
    engine: Engine | None = None,
    report: Callable[[int], None] = lambda done: None,
    remark: Callable[[str], None] = lambda text: None,
) -> None:
    """A coordinate check for each rule; `report` hears how many runs are done."""
    size = SIZES[scale]
    for number, rule in enumerate(RULES):
        coordinate_check(
            size.family,
            {"n_kv_heads": KV_HEADS},
            rule=rule,
            seeds=size.seeds,
            steps=size.steps,
            setup=size.setup,
            engine=engine,
            folder=folder / "updates" / rule,
            report=lambda done, _, before=number * size.starts: report(before + done),
            remark=remark,
        )


# What the records say


def _updates(folder: Path, size: NoiseSize) -> list[Noise]:
    """‖ΔW‖/‖W0‖ of keys and values: its logarithm, whose spread is the relative one, and itself."""
    found: list[Noise] = []
    for rule in RULES:
        check = recorded_check(folder / rule, size.starts)
        theory = tuple(math.sqrt(r / 2 / _inner(size)) for r in check.x)
        for role in ROLES:
            values = _ratios(check, role)
            logs = tuple(tuple(map(math.log, row)) for row in values)
            found.append(Noise(f"update of {role}, relative", rule, check.x, logs, theory))
            found.append(Noise(f"update of {role}", rule, check.x, values))
    return found


def _ratios(check: CheckResult, role: str) -> tuple[tuple[float, ...], ...]:
    table = NormTable(check.runs, "r")
    return tuple(map(tuple, table.means(lambda run: by_step(run, STATISTICS["update"], role))))


def _inner(size: NoiseSize) -> int:
    """Heads × head_dim, which is the paper's n."""
    shape = shape_of(size.family, n_kv_heads=max(KV_HEADS))
    return shape.n_heads * shape.head_size


def _trained(folder: Path) -> tuple[list[Noise], list[str]]:
    """The optima and losses of the study's seeds; and of what nothing can be said, why."""
    if not (folder / "study.toml").exists():
        return [], [
            "The study has not been run here: nothing is said of the optimal rate and the loss."
        ]
    now = Study.open(folder).snapshot()
    if len(now.done) < len(now.cells):
        total = sum(now.expected.values())
        return [], [
            f"The study has {len(now.trials)} of {total} runs: nothing is said of optimal rate and "
            "loss yet."
        ]
    cells = sorted(analysis_of(now).cells, key=lambda cell: cell.member.position or 0)
    found, remarks = list[Noise](), list[str]()
    for quantity in ("optimal rate, octaves", "loss at the optimum, nats"):
        lost = [
            f"{cell.rule} at {cell.member.label}" for cell in cells if not _of_seeds(cell, quantity)
        ]
        if lost:
            remarks.append(
                f"Nothing is said of the {quantity.partition(',')[0]}: {', '.join(lost)} has no "
                "minimum."
            )
        else:
            found += [
                _noise(quantity, rule, [cell for cell in cells if cell.rule == rule])
                for rule in RULES
            ]
    return found, remarks


def _noise(quantity: str, rule: str, cells: Sequence[CellAnalysis]) -> Noise:
    by_seed = [_of_seeds(cell, quantity) for cell in cells]
    seeds = sorted(set.intersection(*(set(one) for one in by_seed)))
    values = tuple(tuple(one[seed] for one in by_seed) for seed in seeds)
    return Noise(quantity, rule, tuple(int(cell.member.position or 0) for cell in cells), values)


def _of_seeds(cell: CellAnalysis, quantity: str) -> Mapping[int, float]:
    if cell.optimum is None:
        return {}
    return (
        cell.optimum.seed_optima
        if quantity.startswith("optimal rate")
        else cell.optimum.seed_losses
    )


def _saved(noises: Sequence[Noise], stem: Path, figure: "Figure") -> list[Path]:
    rows = [
        {
            "quantity": one.quantity, "rule": one.rule, "r": r, "seeds": one.seeds, "mean": sum(column) / len(column),
            "sd": spread.value, "low": spread.low, "high": spread.high,
        }
        for one in noises
        for r, spread, column in zip(one.r, one.spreads(), zip(*one.values, strict=True), strict=True)
    ]  # fmt: skip
    return [
        reports.save_csv(rows, stem.with_suffix(".csv")),
        *reports.save_figure(figure, stem, ("png", "svg")),
    ]


def _table(noises: Sequence[Noise]) -> Iterator[str]:
    yield f"{'spread over seeds of':<27}{'rule':<12}{'sd at each r':<58}{'slope':>6}  {'interval':<15}{'p (grows)':>9}"
    for one in noises:
        spreads = "  ".join(
            f"{r}: {spread.value:.3g}" for r, spread in zip(one.r, one.spreads(), strict=True)
        )
        growth = one.growth()
        interval = f"[{growth.low:+.2f}, {growth.high:+.2f}]"
        yield f"{one.quantity:<27}{one.rule:<12}{spreads:<58}{growth.value:>+6.2f}  {interval:<15}{one.chance():>9.3f}"


def _update_claims(noises: Sequence[Noise], size: NoiseSize) -> Iterator[Claim]:
    relative = [one for one in noises if one.quantity.endswith("relative")]
    absolute = [one for one in noises if not one.quantity.endswith("relative")]
    grown, held = (
        [one for one in absolute if one.rule == rule] for rule in ("gqa-mup", "complete-p")
    )
    yield _claim(
        "under gqa-mup updates get noisier as key/value heads get fewer",
        grown,
        size.starts,
        _grows(grown),
    )
    yield _claim("without its factor their noise is held", held, size.starts, _held(held))
    own = [one for one in relative if one.rule == "gqa-mup"]
    asked = "Does the relative noise of updates grow as √r, as that of the initial matrix does, √(r/2n)?"
    yield _claim(asked, own, size.starts, "ours", _like_root(own))


def _trained_claims(noises: Sequence[Noise], folder: Path) -> Iterator[Claim]:
    """Both rules are shown, so all runs count."""
    runs = len(Study.open(folder).trials) if noises else 0
    for one in noises:
        if one.rule == "gqa-mup":
            beside = next(
                other
                for other in noises
                if (other.quantity, other.rule) == (one.quantity, "complete-p")
            )
            claim = f"under gqa-mup the noise of the {one.quantity.partition(',')[0]} grows as key/value heads get fewer"
            yield _claim(claim, [one, beside], runs, _grows([one]))


def _claim(
    says: str, noises: Sequence[Noise], runs: int, verdict: Verdict | Literal["ours"], answer: str = ""
) -> Claim:  # fmt: skip
    seen = "; ".join(
        f"sd of {one.quantity} ({one.rule}) {one.spreads()[0].value:.3g} at r = {one.r[0]}, "
        f"{one.spreads()[-1].value:.3g} at r = {one.r[-1]}, slope "
        f"{_written(one.growth(len(noises)))}, "
        f"p = {one.chance():.3f}"
        for one in noises
    )
    return Claim("gqa-noise", says, f"{answer}{seen} ({noises[0].seeds} seeds)", runs, verdict)


def _written(one: Estimate) -> str:
    return f"{one.value:+.2f} [{one.low:+.2f}, {one.high:+.2f}]"


_OPEN: Verdict = "cannot be decided at this scale"


def _grows(noises: Sequence[Noise]) -> Verdict:
    growths = [one.growth(len(noises)) for one in noises]
    if all(one.low > 0 for one in growths):
        return "agrees"
    return "disagrees" if any(one.high < 0 for one in growths) else _OPEN


def _held(noises: Sequence[Noise]) -> Verdict:
    """That it does not grow is shown where all of the interval lies below half of √r's slope."""
    growths = [one.growth(len(noises)) for one in noises]
    if all(one.high < HALF / 2 for one in growths):
        return "agrees"
    return "disagrees" if any(one.low > 0 for one in growths) else _OPEN


def _like_root(noises: Sequence[Noise]) -> str:
    """A slope of ½: told from 0, and not from ½."""
    growths = {one.quantity: one.growth(len(noises)) for one in noises}
    unlike = [quantity for quantity, one in growths.items() if one.excludes(HALF)]
    if unlike:
        return f"No, a slope of ½ is excluded for the {' and the '.join(unlike)}: "
    return (
        "Yes: "
        if all(one.excludes(0) for one in growths.values())
        else "Not to be told at this scale: "
    )


HALF = 0.5
"""The slope of √r."""


def _updates_figure(noises: Sequence[Noise], size: NoiseSize) -> "Figure":
    return draw_panels(
        _panels(noises),
        x_label="repetitions r",
        y_label="standard deviation over seeds",
        title=f"Spread of ‖ΔW‖/‖W0‖ over {len(size.seeds)} seeds (bands: 95 % χ² intervals)",
        theory="√(r/2n), of the\ninitial matrix",
        log_x=True,
    )


def _trained_figure(noises: Sequence[Noise]) -> "Figure":
    return draw_panels(
        _panels(noises),
        x_label="repetitions r",
        y_label="standard deviation over seeds",
        title=f"Spread of training runs over {noises[0].seeds} seeds (bands: 95 % χ² intervals)",
        theory="",
        log_x=True,
    )


def _panels(noises: Sequence[Noise]) -> list[Panel]:
    """One for each quantity, a curve a rule."""
    panels: list[Panel] = []
    for quantity in dict.fromkeys(one.quantity for one in noises):
        curves: list[Line] = []
        for one in (one for one in noises if one.quantity == quantity):
            spreads = one.spreads()
            columns = (
                [getattr(spread, name) for spread in spreads] for name in ("value", "low", "high")
            )
            curves.append(Line(one.rule, one.r, *columns, theory=one.theory))
        panels.append(Panel(quantity, curves))
    return panels
