"""Does the paper's key/value factor lower the loss, or keep the best rate? At equal steps. Ours.

results/sharing/README.md has the design, which was fixed before the runs.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from mupscale.paper.catalogue import load, middle_run
from mupscale.paper.experiment import Scale
from mupscale.paper.rate_study import Parts, RateRuns, RateStudy
from mupscale.paper.rate_tables import (
    FitAnswer,
    Question,
    RateTable,
    above_at_rate,
    drift,
    lower_or_higher,
    lowest_above,
    still_within,
)
from mupscale.studies import StudyConfig
from mupscale.studies.config import Cell, rule_name

WITHOUT, WITH = "complete-p", "gqa-mup"
"""Vanilla μP for keys and values, f = 1, and the paper's factor; nothing else differs."""

Split = Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]]
"""The rules and the numbers of key/value heads of each part. At r = 1 all rules are the same."""

STILL_OCTAVES = 0.5
"""The best rate is still if the whole interval of its move lies within this."""


class SharedHeads(RateStudy):
    """The factor at r = 4 and 12, and at r = 12 on keys alone and on values alone."""

    name = "sharing"
    split: ClassVar[Split] = {
        "1": ((WITHOUT,), (12,)),
        "4-12": ((WITHOUT, WITH), (3, 1)),
        "12-parts": (("keys", "values"), (1,)),
    }

    def parts(self, scale: Scale) -> Parts:
        whole = load(self.name, scale)
        rules = {rule_name(rule): rule for rule in whole.rules}
        return {
            part: dataclasses.replace(
                whole,
                name=f"{self.name}-{part}",
                rules=tuple(rules[name] for name in names),
                vary={"n_kv_heads": heads},
            )
            for part, (names, heads) in self.split.items()
        }

    def label(self, config: StudyConfig, cell: Cell) -> str:
        return f"r = {middle_run(config, cell).model.repetitions}"

    def answers(self, scale: Scale, found: RateRuns, folder: Path) -> list[FitAnswer]:
        return [
            *(difference(found, rule, r) for rule, r in _compared(found)),
            *(lowest(found, rule, r) for rule, r in _compared(found)),
            *(move(found, rule) for rule in (WITHOUT, WITH)),
        ]


def _compared(found: RateRuns) -> list[tuple[str, int]]:
    """Cells with the factor: the primary question first."""
    cells = [(WITH, 12), (WITH, 4), ("keys", 12), ("values", 12)]
    return [(rule, r) for rule, r in cells if (rule, f"r = {r}") in found.tables]


def at(found: RateRuns, rule: str, r: int) -> RateTable:
    return found.tables[rule, f"r = {r}"]


def difference(found: RateRuns, rule: str, r: int) -> FitAnswer:
    """The measured loss with the factor minus that without, at r = 1's best rate."""
    question = Question(
        f"loss at r = {r}",
        f"with the factor minus without, at r = {r} and the best rate of r = 1",
        f"Is the loss at r = {r} and the best rate of r = 1 lower under {{rule}} than under "
        f"{WITHOUT}?",
        "nats",
        lower_or_higher,
    )
    pair = at(found, rule, r), at(found, WITHOUT, r)
    return above_at_rate(question, [(at(found, WITHOUT, 1), pair)])


def lowest(found: RateRuns, rule: str, r: int) -> FitAnswer:
    question = Question(
        f"lowest loss at r = {r}",
        f"with the factor minus without, each at its own best rate, at r = {r}",
        f"Is the lowest loss at r = {r} lower under {{rule}} than under {WITHOUT}?",
        "nats",
        lower_or_higher,
    )
    return lowest_above(question, at(found, rule, r), at(found, WITHOUT, r))


def move(found: RateRuns, rule: str) -> FitAnswer:
    question = Question(
        "move",
        f"of the best rate from r = 1 to r = 12; still means less than {STILL_OCTAVES}",
        "Is the best learning rate the same at r = 1 and r = 12 under {rule}?",
        "octaves",
        still_within(STILL_OCTAVES),
    )
    # Two sizes one doubling apart: the slope is the move itself.
    return drift(question, rule, {1.0: at(found, WITHOUT, 1), 2.0: at(found, rule, 12)})


EXPERIMENT = SharedHeads()
