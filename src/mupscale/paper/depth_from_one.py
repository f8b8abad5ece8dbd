"""Does the best rate stay the same from 4 to 32 blocks, with a base of one block? Ours.

results/depth-from-one/README.md has the design, which was fixed before the runs.
"""

import math
from pathlib import Path

from mupscale.paper.catalogue import load
from mupscale.paper.experiment import Scale
from mupscale.paper.rate_study import Parts, RateRuns, RateStudy
from mupscale.paper.rate_tables import (
    FitAnswer,
    Question,
    RateTable,
    above_zero,
    drift,
    lower_or_higher,
    lowest_above,
    regret,
    still_within,
)
from mupscale.paper.width import STILL_PER_DOUBLING
from mupscale.studies.config import rule_name

REFERENCE = "complete-p"


class DepthFromOne(RateStudy):
    """Regret, drift and lowest loss with residual branches times 1, 1/√L and 1/L."""

    name = "depth-from-one"

    def parts(self, scale: Scale) -> Parts:
        return {"": load(self.name, scale)}

    def answers(self, scale: Scale, found: RateRuns, folder: Path) -> list[FitAnswer]:
        config = load(self.name, scale)
        rules, depths = [rule_name(rule) for rule in config.rules], config.vary["depth"]

        def at(rule: str, depth: int) -> RateTable:
            return found.tables[rule, f"depth {depth}"]

        first, last = depths[0], depths[-1]
        lost = Question(
            "regret",
            f"the loss at depth {last} with depth {first}'s best rate, minus the lowest",
            f"What does depth {first}'s best rate give up at depth {last} under {{rule}}?",
            "nats",
            above_zero,
        )
        doublings = math.log2(last / first)
        moved = Question(
            "drift",
            f"of the best rate over depths {first} to {last}; still means less than "
            f"{STILL_PER_DOUBLING}",
            f"Does the best learning rate stay still over depths {first} to {last} under {{rule}}?",
            "octaves per doubling",
            still_within(STILL_PER_DOUBLING * doublings, doublings),
        )
        answers = [
            *(regret(lost, at(rule, first), at(rule, last)) for rule in rules),
            *(drift(moved, rule, {float(one): at(rule, one) for one in depths}) for rule in rules),
        ]
        for depth in depths:
            question = Question(
                f"lowest loss at depth {depth}",
                f"minus that of {REFERENCE}",
                f"Is the lowest loss at depth {depth} under {{rule}} that under {REFERENCE}?",
                "nats",
                lower_or_higher,
            )
            answers += [
                lowest_above(question, at(rule, depth), at(REFERENCE, depth))
                for rule in rules
                if rule != REFERENCE
            ]
        return answers


EXPERIMENT = DepthFromOne()
