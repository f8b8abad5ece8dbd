"""Does the best learning rate of a small model stay best at eight times its width? Ours.

Three rules: the standard parameterization with one std at every width (`sp`), with std ∝ 1/√n_in
(`sp-fan-in`, the usual initialization), and `gqa-mup`. Each width is a study of its own in a folder
of that name, since the ranges move: those of the SP rules by one octave down per doubling. Every
rule gives the base its own values, so the runs there are run once. The last part trains the SP
rules at the largest width with the base's best rate, which lies above their range.

results/width/README.md has the design, which was fixed before the runs.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mupscale import reports
from mupscale.analysis.fits import FITS
from mupscale.errors import OptionError
from mupscale.paper.catalogue import load
from mupscale.paper.claims import Claim
from mupscale.paper.costs import study_work
from mupscale.paper.experiment import QUIETLY, Execution, Scale
from mupscale.paper.rate_study import Parts, RateRuns, RateStudy, run_part
from mupscale.paper.rate_tables import (
    ABOVE_ZERO,
    DIVERGED,
    FitAnswer,
    Question,
    RateTable,
    above_zero,
    drift,
    loss_at,
    lower_or_higher,
    lowest_above,
    rate_tables,
    regret,
    still_within,
)
from mupscale.paper.sweeps import FIGURES, with_ends
from mupscale.reports.widths import WidthCurve, WidthPanel, draw_widths
from mupscale.studies import StudyConfig
from mupscale.studies.config import rule_name
from mupscale.text import wrapped

REFERENCE = "gqa-mup"
TITLES = {
    "sp": "standard, one init std",
    "sp-fan-in": "standard, init std ∝ 1/√n",
    "gqa-mup": "mupscale (gqa-mup)",
}

STILL_PER_DOUBLING = 0.17
"""A drift is still if its whole interval lies within this many octaves per doubling."""

HARMLESS_NATS = 0.02
"""The figure shows a regret as harmless if its whole interval lies below this. Chosen after the
runs, when an interval up to 0.43 had been drawn as harmless because it contains 0.
"""

_SEEDS_AT_TARGET = 2
_DROPPED_OCTAVES = 1.0
"""At the largest width, the highest rates are left out: they cost most, and are least likely to be
best."""


@dataclass(frozen=True)
class WidthRuns(RateRuns):
    """All runs of the study. `given` are the tables of rules at the largest width, trained at the
    base's best rate where that lies outside of their range.
    """

    widths: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    given: Mapping[str, RateTable] = dataclasses.field(default_factory=dict[str, RateTable])

    def at(self, rule: str, width: int) -> RateTable:
        return self.tables[rule, f"width {width}"]

    @property
    def base(self) -> RateTable:
        return self.at(REFERENCE, self.widths[0])

    @property
    def target(self) -> int:
        return self.widths[-1]

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
        return loss_at(seed, self.best_rate, self.at(rule, self.target), self.given.get(rule))

    def regret(self, rule: str) -> FitAnswer:
        base, target = self.widths[0], self.target
        question = Question(
            "regret",
            f"the loss at width {target} with width {base}'s best rate, minus the lowest",
            f"What does width {base}'s best rate give up at width {target} under {{rule}}?",
            "nats",
            above_zero,
        )
        return regret(question, self.base, self.at(rule, target), self.given.get(rule))

    def drift(self, rule: str, widths: Sequence[int]) -> FitAnswer:
        span, doublings = f"{widths[0]} to {widths[-1]}", math.log2(widths[-1] / widths[0])
        question = Question(
            f"drift, {span}",
            f"of the best rate over widths {span}; still means less than {STILL_PER_DOUBLING}",
            f"Does the best learning rate stay still over widths {span} under {{rule}}?",
            "octaves per doubling",
            still_within(STILL_PER_DOUBLING * doublings, doublings),
        )
        return drift(question, rule, {float(width): self.at(rule, width) for width in widths})

    def above_reference(self, rule: str) -> FitAnswer:
        target = self.target
        question = Question(
            "lowest loss",
            f"at width {target}, minus that of {REFERENCE}",
            f"Is the lowest loss at width {target} under {{rule}} that under {REFERENCE}?",
            "nats",
            lower_or_higher,
        )
        return lowest_above(question, self.at(rule, target), self.at(REFERENCE, target))


class Width(RateStudy):
    """Regret, drift and lowest loss of three rules over width."""

    name = "width"

    def widths(self, scale: Scale) -> tuple[int, ...]:
        return load(self.name, scale).vary["width"]

    def part(self, scale: Scale, width: int) -> StudyConfig:
        """The study of one width."""
        whole = load(self.name, scale)
        widths = whole.vary["width"]
        low, high = whole.space["lr"]
        is_target = width == widths[-1]
        if is_target:
            high /= 2**_DROPPED_OCTAVES
        growth = width / widths[0]
        own = dataclasses.replace(
            whole,
            name=f"{self.name}-{width}",
            seeds=whole.seeds[:_SEEDS_AT_TARGET] if is_target else whole.seeds,
            vary={"width": (width,)},
            space={"lr": (low / growth, high / growth)},
            rule_space={REFERENCE: {"lr": (low, high)}},
        )
        if width == widths[0]:
            own = dataclasses.replace(own, rules=(REFERENCE,), rule_space={})
        return own

    def part_at(self, scale: Scale, log2_rate: float) -> StudyConfig:
        """The other rules at the largest width, trained at one rate: the base's best."""
        target = self.part(scale, self.widths(scale)[-1])
        others = tuple(rule for rule in target.rules if rule_name(rule) != REFERENCE)
        # A grid needs a range: a quarter of an octave holds one of its rates.
        ends = (2.0**log2_rate, 2.0 ** (log2_rate + target.search.step / 2))
        name = f"{self.name}-{self.last(scale)}"
        return dataclasses.replace(
            target, name=name, rules=others, space={"lr": ends}, rule_space={}
        )

    def last(self, scale: Scale) -> str:
        """The folder of the runs at the base's best rate."""
        widths = self.widths(scale)
        return f"{widths[-1]}-at-{widths[0]}"

    def parts_at(self, scale: Scale, log2_rate: float) -> dict[str, StudyConfig]:
        """Every part by the name of its folder, in the order in which they run."""
        by_width = {str(width): self.part(scale, width) for width in self.widths(scale)}
        return by_width | {self.last(scale): self.part_at(scale, log2_rate)}

    def parts(self, scale: Scale) -> Parts:
        """With the middle of the range in place of the best rate, which the runs will show."""
        low, high = load(self.name, scale).space["lr"]
        return self.parts_at(scale, math.log2(low * high) / 2)

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        parts, done = self.parts(scale), 0
        self.check_text(scale, folder)
        total = sum(one.runs for part in parts.values() for one in study_work(part))
        for width in self.widths(scale):
            done += run_part(self.part(scale, width), folder / str(width), how, done, total)
        best = self.runs(scale, folder).best_rate
        if best is None:
            raise OptionError(
                f"{folder / str(self.widths(scale)[0])} has no best rate: each has a run that "
                "diverged or failed. Run mupscale sweep FOLDER --status to see them."
            )
        run_part(self.part_at(scale, best), folder / self.last(scale), how, done, total)

    def runs(self, scale: Scale, folder: Path) -> WidthRuns:
        """What the folder's records hold so far."""
        plan, last, widths = self.parts(scale), self.last(scale), self.widths(scale)
        rules = tuple(rule_name(rule) for rule in load(self.name, scale).rules)
        tables: dict[tuple[str, str], RateTable] = {}
        for width in widths:
            for table in rate_tables(plan[str(width)], folder / str(width), self.label):
                # At the base all rules are one training, and share one table.
                for rule in rules if width == widths[0] else (table.rule,):
                    tables[rule, table.model] = table
        ordered = {
            (rule, f"width {width}"): tables[rule, f"width {width}"]
            for rule in rules
            for width in widths
        }
        at_rate = rate_tables(plan[last], folder / last, self.label)
        given = {table.rule: table for table in at_rate}
        return WidthRuns(ordered, tuple(at_rate), widths, rules, given)

    def answers(self, scale: Scale, found: RateRuns, folder: Path) -> list[FitAnswer]:
        assert isinstance(found, WidthRuns)
        others = [rule for rule in found.rules if rule != REFERENCE]
        spans = (found.widths[:-1], found.widths)
        return [
            *(found.regret(rule) for rule in found.rules),
            *(found.drift(rule, span) for rule in found.rules for span in spans),
            *(found.above_reference(rule) for rule in others),
        ]

    def tuning_share(self, scale: Scale) -> tuple[int, float]:
        """The runs at the base, and their operations over those of one run of the target."""
        (base,) = study_work(self.part(scale, self.widths(scale)[0]))
        target = study_work(self.part(scale, self.widths(scale)[-1]))[0]
        return base.runs, base.runs * base.run_operations / target.run_operations

    def headline(self, scale: Scale) -> str:
        (count, share), widths = self.tuning_share(scale), self.widths(scale)
        return (
            f"Tune at width {widths[0]}, train at width {widths[-1]}: all {count} tuning "
            f"runs cost {share:.0%} of one run at {widths[-1]}"
        )

    def figures(self, scale: Scale, folder: Path, found: RateRuns) -> list[Path]:
        assert isinstance(found, WidthRuns)
        picture = draw_widths(panels(found), title=self.headline(scale))
        saved = reports.save_figure(picture, folder / "figures" / "widths", FIGURES)
        return [*super().figures(scale, folder, found), *saved]

    def remarks(self, scale: Scale, found: RateRuns) -> Iterator[str]:
        yield ""
        yield wrapped(f"{self.headline(scale)}.")

    def claims(
        self, scale: Scale, found: RateRuns, answers: Sequence[FitAnswer]
    ) -> Iterator[Claim]:
        assert isinstance(found, WidthRuns)
        yield from super().claims(scale, found, answers)
        base, target = found.widths[0], found.target
        count, share = self.tuning_share(scale)
        yield Claim(
            self.name,
            "arithmetic",
            f"What does tuning at width {base} cost, as a share of one run at width {target}?",
            f"{share:.1%} of its operations, for all {count} runs at width {base}",
            found.base.ended,
            "ours",
        )


