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
from pathlib import Path

from mupscale import reports
from mupscale.analysis.fits import FITS
from mupscale.errors import OptionError
from mupscale.paper.catalogue import load
from mupscale.paper.claims import Claim
from mupscale.paper.costs import study_cost, study_work
from mupscale.paper.dry_run import validate
from mupscale.paper.experiment import QUIETLY, Cost, Execution, Experiment, Findings, Scale
from mupscale.paper.sweeps import FIGURES, finding_in, with_ends
from mupscale.paper.width_cells import (
    ABOVE_ZERO,
    DIVERGED,
    NOT_ABOVE_ZERO,
    FitAnswer,
    RateTable,
    WidthRuns,
    rate_tables,
)
from mupscale.records import write_whole
from mupscale.reports.page import study_page
from mupscale.reports.page.of_study import page_data
from mupscale.reports.widths import WidthCurve, WidthPanel, draw_widths
from mupscale.studies import Study, StudyConfig
from mupscale.studies.config import rule_name
from mupscale.studies.study import CONFIG
from mupscale.text import text_table, wrapped

REFERENCE = "gqa-mup"
TITLES = {
    "sp": "standard, one init std",
    "sp-fan-in": "standard, init std ∝ 1/√n",
    "gqa-mup": "mupscale (gqa-mup)",
}

MAKE_TEXT = (
    "apt-get install dict-gcide",
    "python -m mupscale.paper.english_text /usr/share/dictd/gcide.dict.dz runs/gcide.txt",
)
"""What makes the text of the study at scale cpu; it has its own license, and is not included."""

_SEEDS_AT_TARGET = 2
_DROPPED_OCTAVES = 1.0
"""At the largest width, the highest rates are left out: they cost most, and are least likely to be
best."""


