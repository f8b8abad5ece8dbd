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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from mupscale import reports
from mupscale.analysis import Estimate
from mupscale.analysis.families import CellAnalysis
from mupscale.analysis.spreads import growth_by_chance, sd_growth, sd_of
from mupscale.paper import catalogue
from mupscale.paper.claims import Claim, Verdict, decided
from mupscale.paper.costs import study_cost
from mupscale.paper.dry_run import validate
from mupscale.paper.experiment import QUIETLY, Cost, Execution, Experiment, Findings, Scale
from mupscale.paper.few_steps import (
    OverHeads,
    panel_line,
    recorded_check,
    relative_updates,
    shape_of,
    signed,
)
from mupscale.reports.panels import Panel, draw_panels
from mupscale.studies import Study
from mupscale.studies.measured import analysis_of
from mupscale.targets import Family
from mupscale.text import text_table
from mupscale.theory import rule_named

if TYPE_CHECKING:
    pass

RULES = ("complete-p", "gqa-mup")
ROLES = ("key", "value")
_RULES = {name: rule_named(name) for name in RULES}

SIZES: Mapping[Scale, OverHeads] = {
    "cpu": OverHeads(
        Family("gpt:cpu_192_r1,depth=2"),
        tuple(range(1, 41)),
        steps=3,
        sequence=128,
        batch=2,
        std=0.1,
    ),
    # The paper's coordinate check, over bytes.
    "paper": OverHeads(
        Family("gpt:coordinate_12,vocabulary=256"), tuple(range(1, 11)), 5, 1024, std=0.1
    ),
}


@dataclass(frozen=True)
class Noise:
    """One quantity under one rule, by seed over r."""

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
    """The spread over seeds against r: of updates after a few steps, and of a study's optimum and
    loss.
    """

    name: ClassVar[str] = "gqa-noise"

    def cost(self, scale: Scale, workers: int) -> Cost:
        study = study_cost(catalogue.load(self.name, scale), workers)
        return study + SIZES[scale].cost(len(RULES), workers)

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        """First the updates, in `folder/updates`, then the study, in the folder itself."""
        study = Study.create(catalogue.load(self.name, scale), folder)
        before = len(RULES) * SIZES[scale].starts
        run_updates(scale, folder, how, before + sum(study.snapshot().expected.values()))
        study.run(
            engine=how.on(study.engine),
            report=lambda now: how.report(
                before + len(now.trials), before + sum(now.expected.values())
            ),
            remark=how.remark,
        )

    def findings(self, scale: Scale, folder: Path) -> Findings:
        size, updates = SIZES[scale], _updates(folder / "updates", SIZES[scale])
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
        size, updates = SIZES[scale], _updates(folder / "updates", SIZES[scale])
        trained, runs, _ = _trained(folder)
        return (*_update_claims(updates, size.starts), *_trained_claims(trained, runs))

    def dry_run(self, scale: Scale) -> Iterator[str]:
        size = SIZES[scale]
        yield f"{self.name}: updates under {' and '.join(RULES)} over"
        yield from size.described(_RULES)
        yield (
            f"{len(size.seeds)} seeds, {size.steps} steps of {size.batch} × {size.sequence} "
            f"tokens: {len(RULES) * size.starts} runs"
        )
        yield f"{self.name}: the study"
        yield from validate(catalogue.load(self.name, scale))


EXPERIMENT = GqaNoise()


def run_updates(
    scale: Scale, folder: Path, how: Execution = QUIETLY, total: int | None = None
) -> None:
    """A coordinate check for each rule."""
    SIZES[scale].run(_RULES, folder / "updates", how, total)


# What the records show


