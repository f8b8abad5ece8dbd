"""Experiments whose questions were fixed before their runs: one study, or several in one folder.

Each part is a study in a folder of its name. The records become tables of losses (`rate_tables`),
and every question is answered with three fits, or with measured losses alone.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mupscale import reports
from mupscale.analysis.fits import FITS
from mupscale.errors import OptionError
from mupscale.paper.claims import Claim
from mupscale.paper.costs import study_cost, study_work
from mupscale.paper.dry_run import validate
from mupscale.paper.experiment import QUIETLY, Cost, Execution, Experiment, Findings, Scale
from mupscale.paper.rate_tables import FitAnswer, RateTable, rate_tables
from mupscale.paper.sweeps import FIGURES, finding_in, with_ends
from mupscale.records import write_whole
from mupscale.reports.page import study_page
from mupscale.reports.page.of_study import page_data
from mupscale.studies import Study, StudyConfig
from mupscale.studies.config import Cell
from mupscale.studies.measured import member_label
from mupscale.studies.study import CONFIG
from mupscale.text import text_table, wrapped


def make_text(path: str) -> tuple[str, str]:
    """What makes the text of the studies at scale cpu; it has its own license, and is not
    included.
    """
    utf8 = "--utf8 " if "utf8" in path else ""
    return (
        "apt-get install dict-gcide",
        f"python -m mupscale.paper.english_text {utf8}/usr/share/dictd/gcide.dict.dz {path}",
    )


Parts = Mapping[str, StudyConfig]
"""Studies by the name of their folder; the empty name is the experiment's own folder."""


@dataclass(frozen=True)
class RateRuns:
    """All cells of an experiment."""

    tables: Mapping[tuple[str, str], RateTable]
    "By rule and model. Where all rules are one training, they may share a table."
    others: tuple[RateTable, ...] = ()
    "Further runs that no curve is fitted to."

    @property
    def each(self) -> list[RateTable]:
        """Each table once."""
        return list(dict.fromkeys([*self.tables.values(), *self.others]))

    @property
    def ended(self) -> int:
        return sum(table.ended for table in self.each)

    @property
    def expected(self) -> int:
        return sum(table.expected for table in self.each)

    @property
    def diverged(self) -> int:
        return sum(table.diverged for table in self.each)

    @property
    def complete(self) -> bool:
        """All runs are there, and no range must grow: results may be compared."""
        return all(table.complete for table in self.each) and not any(
            table.open_at for table in self.tables.values()
        )


