"""From the study's run to the target's: what each rule for batch and length says about the jump."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mupscale.errors import MupscaleError, OptionError
from mupscale.planning import Plan
from mupscale.recipes.options import Betas
from mupscale.theory import RUN_CHOICES, RunFactors, RunSize, derive_run, scaled_beta

SAME = 0.01
"""A batch or a run is rounded to whole sequences: 1 % is no difference."""


@dataclass(frozen=True)
class Averages:
    """What the optimizer averages gradients with; None if unknown, or if it has none."""

    betas: Betas | None
    momentum: float | None

    def problem(self, factors: RunFactors) -> str | None:
        """Why these factors cannot be applied: 1 - β would leave the range from 0 to 1."""
        named = [
            *zip(("β1", "β2"), self.betas or (), (factors.beta1, factors.beta2), strict=False),
            *([] if self.momentum is None else [("momentum", self.momentum, factors.beta1)]),
        ]
        for name, value, factor in named:
            try:
                scaled_beta(name, value, factor)
            except OptionError:
                new = 1 - (1 - value) * factor
                return f"cannot be applied: {name} = {value:g} becomes {new:.4g}, no moving average"
        return None


@dataclass(frozen=True)
class RunEffect:
    """What one rule multiplies the base values by."""

    choice: str
    source: str
    factors: RunFactors | None = None
    "None if the rule cannot be evaluated."
    problem: str | None = None
    "Why the rule cannot be evaluated, or cannot be applied."

    @property
    def octaves(self) -> float | None:
        """log2 of the factor on the learning rate."""
        return None if self.factors is None else math.log2(self.factors.lr)


@dataclass(frozen=True)
class RunCrossing:
    """From the run in which the base values were tuned to the target's."""

    base: RunSize | None
    "None if the study does not report its tokens and steps."
    base_source: str
    target: RunSize
    used: str
    "The rule that the recipe follows, or none: the values are carried unchanged."
    used_source: str
    effects: tuple[RunEffect, ...]
    "One per rule, the used one included; empty if `base` is unknown."
    betas: Betas | None
    "Of the target's run; None if unknown, or if the optimizer has none."

    @property
    def changes_betas(self) -> bool:
        """Whether the rule that is used says something about them."""
        used = next((e.factors for e in self.effects if e.choice == self.used), None)
        return self.betas is not None and used is not None and (used.beta1, used.beta2) != (1, 1)

    @property
    def batch_growth(self) -> float:
        return 1.0 if self.base is None else self.target.batch / self.base.batch

    @property
    def token_growth(self) -> float:
        return 1.0 if self.base is None else self.target.tokens / self.base.tokens

    @property
    def is_jump(self) -> bool:
        """Whether batch or length differ from those of the study."""
        return any(abs(growth - 1) > SAME for growth in (self.batch_growth, self.token_growth))

    @property
    def published(self) -> list[RunEffect]:
        """The rules that say something about the rate, from the lowest rate to the highest."""
        known = [e for e in self.effects if e.factors is not None and e.choice in RUN_CHOICES[1:]]
        return sorted(known, key=lambda effect: effect.octaves or 0.0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "base": self.base and asdict(self.base),
            "base_source": self.base_source,
            "target": asdict(self.target),
            "used": self.used,
            "used_source": self.used_source,
            "betas": self.betas and list(self.betas),
            "rules": [
                {
                    "run": effect.choice,
                    "factors": effect.factors and asdict(effect.factors),
                    "octaves": effect.octaves,
                    "problem": effect.problem,
                    "source": effect.source,
                }
                for effect in self.effects
            ],
        }


def crossed(
    planned: Plan,
    sizes: Sequence[RunSize],
    target: RunSize,
    *,
    used_source: str,
    averages: Averages,
) -> tuple[Plan, RunCrossing]:
    """The plan for the target's run, by its rule, and what other rules say.

    `sizes` are the runs of the study's models, as far as they are known. Their geometric mean is
    the base, because optima are averaged in log2.
    """
    used = planned.rule.run
    base = _mean(sizes)
    source = f"the geometric mean over the runs of {len(sizes)} models"
    if _alike(sizes):
        source = "every run of the study"
    if base is None:
        if used != "none":
            raise OptionError(
                f"run={used!r} needs the batch and tokens of the study's runs, which its trials do "
                "not report. Have the trainer report tokens and steps, or use run='none'."
            )
        unknown = "the study's trials do not report their tokens and steps"
        return planned, RunCrossing(None, unknown, target, used, used_source, (), averages.betas)
    choices = [*RUN_CHOICES, *([used] if used not in RUN_CHOICES else [])]
    effects = tuple(_effect(choice, planned, base, target, averages) for choice in choices)
    betas = averages.betas
    if used != "none":
        planned = planned.with_run(base=base, target=target)
        assert planned.run is not None
        if betas is not None:  # raises if they are no moving averages any more
            betas = planned.run.betas(planned.rule, planned.optimizer, planned.decay, betas)
    return planned, RunCrossing(base, source, target, used, used_source, effects, betas)


def _mean(sizes: Sequence[RunSize]) -> RunSize | None:
    if not sizes:
        return None
    if _alike(sizes):
        return sizes[0]
    batch, tokens = (
        math.exp(math.fsum(math.log(getattr(size, name)) for size in sizes) / len(sizes))
        for name in ("batch", "tokens")
    )
    return RunSize(batch, tokens)


def _alike(sizes: Sequence[RunSize]) -> bool:
    return all(size == sizes[0] for size in sizes)


def _effect(
    choice: str,
    planned: Plan,
    base: RunSize,
    target: RunSize,
    averages: Averages,
) -> RunEffect:
    if choice == "none":
        return RunEffect(choice, "values carried unchanged", RunFactors())
    # The optimizer of the matrices: Muon's plan also has parameters that AdamW trains.
    try:
        scaling = derive_run(choice, planned.optimizer, decay=planned.decay)
    except MupscaleError as error:
        return RunEffect(choice, "", problem=str(error))
    factors = scaling.evaluate(base=base, target=target)
    return RunEffect(choice, scaling.steps[-1].source, factors, averages.problem(factors))