class Width(Experiment):
    """Regret, drift and lowest loss of three rules over width."""

    name = "width"

    def workers(self, scale: Scale) -> int | None:
        return 1 if scale == "cpu" else None

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
        widths = self.widths(scale)
        target = self.part(scale, widths[-1])
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

    def parts(self, scale: Scale, log2_rate: float) -> dict[str, StudyConfig]:
        """Every part by the name of its folder, in the order in which they run."""
        by_width = {str(width): self.part(scale, width) for width in self.widths(scale)}
        return by_width | {self.last(scale): self.part_at(scale, log2_rate)}

    def _parts_to_plan(self, scale: Scale) -> dict[str, StudyConfig]:
        """With the middle of the range in place of the best rate, which the runs will show."""
        low, high = load(self.name, scale).space["lr"]
        return self.parts(scale, math.log2(low * high) / 2)

    def cost(self, scale: Scale, workers: int) -> Cost:
        self._refuse_missing_text(scale)
        first, *rest = (study_cost(one, workers) for one in self._parts_to_plan(scale).values())
        return sum(rest, start=first)

    def dry_run(self, scale: Scale) -> Iterator[str]:
        self._refuse_missing_text(scale)
        for name, config in self._parts_to_plan(scale).items():
            yield f"part {name}: {sum(one.runs for one in study_work(config))} runs"
            yield from validate(config)

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        self._refuse_missing_text(scale)
        total = sum(
            one.runs for part in self._parts_to_plan(scale).values() for one in study_work(part)
        )
        done = 0
        for width in self.widths(scale):
            done += self._run_part(self.part(scale, width), folder / str(width), how, done, total)
        best = self.runs(scale, folder).best_rate
        if best is None:
            raise OptionError(
                f"{folder / str(self.widths(scale)[0])} has no best rate: each has a run that "
                "diverged or failed. Run mupscale sweep FOLDER --status to see them."
            )
        self._run_part(self.part_at(scale, best), folder / self.last(scale), how, done, total)

    def _run_part(
        self, config: StudyConfig, folder: Path, how: Execution, before: int, total: int
    ) -> int:
        if (folder / CONFIG).exists():  # a range that had to grow stays
            old = StudyConfig.load(folder / CONFIG)
            config = dataclasses.replace(config, space=old.space, rule_space=old.rule_space)
        study = Study.create(config, folder)
        ended = study.run(
            engine=how.on(study.engine),
            report=lambda now: how.report(before + len(now.trials), total),
            remark=how.remark,
        )
        return len(ended.trials)

    def _refuse_missing_text(self, scale: Scale) -> None:
        corpus = str(load(self.name, scale).tables["data"]["corpus"])
        kind, _, path = corpus.partition(":")
        if kind == "text" and not Path(path).exists():
            commands = "\n  ".join(MAKE_TEXT)
            raise OptionError(
                f"{path} does not exist in {Path.cwd()}. Make it with two commands:\n  {commands}"
            )

    def runs(self, scale: Scale, folder: Path) -> WidthRuns:
        """What the folder's records hold so far."""
        plan, last = self._parts_to_plan(scale), self.last(scale)
        widths, whole = self.widths(scale), load(self.name, scale)
        rules = tuple(rule_name(rule) for rule in whole.rules)
        (base,) = rate_tables(plan[str(widths[0])], folder / str(widths[0]))
        tables: dict[tuple[str, int], RateTable] = dict.fromkeys(
            ((rule, widths[0]) for rule in rules), base
        )
        for width in widths[1:]:
            for table in rate_tables(plan[str(width)], folder / str(width)):
                tables[table.rule, width] = table
        given = {table.rule: table for table in rate_tables(plan[last], folder / last)}
        return WidthRuns(widths, rules, REFERENCE, tables, given)

    def tuning_share(self, scale: Scale) -> tuple[int, float]:
        """The runs at the base, and their operations over those of one run of the target."""
        (base,) = study_work(self.part(scale, self.widths(scale)[0]))
        target = study_work(self.part(scale, self.widths(scale)[-1]))[0]
        steps = base.lengths.steps * base.operations, target.lengths.steps * target.operations
        return base.runs, base.runs * steps[0] / steps[1]

    def findings(self, scale: Scale, folder: Path) -> Findings:
        found = self.runs(scale, folder)
        if not found.ended:
            raise OptionError(f"{folder} holds no records: nothing was run there yet.")
        study = Study.open(folder)
        snapshot = study.snapshot()
        joined = finding_in(snapshot)
        page, figures = folder / "report.html", folder / "figures"
        data = page_data(study, snapshot=snapshot, analysis=joined.analysis)
        write_whole(page, study_page(data).encode("utf-8", errors="replace"))
        answers = found.answers()
        picture = draw_widths(panels(found), title=self.headline(scale, found))
        paths = [
            page,
            *reports.save_study_figures(joined.analysis, joined.runs, figures, FIGURES),
            *reports.save_figure(picture, figures / "widths", FIGURES),
            reports.save_csv(list(_optimum_rows(found)), folder / "lowest-points.csv"),
            reports.save_csv(list(_answer_rows(answers)), folder / "answers.csv"),
        ]
        lines = self._lines(scale, found, answers)
        return Findings(tuple(lines), tuple(self._claims(scale, found, answers)), tuple(paths))

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        """None before every run has ended: results are not compared earlier."""
        found = self.runs(scale, folder)
        answers = found.answers() if found.complete else []
        return tuple(self._claims(scale, found, answers)) if answers else ()

    def headline(self, scale: Scale, found: WidthRuns) -> str:
        count, share = self.tuning_share(scale)
        return (
            f"Tune at width {found.widths[0]}, train at width {found.target}: all {count} tuning "
            f"runs cost {share:.0%} of one run at {found.target}"
        )

    def _lines(self, scale: Scale, found: WidthRuns, answers: Sequence[FitAnswer]) -> Iterator[str]:
        yield f"{found.ended} of {found.expected} runs have ended, {found.diverged} diverged."
        yield ""
        yield "log2 of the best rate: of the grid, and by each fit (mean over seeds)"
        yield text_table(["rule", "width", "runs", "diverged", "grid", *FITS], list(_optima(found)))
        yield from _open_ranges(found)
        for question in dict.fromkeys(answer.question for answer in answers):
            own = [answer for answer in answers if answer.question == question]
            yield ""
            yield _MEANING.get(question, _DRIFT).format(
                base=found.widths[0], target=found.target, reference=found.reference,
                question=question,
            )  # fmt: skip
            head = ["rule", "fit", "by seed", "mean, 95 % interval"]
            yield text_table(head, [row for answer in own for row in _shown(answer)])
        yield ""
        yield wrapped(f"{self.headline(scale, found)}.")

    def _claims(
        self, scale: Scale, found: WidthRuns, answers: Sequence[FitAnswer]
    ) -> Iterator[Claim]:
        base, target = found.widths[0], found.target
        for answer in answers:
            says = _QUESTIONS["drift" if answer.question.startswith("drift") else answer.question]
            says = says.format(
                base=base, target=target, rule=answer.rule, reference=found.reference,
                span=answer.question.removeprefix("drift, "),
            )  # fmt: skip
            yield Claim(self.name, "best rates", says, _seen(answer), answer.runs, "ours")
        count, share = self.tuning_share(scale)
        yield Claim(
            self.name,
            "arithmetic",
            f"What does tuning at width {base} cost, as a share of one run at width {target}?",
            f"{share:.1%} of its operations, for all {count} runs at width {base}",
            found.base.ended,
            "ours",
        )


_MEANING = {
    "regret": "regret: the loss at width {target} with width {base}'s best rate, minus the lowest "
    "(nats)",
    "lowest loss": "lowest loss at width {target}, minus that of {reference} (nats)",
}
_DRIFT = "{question}: octaves per doubling"

_QUESTIONS = {
    "regret": "What does width {base}'s best rate give up at width {target} under {rule}?",
    "drift": "Does the best learning rate stay still over widths {span} under {rule}?",
    "lowest loss": "Is the lowest loss at width {target} under {rule} that under {reference}?",
}


def _digits(answer: FitAnswer) -> int:
    return 2 if answer.question.startswith("drift") else 4


