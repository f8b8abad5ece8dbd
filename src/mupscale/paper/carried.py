"""A point that was carried from the base to larger widths, compared with what runs there. It needs
no fit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mupscale.analysis.estimates import Estimate
from mupscale.paper.rate_study import RateRuns
from mupscale.paper.rate_tables import (
    MEASURED,
    FitAnswer,
    Question,
    RateTable,
    lower_or_higher,
    measured_difference,
    missing_in,
    with_more_seeds,
)
from mupscale.paper.width import REFERENCE, WidthRuns
from mupscale.reports.differences import DifferencePanel, DifferenceRow
from mupscale.studies import Snapshot
from mupscale.studies.sensitivity import FactorGain, Sensitivity, found_in

PLAIN = "sp-fan-in"
"""Plain AdamW: one rate for all weights, initial std ∝ 1/√n."""

NO_WORSE_NATS = 0.01
"""A loss is no worse if the whole interval of its difference lies below this."""

SIDE_OCTAVES = 0.5
"""How far the other two rates lie from the carried one."""


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
        return self.search.done.issuperset(self.search.cells)

    @property
    def search_runs(self) -> int:
        """Of the search; its budget while it goes on."""
        budget = self.search.config.search.trials
        return len(self.search.trials) if self.searched or budget is None else budget

    @property
    def ended(self) -> int:
        return super().ended + len(self.search.trials)

    @property
    def expected(self) -> int:
        return super().expected + self.search_runs

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
        """The carried point minus each of the three others. Tuned AdamW, which is primary, comes
        first.
        """
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
        plain, one_rate = ([self.width.at(rule, width)] for rule in (PLAIN, REFERENCE))
        given, base_rate = plain, self.carried.base_rate
        if width == self.width.target:
            plain.append(self.parts[f"{width}-plain"])
            one_rate.append(self.parts[f"{width}-one-rate"])
            given = [self.width.given[PLAIN]]
        tuned_rate = with_more_seeds(*plain).best

        def against(
            name: str, tables: list[RateTable], rate: float | None, base: RateTable
        ) -> FitAnswer:
            terms = [(own, self.carried.rate), (with_more_seeds(*tables), rate)]
            return measured_difference(question, name, terms, [base], [own, *tables])

        return [
            against("plain AdamW tuned there", plain, tuned_rate, plain[0]),
            against("one rate for all weights", one_rate, base_rate, self.width.base),
            against(f"plain AdamW at width {base}'s rate", given, base_rate, self.width.base),
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
        places = {"half an octave below": -SIDE_OCTAVES, "half an octave above": SIDE_OCTAVES}
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


def no_worse(one: Estimate) -> str:
    if one.high < NO_WORSE_NATS:
        return "no worse"
    return "worse" if one.low >= NO_WORSE_NATS else "undecided"


def measured_mean(answer: FitAnswer) -> Estimate | None:
    return answer.estimate(MEASURED)


def panels(found: FactorsRuns) -> list[DifferencePanel]:
    """One panel per comparison, for the figure: the differences lie far apart."""
    widths = found.width.widths[-2:]
    return [
        DifferencePanel(
            f"minus {same[0].rule}",
            tuple(
                DifferenceRow(
                    f"width {width}",
                    one.by_fit.get(MEASURED) or (),
                    measured_mean(one),
                    one.missing,
                )
                for width, one in zip(widths, same, strict=True)
            ),
        )
        for same in zip(*(found.compared(width) for width in widths), strict=True)
    ]