class RateStudy(Experiment):
    """An experiment with a design of its own: results/NAME/README.md."""

    searched: ClassVar[str] = "lr"
    "The parameter whose best value is asked for."
    reach: ClassVar[float] = 1.0
    "How much farther than usual the fits reach."

    @abstractmethod
    def parts(self, scale: Scale) -> Parts:
        """The studies, in the order in which they run."""

    @abstractmethod
    def answers(self, scale: Scale, found: RateRuns, folder: Path) -> list[FitAnswer]:
        """Every question of the design, in its order."""

    def workers(self, scale: Scale) -> int | None:
        return 1 if scale == "cpu" else None

    def label(self, config: StudyConfig, cell: Cell) -> str:
        """A model in a sentence: width 256."""
        return member_label(cell).replace(" = ", " ")

    def cost(self, scale: Scale, workers: int) -> Cost:
        refuse_missing_text(self.parts(scale))
        first, *rest = (study_cost(one, workers) for one in self.parts(scale).values())
        return sum(rest, start=first)

    def dry_run(self, scale: Scale) -> Iterator[str]:
        refuse_missing_text(self.parts(scale))
        for name, config in self.parts(scale).items():
            runs = sum(one.runs for one in study_work(config))
            yield f"{f'part {name}: ' if name else ''}{runs} runs"
            yield from validate(config)

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        self.check_text(scale, folder)
        parts = self.parts(scale)
        total = sum(one.runs for part in parts.values() for one in study_work(part))
        done = 0
        for name, config in parts.items():
            done += run_part(config, folder / name, how, done, total)

    def check_text(self, scale: Scale, folder: Path) -> None:
        """Raise for a missing text, which finished records do not need."""
        if not self.runs(scale, folder).complete:
            refuse_missing_text(self.parts(scale))

    def runs(self, scale: Scale, folder: Path) -> RateRuns:
        """What the folder's records hold so far."""
        tables = {
            (table.rule, table.model): table
            for name, config in self.parts(scale).items()
            for table in rate_tables(config, folder / name, self.label, self.searched, self.reach)
        }
        return RateRuns(tables)

    def findings(self, scale: Scale, folder: Path) -> Findings:
        found = self.runs(scale, folder)
        if not found.ended:
            raise OptionError(f"{folder} holds no records: nothing was run there yet.")
        answers = self.answers(scale, found, folder)
        paths = self.figures(scale, folder, found)
        if lowest := list(_optimum_rows(found)):
            paths.append(reports.save_csv(lowest, folder / "lowest-points.csv"))
        paths.append(reports.save_csv(list(_answer_rows(answers)), folder / "answers.csv"))
        lines = [*_lines(found, answers), *self.remarks(scale, found)]
        claims = tuple(self.claims(scale, found, answers))
        return Findings(tuple(lines), claims, tuple(paths))

    def figures(self, scale: Scale, folder: Path, found: RateRuns) -> list[Path]:
        """The page and the usual figures of its studies, read as one."""
        study = Study.open(folder)
        snapshot = study.snapshot()
        joined = finding_in(snapshot)
        page = folder / "report.html"
        data = page_data(study, snapshot=snapshot, analysis=joined.analysis)
        write_whole(page, study_page(data).encode("utf-8", errors="replace"))
        saved = reports.save_study_figures(
            joined.analysis, joined.runs, folder / "figures", FIGURES
        )
        return [page, *saved]

    def remarks(self, scale: Scale, found: RateRuns) -> Iterator[str]:
        """Lines to print at the end."""
        yield from ()

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        """None before every run has ended: results are not compared earlier."""
        found = self.runs(scale, folder)
        if not found.complete:
            return ()
        return tuple(self.claims(scale, found, self.answers(scale, found, folder)))

    def claims(
        self, scale: Scale, found: RateRuns, answers: Sequence[FitAnswer]
    ) -> Iterator[Claim]:
        for one in answers:
            says = one.question.asks.format(rule=one.rule)
            yield Claim(self.name, "best rates", says, seen(one), one.runs, "ours")


def refuse_missing_text(parts: Parts) -> None:
    for config in parts.values():
        corpus = str(config.tables.get("data", {}).get("corpus", ""))
        kind, _, path = corpus.partition(":")
        if kind == "text" and not Path(path).exists():
            commands = "\n  ".join(make_text(path))
            raise OptionError(
                f"{path} does not exist in {Path.cwd()}. Make it with two commands:\n  {commands}"
            )


def run_part(config: StudyConfig, folder: Path, how: Execution, before: int, total: int) -> int:
    """Run what a part lacks; the number of its runs."""
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


# What is printed


def _lines(found: RateRuns, answers: Sequence[FitAnswer]) -> Iterator[str]:
    yield f"{found.ended} of {found.expected} runs have ended, {found.diverged} diverged."
    if found.tables:
        yield ""
        names = dict.fromkeys(table.parameter for table in found.tables.values())
        what = "rate" if "lr" in names else ", ".join(names)
        yield f"log2 of the best {what}: of the grid, and by each fit (mean over seeds)"
        yield text_table(["rule", "model", "runs", "diverged", "grid", *FITS], list(_optima(found)))
    yield from _open_ranges(found)
    for question in {answer.question.name: answer.question for answer in answers}.values():
        own = [answer for answer in answers if answer.question.name == question.name]
        yield ""
        yield wrapped(f"{question.name}: {question.meaning} ({question.unit})")
        head = ["rule", "fit", "by seed", "mean, 95 % interval"]
        yield text_table(head, [row for answer in own for row in _shown(answer)])