def _seen(answer: FitAnswer) -> str:
    """As "drift -0.02 [-0.09, 0.04] (widest of three fits, 3 seeds): still"."""
    digits = _digits(answer)
    if answer.agreement.widest is None:
        return answer.agreement.verdict
    unit = "octaves per doubling" if digits == 2 else "nats"
    values = "; ".join(f"{fit} {with_ends(answer.estimate(fit), digits)}" for fit in answer.by_fit)
    widest = with_ends(answer.agreement.widest, digits)
    seeds = len(answer.seeds)
    return f"{widest} {unit}, {seeds} seeds, {answer.agreement.verdict} ({values})"


def _shown(answer: FitAnswer) -> Iterator[list[str]]:
    digits = _digits(answer)
    if answer.missing:
        yield [answer.rule, "", "", answer.missing]
        return
    for fit, values in answer.by_fit.items():
        each = "" if values is None else " ".join(f"{value:z.{digits}f}" for value in values)
        mean = "not located" if values is None else with_ends(answer.estimate(fit), digits)
        yield [answer.rule, fit, each, mean]
    widest = answer.agreement.widest
    ends = "" if widest is None else with_ends(widest, digits)
    yield [answer.rule, "all", answer.agreement.verdict, ends]


def _optima(found: WidthRuns) -> Iterator[list[str]]:
    for (rule, width), table in found.tables.items():
        row = [rule, str(width), f"{table.ended} of {table.expected}", str(table.diverged)]
        if not table.complete or table.best is None:
            yield [*row, "not run yet", *("" for _ in FITS)]
            continue
        grid = f"{table.best:g}" + (", open" if table.open_at else "")
        yield [*row, grid, *(_mean_rate(table, fit) for fit in FITS)]


def _open_ranges(found: WidthRuns) -> Iterator[str]:
    """What to do where the best rate of the grid is an end of its range."""
    for table in dict.fromkeys(found.tables.values()):
        if table.complete and table.open_at:
            low, high = table.log2_rates[0], table.log2_rates[-1]
            low, high = (low - 1, high) if table.open_at == "lower" else (low, high + 1)
            yield wrapped(
                f"{table.rule} at width {table.width}: the lowest mean loss lies at the "
                f"{table.open_at} end of the range. In a copy of {table.width}/{CONFIG}, write "
                f'lr = ["2^{low:g}", "2^{high:g}"] below [space.{table.rule}], run it with '
                f"mupscale sweep COPY --output NEW --fork {table.width}, and put NEW in place of "
                f"{table.width}."
            )


def _mean_rate(table: RateTable, fit: str) -> str:
    points = table.lowest[fit]
    if not all(one.inside for one in points):
        return ", ".join(dict.fromkeys(one.place for one in points if not one.inside))
    return f"{sum(one.log2_rate for one in points) / len(points):.2f}"


def _optimum_rows(found: WidthRuns) -> Iterator[Mapping[str, object]]:
    for (rule, width), table in found.tables.items():
        for fit in FITS if table.complete else ():
            for seed, one in zip(table.seeds, table.lowest[fit], strict=True):
                located = {"log2_lr": one.log2_rate, "loss": one.loss} if one.inside else {}
                row = {"rule": rule, "width": width, "fit": fit, "seed": seed, "place": one.place}
                yield row | {"points": one.points, "log2_lr": None, "loss": None} | located


def _answer_rows(answers: Sequence[FitAnswer]) -> Iterator[Mapping[str, object]]:
    for answer in answers:
        for fit in FITS:
            one, values = answer.estimate(fit), answer.by_fit.get(fit)
            yield {
                "question": answer.question,
                "rule": answer.rule,
                "fit": fit,
                "seeds": len(answer.seeds),
                "by_seed": " ".join(f"{value:.6f}" for value in values or ()),
                "mean": one.value if one else None,
                "low": one.low if one else None,
                "high": one.high if one else None,
                "verdict": answer.agreement.verdict,
            }


def panels(found: WidthRuns, rules: Sequence[str] | None = None) -> list[WidthPanel]:
    """The curves of each rule, for the figure."""
    return [_panel(found, rule) for rule in rules or found.rules]


def _panel(found: WidthRuns, rule: str) -> WidthPanel:
    curves = [_curve(found.tables[rule, width]) for width in found.widths]
    regret = found.regret(rule)
    measured = [found.at_best_rate(rule, seed) for seed in regret.seeds]
    losses = [loss for loss in measured if loss is not None and math.isfinite(loss)]
    widest = regret.agreement.widest
    text = f"the tuned rate at {found.target}: {regret.agreement.verdict}"
    if widest is not None:
        text = f"the tuned rate costs {with_ends(widest, 3)} nats at {found.target}"
    return WidthPanel(
        title=TITLES.get(rule, rule),
        curves=tuple(curve for curve in curves if curve is not None),
        log2_rate=found.best_rate,
        target=found.target,
        at_rate=sum(losses) / len(losses) if losses and len(losses) == len(measured) else None,
        regret=text,
        gives_up={ABOVE_ZERO: True, DIVERGED: True, NOT_ABOVE_ZERO: False}.get(
            regret.agreement.verdict
        ),
    )


def _curve(table: RateTable) -> WidthCurve | None:
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
    return WidthCurve(table.width, points, middle)


EXPERIMENT = Width()