def _updates(folder: Path, size: OverHeads) -> list[Noise]:
    """‖ΔW‖/‖W0‖ of keys and values: its logarithm, whose spread is the relative one, and itself."""
    shape = shape_of(size.family, n_kv_heads=max(size.kv_heads))
    inner = shape.n_heads * shape.head_size  # the paper's n
    found: list[Noise] = []
    for rule in RULES:
        check = recorded_check(folder / rule, size.starts)
        theory = tuple(math.sqrt(r / 2 / inner) for r in check.x)
        for role in ROLES:
            values = tuple(map(tuple, relative_updates(check, role)))
            logs = tuple(tuple(map(math.log, row)) for row in values)
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
        for rule in RULES:
            own = [cell for cell in cells if cell.rule == rule]
            by_seed = [of_seeds(cell) for cell in own]
            seeds = sorted(set.intersection(*map(set, by_seed)))
            values = tuple(tuple(one[seed] for one in by_seed) for seed in seeds)
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
    figure = draw_panels(
        _panels(noises),
        x_label="repetitions r",
        log_x=True,
        y_label="standard deviation over seeds",
        title=f"Spread of {what} (bands: 95 % χ² intervals)",
        theory=theory,
    )
    return [
        reports.save_csv(rows, stem.with_suffix(".csv")),
        *reports.save_figure(figure, stem, ("png", "svg")),
    ]


def _panels(noises: Sequence[Noise]) -> list[Panel]:
    """One for each quantity, with one curve per rule."""
    return [
        Panel(
            quantity,
            [
                panel_line(one.rule, one.r, one.spreads(), one.theory)
                for one in noises
                if one.quantity == quantity
            ],
        )
        for quantity in dict.fromkeys(one.quantity for one in noises)
    ]


def _table(noises: Sequence[Noise]) -> str:
    head = ("spread over seeds of", "rule", "sd at each r", "slope", "interval", "p (grows)")
    rows: list[list[str]] = []
    for one in noises:
        pairs = zip(one.r, one.spreads(), strict=True)
        spreads = "  ".join(f"{r}: {spread.value:.3g}" for r, spread in pairs)
        slope, interval = _signed(one.growth()).split(" ", 1)
        rows.append([one.quantity, one.rule, spreads, slope, interval, f"{one.chance():.3f}"])
    return text_table(head, rows, right=("slope", "p (grows)"), details=("sd at each r",))


def _signed(one: Estimate) -> str:
    return signed(one.value, one.low, one.high)


def _update_claims(noises: Sequence[Noise], runs: int) -> Iterator[Claim]:
    relative = [one for one in noises if one.quantity.endswith("relative")]
    absolute = [one for one in noises if not one.quantity.endswith("relative")]
    grown, held = (
        [one for one in absolute if one.rule == rule] for rule in ("gqa-mup", "complete-p")
    )
    says = "Under gqa-mup, updates get noisier with fewer key/value heads"
    yield _claim(says, grown, runs, _grows(grown))
    yield _claim("Without its factor, their noise is held", held, runs, _held(held))
    own = [one for one in relative if one.rule == "gqa-mup"]
    question = "Does the relative noise of updates grow as √r, like the initial matrix's √(r/2n)?"
    yield _claim(question, own, runs, "ours", _like_root(own))


def _trained_claims(noises: Sequence[Noise], runs: int) -> Iterator[Claim]:
    """Both rules are shown, so all runs count."""
    for quantity in dict.fromkeys(one.quantity for one in noises):
        own = {one.rule: one for one in noises if one.quantity == quantity}
        name = quantity.partition(",")[0]
        says = f"Under gqa-mup, the noise of the {name} grows with fewer key/value heads"
        derived = own["gqa-mup"]
        yield _claim(says, [derived, own["complete-p"]], runs, _grows([derived]))


def _claim(
    says: str, noises: Sequence[Noise], runs: int, verdict: Verdict | Literal["ours"],
    answer: str = "",
) -> Claim:  # fmt: skip
    seen = "; ".join(
        f"sd of {one.quantity} ({one.rule}) {one.spreads()[0].value:.3g} at r = {one.r[0]}, "
        f"{one.spreads()[-1].value:.3g} at r = {one.r[-1]}, slope "
        f"{_signed(one.growth(len(noises)))}, p = {one.chance():.3f}"
        for one in noises
    )
    return Claim("gqa-noise", says, f"{answer}{seen} ({noises[0].seeds} seeds)", runs, verdict)


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
    return "Yes: " if grows else "Cannot be decided at this scale: "
