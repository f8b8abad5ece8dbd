"""Do values for each kind of weight, found at width 64, reach tuned AdamW at width 512? Ours.

The search runs at the base. The point that it finds is read from its records and carried to the
two largest widths. The runs to compare with are those of `width`, whose folder lies beside this
one, and more seeds of them.

results/factors/README.md has the design, which was fixed before the runs.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mupscale import reports
from mupscale.errors import OptionError
from mupscale.paper.carried import (
    NO_WORSE_NATS,
    PLAIN,
    SIDE_OCTAVES,
    CarriedPoint,
    FactorsRuns,
    panels,
)
from mupscale.paper.catalogue import load
from mupscale.paper.claims import Claim
from mupscale.paper.costs import study_work
from mupscale.paper.experiment import QUIETLY, Execution, Findings, Scale
from mupscale.paper.rate_study import Parts, RateRuns, RateStudy, run_part
from mupscale.paper.rate_tables import FitAnswer, rate_tables
from mupscale.paper.sweeps import FIGURES
from mupscale.paper.width import EXPERIMENT as WIDTH
from mupscale.paper.width import REFERENCE, WidthRuns
from mupscale.records import differences
from mupscale.reports.differences import draw_differences
from mupscale.reports.sensitivity import draw_sensitivity
from mupscale.studies import Snapshot, Study, StudyConfig
from mupscale.studies.config import Search, rule_name
from mupscale.studies.sensitivity import (
    found_in,
    sensitivity_cells,
    sensitivity_text,
)
from mupscale.studies.study import CONFIG
from mupscale.text import wrapped

FACTORS = ("lr.embedding", "lr.readout", "lr.gains", "std.embedding", "std.readout")
_FACTOR_ENDS = (2.0**-4, 2.0**4)
_SEARCH = Search(method="paired", step=1.0, trials=66)
_SEEDS_AT_TARGET = 4


class CarriedFactors(RateStudy):
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
        whole = dataclasses.replace(load(WIDTH.name, scale), rule_space={})
        base, *_, middle, target = whole.vary["width"]
        pair = WIDTH.part(scale, target).seeds
        every = tuple(whole.seeds[0] + k for k in range(_SEEDS_AT_TARGET))
        further = tuple(seed for seed in every if seed not in pair)
        side, step = SIDE_OCTAVES, whole.search.step
        # A grid needs a range: half a step holds one of its rates.
        sides, alone = (-side, side), (0.0, step / 2)
        search = dataclasses.replace(
            whole,
            name=f"{self.name}-{base}",
            rules=(REFERENCE,),
            seeds=pair,
            vary={},
            space={"lr": whole.space["lr"], **dict.fromkeys(FACTORS, _FACTOR_ENDS)},
            search=_SEARCH,
        )
        carried = _with_factors(whole, point.factors)
        parts = {
            f"{middle}": _grid(carried, REFERENCE, whole.seeds, point.rate, sides),
            f"{target}": _grid(carried, REFERENCE, every, point.rate, alone),
            f"{target}-sides": _grid(
                _with_step(carried, 2 * side), REFERENCE, pair, point.rate, sides
            ),
            f"{target}-plain": _grid(whole, PLAIN, further, point.plain_rate, sides),
            f"{target}-one-rate": _grid(whole, REFERENCE, further, point.base_rate, alone),
        }
        return {f"{base}": search} | {
            name: dataclasses.replace(
                part,
                name=f"{self.name}-{name}",
                vary={"width": (int(name.partition("-")[0]),)},
            )
            for name, part in parts.items()
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
        self.check_text(scale, folder)
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
                x_label=f"difference of the loss, nats per byte (dashed: {NO_WORSE_NATS})",
                title=f"Loss with values found at width {found.width.widths[0]}, by seed",
            )
            paths += reports.save_figure(picture, folder / "figures" / "differences", FIGURES)
        rows, _ = found.sensitivity
        if any(row.points for row in rows):
            title = f"What matters at width {found.width.widths[0]}, with 95 % intervals"
            picture = draw_sensitivity(rows, title=title)
            paths += reports.save_figure(picture, folder / "figures" / "sensitivity", FIGURES)
        return paths

    def cost_words(self, scale: Scale, found: FactorsRuns) -> str:
        """The operations of the search, as shares of what it replaces."""
        target = WIDTH.widths(scale)[-1]
        (search,) = study_work(next(iter(self.parts(scale).values())))
        plain = next(
            work for work in study_work(WIDTH.part(scale, target)) if work.config.rule.name == PLAIN
        )
        whole, one = found.search_runs * search.run_operations, plain.run_operations
        return (
            f"{whole / (plain.runs * one):.1%} of the operations of the {plain.runs} runs that "
            f"tune plain AdamW at width {target}, {whole / one:.0%} of those of one run there, for "
            f"all {found.search_runs} runs"
        )

    def remarks(self, scale: Scale, found: RateRuns) -> Iterator[str]:
        assert isinstance(found, FactorsRuns)
        base, *_, middle, target = found.width.widths
        yield ""
        if found.searched:
            yield wrapped(f"Found at width {base}, and carried: {found.carried}.")
        yield from filter(None, (found.best_of_three(width) for width in (middle, target)))
        yield wrapped(f"The search costs {self.cost_words(scale, found)}.")
        yield ""
        yield sensitivity_text(*found.sensitivity)

    def claims(
        self, scale: Scale, found: RateRuns, answers: Sequence[FitAnswer]
    ) -> Iterator[Claim]:
        assert isinstance(found, FactorsRuns)
        count, base = len(found.search.trials), found.width.widths[0]
        for claim, answer in zip(super().claims(scale, found, answers), answers, strict=True):
            # The carried point rests on the search, too.
            yield dataclasses.replace(claim, runs=0 if answer.missing else claim.runs + count)
        cells = [sensitivity_cells(row)[1:] for row in found.sensitivity[0]]
        seen = [f"{name} {best} {verdict} ({beside})" for name, best, verdict, beside in cells]
        says = f"Which values matter at width {base}? Nats above the best point, next to it"
        yield Claim(self.name, "best rates", says, "; ".join(seen), count, "ours")
        says = f"What does the search at width {base} cost?"
        yield Claim(self.name, "arithmetic", says, self.cost_words(scale, found), count, "ours")


def _grid(
    whole: StudyConfig,
    rule: str,
    seeds: tuple[int, ...],
    log2_rate: float,
    ends: tuple[float, float],
) -> StudyConfig:
    """One rule at the rates between `ends`, in octaves from a rate."""
    rules = tuple(one for one in whole.rules if rule_name(one) == rule)
    low, high = (2.0 ** (log2_rate + octaves) for octaves in ends)
    return dataclasses.replace(whole, rules=rules, seeds=seeds, space={"lr": (low, high)})


def _with_step(config: StudyConfig, step: float) -> StudyConfig:
    return dataclasses.replace(config, search=dataclasses.replace(config.search, step=step))


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


EXPERIMENT = CarriedFactors()
