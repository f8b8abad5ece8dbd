"""Do values for each kind of weight, found at width 64, reach tuned AdamW at width 512? Ours.

The search runs at the base. The point that it finds is read from its records and carried to the two
largest widths. The runs to compare with are those of `width`, whose folder lies beside this one, and
some more seeds of them.

results/factors/README.md has the design, which was fixed before the runs.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mupscale import reports
from mupscale.analysis.estimates import Estimate
from mupscale.errors import OptionError
from mupscale.paper.catalogue import load
from mupscale.paper.claims import Claim
from mupscale.paper.costs import study_work
from mupscale.paper.experiment import QUIETLY, Execution, Findings, Scale
from mupscale.paper.rate_study import Parts, RateRuns, RateStudy, refuse_missing_text, run_part
from mupscale.paper.rate_tables import (
    MEASURED,
    FitAnswer,
    Question,
    RateTable,
    Term,
    lower_or_higher,
    measured_difference,
    missing_in,
    rate_tables,
    with_more_seeds,
)
from mupscale.paper.sweeps import FIGURES
from mupscale.paper.width import EXPERIMENT as WIDTH
from mupscale.paper.width import REFERENCE, WidthRuns
from mupscale.records import differences
from mupscale.reports.differences import DifferencePanel, DifferenceRow, draw_differences
from mupscale.reports.sensitivity import draw_sensitivity
from mupscale.studies import Snapshot, Study, StudyConfig
from mupscale.studies.config import Search, rule_name
from mupscale.studies.sensitivity import (
    FactorGain,
    Sensitivity,
    found_in,
    sensitivity_cells,
    sensitivity_text,
)
from mupscale.studies.study import CONFIG
from mupscale.text import wrapped

PLAIN = "sp-fan-in"
"""Plain AdamW: one rate for all weights, initial std ∝ 1/√n."""

NO_WORSE_NATS = 0.01
"""A loss is no worse if the whole interval of its difference lies below this."""

FACTORS = ("lr.embedding", "lr.readout", "lr.gains", "std.embedding", "std.readout")
_FACTOR_ENDS = (2.0**-4, 2.0**4)
_SEARCH = Search(method="paired", step=1.0, trials=66)
_SEEDS_AT_TARGET = 4
_SIDE_OCTAVES = 0.5


@dataclass(frozen=True)
class CarriedPoint:
    """What the records decide; rates are in log2."""

    rate: float
    factors: Mapping[str, float]
    plain_rate: float
    "Plain AdamW's best rate of the grid at the largest width."
    base_rate: float
    "The base's best rate of the grid, without factors."

    def __str__(self) -> str:
        factors = "".join(f", {name} × {value:.4g}" for name, value in self.factors.items())
        return f"the rate 2^{self.rate:g}{factors}"


@dataclass(frozen=True, kw_only=True)
class FactorsRuns(RateRuns):
    """All runs of the study, and those of `width`."""

    search: Snapshot
    width: WidthRuns
    carried: CarriedPoint
    parts: Mapping[str, RateTable]
    "By the name of their folder, without the search."

    @property
    def searched(self) -> bool:
        return self.search.done == set(self.search.cells)

    @property
    def ended(self) -> int:
        return super().ended + len(self.search.trials)

    @property
    def expected(self) -> int:
        known = len(self.search.trials) if self.searched else self.search.config.search.trials
        return super().expected + (known or 0)

    @property
    def diverged(self) -> int:
        return super().diverged + sum(trial.loss is None for trial in self.search.trials)

    @property
    def complete(self) -> bool:
        return self.searched and super().complete and not self.missing_rates

    @cached_property
    def missing_rates(self) -> str:
        """Why the runs of `width` cannot be compared with; empty if they can."""
        at, widths = self.width.at, self.width.widths[-2:]
        tuned = [self.width.base, *(at(PLAIN, width) for width in widths)]
        others = [*(at(REFERENCE, width) for width in widths), self.width.given[PLAIN]]
        return missing_in([*tuned, *others], ranges=tuned)

    @cached_property
    def sensitivity(self) -> tuple[list[Sensitivity], list[FactorGain]]:
        return found_in(self.search)

    def compared(self, width: int) -> list[FitAnswer]:
        """The carried point minus each of the three others; tuned AdamW, which is primary, first."""
        base, own = self.width.widths[0], self.parts[str(width)]
        question = Question(
            f"carried to {width}",
            f"the loss at width {width} with what was found at width {base}, minus that of the "
            f"other; no worse means that the whole interval lies below {NO_WORSE_NATS}",
            f"Is the loss at width {width} with values found at width {base} no worse than with "
            "{rule}?",
            "nats",
            no_worse,
        )
        plain, one_rate = (self.width.at(rule, width) for rule in (PLAIN, REFERENCE))
        tuned, more, given = plain, list[RateTable](), plain
        if width == self.width.target:
            more = [self.parts[f"{width}-plain"], self.parts[f"{width}-one-rate"]]
            tuned, one_rate = (
                with_more_seeds(*both) for both in zip((plain, one_rate), more, strict=True)
            )
            given = self.width.given[PLAIN]
        others: dict[str, tuple[Term, RateTable]] = {
            f"plain AdamW tuned at {width}": ((tuned, tuned.best), plain),
            "one rate for all weights": ((one_rate, self.carried.base_rate), self.width.base),
            f"plain AdamW at {base}'s rate": ((given, self.carried.base_rate), self.width.base),
        }
        return [
            measured_difference(question, name, [(own, self.carried.rate), term], [source])
            for name, (term, source) in others.items()
        ]

    def sides(self, width: int) -> list[FitAnswer]:
        """The loss half an octave to either side of the carried rate, minus that at it."""
        question = Question(
            f"rate at {width}",
            f"the loss at width {width} beside the carried rate, minus that at it",
            f"Is the loss at width {width} higher {{rule}} the carried rate than at it?",
            "nats",
            lower_or_higher,
        )
        own, rate = self.parts[str(width)], self.carried.rate
        beside = self.parts.get(f"{width}-sides", own)
        places = {"half an octave below": -_SIDE_OCTAVES, "half an octave above": _SIDE_OCTAVES}
        return [
            measured_difference(question, words, [(beside, rate + octaves), (own, rate)])
            for words, octaves in places.items()
        ]

    def best_of_three(self, width: int) -> str:
        """Which of the three rates has the lowest mean loss, as a sentence; empty if not known."""
        means = {one.rule: mean.value for one in self.sides(width) if (mean := measured_mean(one))}
        if len(means) < 2:
            return ""
        side, lowest = min(means.items(), key=lambda item: item[1])
        best = "the carried rate" if lowest > 0 else f"the rate {side} the carried one"
        return f"At width {width}, {best} has the lowest mean loss of the three."


class Factors(RateStudy):
    """What was found at the base, against plain AdamW tuned at the target."""

    name = "factors"

    def width_folder(self, scale: Scale, folder: Path) -> Path:
        """Where the runs of `width` are."""
        default = folder == self.folder(scale)
        return WIDTH.folder(scale) if default else folder.parent / WIDTH.name

    def parts_at(self, scale: Scale, point: CarriedPoint) -> dict[str, StudyConfig]:
        """Every part by the name of its folder, in the order in which they run. Everything that is
        not named here is as in `width`.
        """
        whole, target_part = load(WIDTH.name, scale), WIDTH.part(scale, WIDTH.widths(scale)[-1])
        base, *_, middle, target = whole.vary["width"]
        rules = {rule_name(rule): rule for rule in whole.rules}
        all_seeds = tuple(whole.seeds[0] + k for k in range(_SEEDS_AT_TARGET))
        pair = target_part.seeds
        further = tuple(seed for seed in all_seeds if seed not in pair)
        side, rate = _SIDE_OCTAVES, point.rate
        sides = (rate - side, rate + side)
        # A grid needs a range: a quarter of an octave holds one of its rates.
        alone = whole.search.step / 2

        def grid(
            name: str, rule: str, seeds: tuple[int, ...], ends: tuple[float, float]
        ) -> StudyConfig:
            return dataclasses.replace(
                whole,
                name=f"{self.name}-{name}",
                rules=(rules[rule],),
                seeds=seeds,
                vary={"width": (int(name.partition("-")[0]),)},
                space={"lr": (2.0 ** ends[0], 2.0 ** ends[1])},
                rule_space={},
            )

        search = dataclasses.replace(
            grid(f"{base}", REFERENCE, pair, sides),
            vary={},
            space={"lr": whole.space["lr"], **dict.fromkeys(FACTORS, _FACTOR_ENDS)},
            search=_SEARCH,
        )
        beside = grid(f"{target}-sides", REFERENCE, pair, sides)
        beside = dataclasses.replace(
            beside, search=dataclasses.replace(whole.search, step=2 * side)
        )
        carried = {
            f"{middle}": grid(f"{middle}", REFERENCE, whole.seeds, sides),
            f"{target}": grid(f"{target}", REFERENCE, all_seeds, (rate, rate + alone)),
            f"{target}-sides": beside,
        }
        plain, one_rate = f"{target}-plain", f"{target}-one-rate"
        return {
            f"{base}": search,
            **{name: _with_factors(part, point.factors) for name, part in carried.items()},
            plain: grid(plain, PLAIN, further, (point.plain_rate - side, point.plain_rate + side)),
            one_rate: grid(
                one_rate, REFERENCE, further, (point.base_rate, point.base_rate + alone)
            ),
        }

    def start(self, scale: Scale) -> CarriedPoint:
        """The middles of all ranges, in place of what the records will show."""
        spaces = load(WIDTH.name, scale).space, WIDTH.part(scale, WIDTH.widths(scale)[-1]).space
        middle, plain = (math.log2(low * high) / 2 for low, high in (one["lr"] for one in spaces))
        return CarriedPoint(middle, {}, plain, middle)

    def parts(self, scale: Scale) -> Parts:
        return self.parts_at(scale, self.start(scale))

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        parts, done = self.parts(scale), 0
        refuse_missing_text(parts)
        self.refuse_missing_rates(scale, folder)
        total = sum(one.runs for part in parts.values() for one in study_work(part))
        for name in parts:  # what the search finds decides the others
            part = self.parts_at(scale, self.runs(scale, folder).carried)[name]
            done += run_part(part, folder / name, how, done, total)

    def refuse_missing_rates(self, scale: Scale, folder: Path) -> None:
        if missing := self.runs(scale, folder).missing_rates:
            beside = self.width_folder(scale, folder)
            raise OptionError(
                f"{beside}: {missing}. The runs that {self.name} compares with, and two of its "
                f"rates, are those of {WIDTH.name}. Run this first: mupscale paper {WIDTH.name} "
                f"--scale {scale} --output {beside}"
            )

    def runs(self, scale: Scale, folder: Path) -> FactorsRuns:
        width = WIDTH.runs(scale, self.width_folder(scale, folder))
        plan = self.parts(scale)
        base = next(iter(plan))
        exists = (folder / base / CONFIG).exists()
        study = Study.open(folder / base) if exists else Study(folder / base, plan[base])
        search = study.snapshot()
        carried = self.carried(scale, search, width)
        parts = {name: one for name, one in self.parts_at(scale, carried).items() if name != base}
        tables = {
            name: rate_tables(config, folder / name, self.label)[0]
            for name, config in parts.items()
        }
        found = FactorsRuns(
            {}, tuple(tables.values()), search=search, width=width, carried=carried, parts=tables
        )
        if found.searched and not found.missing_rates:
            for name, config in parts.items():
                _refuse_another_point(config, folder / name)
        return found

    def carried(self, scale: Scale, search: Snapshot, width: WidthRuns) -> CarriedPoint:
        """From the records, as far as they are there."""
        start, plain = self.start(scale), width.at(PLAIN, width.target)
        found = {row.parameter: row.value for row in found_in(search)[0]}
        plain_rate = plain.best if plain.complete else None
        return CarriedPoint(
            found.pop("lr"),
            {name: 2.0**x for name, x in found.items() if x},
            start.plain_rate if plain_rate is None else plain_rate,
            start.base_rate if width.best_rate is None else width.best_rate,
        )

    def answers(self, scale: Scale, found: RateRuns, folder: Path) -> list[FitAnswer]:
        assert isinstance(found, FactorsRuns)
        middle, target = found.width.widths[-2:]
        return [
            *(one for width in (target, middle) for one in found.compared(width)),
            *(one for width in (middle, target) for one in found.sides(width)),
        ]

    def findings(self, scale: Scale, folder: Path) -> Findings:
        self.refuse_missing_rates(scale, folder)
        return super().findings(scale, folder)

    def figures(self, scale: Scale, folder: Path, found: RateRuns) -> list[Path]:
        assert isinstance(found, FactorsRuns)
        paths: list[Path] = []
        shown = panels(found)
        if any(row.by_seed for panel in shown for row in panel.rows):
            picture = draw_differences(
                shown,
                bound=NO_WORSE_NATS,
                x_label="difference of the loss, nats per byte (below 0: the carried point is lower)",
                title=f"Values found at width {found.width.widths[0]}, carried to larger widths",
            )
            paths += reports.save_figure(picture, folder / "figures" / "differences", FIGURES)
        rows, _ = found.sensitivity
        if any(row.points for row in rows):
            title = f"What matters at width {found.width.widths[0]}, with 95 % intervals"
            picture = draw_sensitivity(rows, title=title)
            paths += reports.save_figure(picture, folder / "figures" / "sensitivity", FIGURES)
        return paths

    def cost_words(self, scale: Scale) -> str:
        """The operations of the search, as shares of what it replaces."""
        target = WIDTH.widths(scale)[-1]
        (search,) = study_work(next(iter(self.parts(scale).values())))
        plain = next(
            work for work in study_work(WIDTH.part(scale, target)) if work.config.rule.name == PLAIN
        )
        whole, one = search.runs * search.run_operations, plain.run_operations
        return (
            f"{whole / (plain.runs * one):.1%} of the operations of the {plain.runs} runs that "
            f"tune plain AdamW at width {target}, {whole / one:.0%} of those of one run there, for "
            f"all {search.runs} runs"
        )

    def remarks(self, scale: Scale, found: RateRuns) -> Iterator[str]:
        assert isinstance(found, FactorsRuns)
        base, *_, middle, target = found.width.widths
        yield ""
        if found.searched:
            yield wrapped(f"Found at width {base}, and carried: {found.carried}.")
        yield from filter(None, (found.best_of_three(width) for width in (middle, target)))
        yield wrapped(f"The search costs {self.cost_words(scale)}.")
        yield ""
        yield sensitivity_text(*found.sensitivity)

    def claims(
        self, scale: Scale, found: RateRuns, answers: Sequence[FitAnswer]
    ) -> Iterator[Claim]:
        assert isinstance(found, FactorsRuns)
        count, base = len(found.search.trials), found.width.widths[0]
        for claim in super().claims(scale, found, answers):
            # The carried point rests on the search, too.
            yield dataclasses.replace(claim, runs=claim.runs + count)
        cells = [sensitivity_cells(row)[1:] for row in found.sensitivity[0]]
        seen = [f"{name} {best} {verdict} ({beside})" for name, best, verdict, beside in cells]
        says = f"Which values matter at width {base}? Nats above the best point, next to it"
        yield Claim(self.name, "best rates", says, "; ".join(seen), count, "ours")
        says = f"What does the search at width {base} cost?"
        yield Claim(self.name, "arithmetic", says, self.cost_words(scale), count, "ours")


def no_worse(one: Estimate) -> str:
    if one.high < NO_WORSE_NATS:
        return "no worse"
    return "worse" if one.low >= NO_WORSE_NATS else "undecided"


def measured_mean(answer: FitAnswer) -> Estimate | None:
    return answer.estimate(MEASURED)


def panels(found: FactorsRuns) -> list[DifferencePanel]:
    """The comparisons at each width, for the figure."""
    return [
        DifferencePanel(
            f"width {width}",
            tuple(
                DifferenceRow(
                    f"minus {one.rule}",
                    one.by_fit.get(MEASURED) or (),
                    measured_mean(one),
                    one.missing,
                )
                for one in found.compared(width)
            ),
        )
        for width in found.width.widths[-2:]
    ]


def _with_factors(config: StudyConfig, factors: Mapping[str, float]) -> StudyConfig:
    if not factors:
        return config
    optimizer = {**config.tables["optimizer"], "factors": dict(factors)}
    return dataclasses.replace(config, tables={**config.tables, "optimizer": optimizer})


def _refuse_another_point(config: StudyConfig, folder: Path) -> None:
    if not (folder / CONFIG).exists():
        return
    changed = list(differences(StudyConfig.load(folder / CONFIG).identity(), config.identity()))
    if changed:
        raise OptionError(
            f"{folder} trains other values than the records give ({'; '.join(changed)}). Move it "
            "away, and run the experiment again."
        )


EXPERIMENT = Factors()
