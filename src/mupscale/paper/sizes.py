"""Does the best rate move over three sizes if batch, steps and warmup do not? Ours.

results/sizes/README.md has the design, which was fixed before the runs.
"""

import dataclasses
import math
from pathlib import Path

from mupscale.models import parameter_counts
from mupscale.paper.catalogue import load, middle_run
from mupscale.paper.experiment import Scale
from mupscale.paper.rate_study import Parts, RateRuns, RateStudy
from mupscale.paper.rate_tables import (
    FitAnswer,
    Question,
    RateTable,
    above_zero,
    drift,
    regret,
    still_within,
)
from mupscale.paper.sharing import STILL_OCTAVES
from mupscale.studies.config import rule_name

SIZES = ("small", "medium", "large")
DECAYS = ("weak", "middle", "strong")
AT_BASE = "complete-p"
"""The rule that trains the small size, which is the base: there all rules are one training."""


class Sizes(RateStudy):
    """Drift and regret of three rules at three decays."""

    name = "sizes"

    def parts(self, scale: Scale) -> Parts:
        whole = load(self.name, scale)
        small = tuple(one for one in whole.variants if one["name"].startswith(SIZES[0]))
        larger = tuple(one for one in whole.variants if one not in small)
        rules = tuple(rule for rule in whole.rules if rule_name(rule) == AT_BASE)
        once = dataclasses.replace(whole, rules=rules, rule_space={})
        return {
            "small": dataclasses.replace(once, name="sizes-small", variants=small),
            "larger": dataclasses.replace(whole, name="sizes-larger", variants=larger),
        }

    def answers(self, scale: Scale, found: RateRuns, folder: Path) -> list[FitAnswer]:
        parameters = self.parameters(scale)
        doublings = math.log2(parameters["large"] / parameters["small"])
        rules = [rule_name(rule) for rule in load(self.name, scale).rules]

        def at(rule: str, size: str, decay: str) -> RateTable:
            return found.tables[AT_BASE if size == "small" else rule, f"{size}-{decay}"]

        drifts, regrets = list[FitAnswer](), list[FitAnswer]()
        for decay in DECAYS:
            moved = Question(
                f"drift, {decay} decay",
                "of the best rate over the number of parameters; still means less than "
                f"{STILL_OCTAVES} octaves from the small to the large size",
                "Does the best learning rate stay still over three sizes at fixed batch and steps "
                f"under {{rule}}, with {decay} decay?",
                "octaves per doubling",
                still_within(STILL_OCTAVES, doublings),
            )
            lost = Question(
                f"regret, {decay} decay",
                "the loss of the large size with the small size's best rate, minus the lowest",
                "What does the small size's best rate give up at the large size under {rule}, with "
                f"{decay} decay?",
                "nats",
                above_zero,
            )
            for rule in rules:
                sizes = {float(parameters[size]): at(rule, size, decay) for size in SIZES}
                drifts.append(drift(moved, rule, sizes))
                regrets.append(regret(lost, at(rule, "small", decay), at(rule, "large", decay)))
        return drifts + regrets

    def parameters(self, scale: Scale) -> dict[str, int]:
        """Of each size, without embeddings."""
        config = load(self.name, scale)
        return {
            str(cell.label).partition("-")[0]: parameter_counts(
                middle_run(config, cell).model
            ).non_embedding
            for cell in config.cells()
        }


EXPERIMENT = Sizes()