def panels(found: WidthRuns, rules: Sequence[str] | None = None) -> list[WidthPanel]:
    """The curves of each rule, for the figure."""
    return [_panel(found, rule) for rule in rules or found.rules]


def _panel(found: WidthRuns, rule: str) -> WidthPanel:
    curves = [width_curve(width, found.at(rule, width)) for width in found.widths]
    answer = found.regret(rule)
    measured = [found.at_best_rate(rule, seed) for seed in answer.seeds]
    losses = [loss for loss in measured if loss is not None and math.isfinite(loss)]
    widest = answer.agreement.widest
    text = f"at {found.target}, this rate: {answer.agreement.verdict}"
    if widest is not None:
        text = f"at {found.target}, this rate costs {with_ends(widest, 3)} nats"
    return WidthPanel(
        title=TITLES.get(rule, rule),
        curves=tuple(curve for curve in curves if curve is not None),
        log2_rate=found.best_rate,
        target=found.target,
        at_rate=sum(losses) / len(losses) if losses and len(losses) == len(measured) else None,
        regret=text,
        gives_up=_gives_up(answer),
    )


def _gives_up(answer: FitAnswer) -> bool | None:
    """For the colour: whether the rate costs something, or is bounded below what matters. A wide
    interval that contains 0 shows neither.
    """
    verdict, widest = answer.agreement.verdict, answer.agreement.widest
    if verdict in (ABOVE_ZERO, DIVERGED):
        return True
    return False if widest is not None and widest.high < HARMLESS_NATS else None


def width_curve(width: int, table: RateTable) -> WidthCurve | None:
    """Means over seeds, and the optimum in the middle of the fits, once all runs have ended."""
    means = table.losses.mean(axis=0)
    points = tuple(
        (rate, float(mean))
        for rate, mean in zip(table.log2_rates, means, strict=True)
        if math.isfinite(mean)
    )
    if not points:
        return None
    located = table.complete and not table.open_at
    centres = [
        (sum(p.log2_rate for p in one) / len(one), sum(p.loss for p in one) / len(one))
        for one in (table.lowest.values() if located else ())
        if all(p.inside for p in one)
    ]
    middle = sorted(centres)[len(centres) // 2] if len(centres) == len(FITS) else None
    return WidthCurve(width, points, middle)


EXPERIMENT = Width()