def seen(answer: FitAnswer) -> str:
    """As "-0.02 [-0.09, 0.04] octaves per doubling, 3 seeds, still (quadratic …)"."""
    question, agreement = answer.question, answer.agreement
    if agreement.widest is None:
        return agreement.verdict
    digits = question.digits
    values = "; ".join(f"{fit} {with_ends(answer.estimate(fit), digits)}" for fit in answer.by_fit)
    widest = with_ends(agreement.widest, digits)
    fits = f" ({values})" if len(answer.by_fit) > 1 else ""
    return f"{widest} {question.unit}, {len(answer.seeds)} seeds, {agreement.verdict}{fits}"


def _shown(answer: FitAnswer) -> Iterator[list[str]]:
    digits = answer.question.digits
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


def _optima(found: RateRuns) -> Iterator[list[str]]:
    for (rule, _), table in found.tables.items():
        row = [rule, table.model, f"{table.ended} of {table.expected}", str(table.diverged)]
        if not table.complete or table.best is None:
            yield [*row, "not run yet", *("" for _ in FITS)]
            continue
        grid = f"{table.best:g}" + (", open" if table.open_at else "")
        yield [*row, grid, *(_mean_rate(table, fit) for fit in FITS)]


def _open_ranges(found: RateRuns) -> Iterator[str]:
    """What to do where the best rate of the grid is an end of its range."""
    for table in dict.fromkeys(found.tables.values()):
        if table.complete and table.open_at:
            low, high = table.log2_rates[0], table.log2_rates[-1]
            low, high = (low - 1, high) if table.open_at == "lower" else (low, high + 1)
            yield wrapped(
                f"{table.rule} at {table.model}: the lowest mean loss lies at the "
                f"{table.open_at} end of the range. In a copy of {table.study}/{CONFIG}, write "
                f'{_key(table.parameter)} = ["2^{low:g}", "2^{high:g}"] below '
                f"[space.{table.rule}], run it with mupscale sweep COPY --output NEW --fork "
                f"{table.study}, and put NEW in place of {table.study}."
            )


def _key(parameter: str) -> str:
    """A name as TOML needs it."""
    return f'"{parameter}"' if "." in parameter else parameter


def _mean_rate(table: RateTable, fit: str) -> str:
    points = table.lowest[fit]
    if not all(one.inside for one in points):
        return ", ".join(dict.fromkeys(one.place for one in points if not one.inside))
    return f"{sum(one.log2_rate for one in points) / len(points):.2f}"


def _optimum_rows(found: RateRuns) -> Iterator[Mapping[str, object]]:
    for (rule, _), table in found.tables.items():
        for fit in FITS if table.complete else ():
            for seed, one in zip(table.seeds, table.lowest[fit], strict=True):
                located = {f"log2_{table.parameter}": one.log2_rate, "loss": one.loss}
                row = {"rule": rule, "model": table.model, "fit": fit, "seed": seed}
                name = f"log2_{table.parameter}"
                row |= {"place": one.place, "points": one.points, name: None, "loss": None}
                yield row | (located if one.inside else {})


def _answer_rows(answers: Sequence[FitAnswer]) -> Iterator[Mapping[str, object]]:
    for answer in answers:
        for fit in answer.by_fit or ("",):
            one, values = answer.estimate(fit), answer.by_fit.get(fit)
            yield {
                "question": answer.question.name,
                "rule": answer.rule,
                "fit": fit,
                "seeds": len(answer.seeds),
                "by_seed": " ".join(f"{value:.6f}" for value in values or ()),
                "mean": one.value if one else None,
                "low": one.low if one else None,
                "high": one.high if one else None,
                "verdict": answer.agreement.verdict,
            }
