"""What a caller may set for a recipe, and what the study itself says about its training."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from mupscale.errors import OptionError, UnknownNameError, check_arguments
from mupscale.planning.base import Base
from mupscale.training.schedule import SCHEDULES, Schedule, checked_share, decay_steps

Betas = tuple[float, float]
TargetBatchRule = Literal["table", "printed", "power-lines"]
"""The paper's two rules for the batch, and a law fitted by others."""


@dataclass(frozen=True, kw_only=True)
class TargetRun:
    """The target's training run. What is None follows the study, or the paper's rules."""

    tokens: float | None = None
    "Tokens in the whole run."
    tokens_per_parameter: float | None = None
    "Instead of `tokens`: per parameter without embeddings (default: the study's)."
    sequence: int | None = None
    "Tokens per sequence (default: the target's positions, at most 8192)."
    floor: float | None = None
    "Fraction of the peak rate at which the schedule ends (default: the study's)."
    schedule: str | None = None
    "cosine, linear or wsd (default: the study's)."
    decay_share: float | None = None
    "Share of the steps in which wsd decays (default: the study's, or 0.2)."
    batch_rule: TargetBatchRule | None = None
    "How the batch follows from the tokens (default: the study's rule)."
    batch: float | None = None
    "Tokens per batch, instead of a rule."
    run: str | None = None
    """How the values change from the study's batch and length to the target's: none, sde,
    completed-p, a published rule, formulas in B and D, or the rule.json of a calibration over
    batch and tokens (default: what the study's rule says).
    """


@dataclass(frozen=True, kw_only=True)
class TunedBase:
    """What you know about the base (the model you tuned), in place of what the study says.

    A value that the study searched cannot be set: the recipe takes its optimum.
    """

    model: Base | None = None
    """The base as a model or config of the target's kind, where the study's sizes are not enough:
    `mupscale.proxy(config, width=…, depth=…)`."""
    weight_decay: float | None = None
    eps: float | None = None
    std: float | None = None
    "Standard deviation of the initial weights."
    betas: Betas | None = None
    clip: float | None = None
    "Norm to which gradients are clipped; 0 for no clipping."
    noise_scale: float | None = None
    "Gradient noise scale of the study's runs, in tokens (default: what its trials recorded)."


_LABELS = {
    "weight_decay": "weight decay",
    "std": "init std",
    "tokens": "tokens per run",
    "clip": "clipping",
    "floor": "floor of the schedule",
    "decay_share": "decay share of the schedule",
}
_OF_RUN = {field.name for field in fields(TargetRun)}
_OF_BASE = {field.name for field in fields(TunedBase)}
_VALID = {
    "betas": "two numbers from 0 to below 1, as (0.9, 0.95)",
    "clip": "a finite number above 0, or 0 for no clipping",
    "floor": "a fraction of the peak rate, from 0 to 1",
    "decay_share": "a share of the steps, above 0 and at most 1",
}

ASSUMED_SCHEDULE = "cosine"
"""Of a study of your own trainer that does not name its schedule. Recipes say that they assume it.
"""


@dataclass(frozen=True)
class TrainingSettings:
    """Betas, clipping and schedule of the study's training, or the caller's; None if unknown."""

    betas: Betas | None
    clip: float | None
    "Norm of the gradients in the base's units; 0 where they are not clipped."
    floor: float | None
    "Fraction of the peak rate at which the schedule ends."
    schedule: str
    decay_share: float | None
    "Share of the steps in which wsd decays; None for other schedules."
    origin: Mapping[str, str]
    'Where each known value comes from: "the study", "given" or, for the schedule, "assumed".'

    @staticmethod
    def of(study: Mapping[str, Any], base: TunedBase, run: TargetRun) -> "TrainingSettings":
        """The study's settings, overridden by the caller's."""
        given = {"betas": base.betas, "clip": base.clip}
        given |= {name: getattr(run, name) for name in ("floor", "schedule", "decay_share")}
        values = {name: study.get(name) if own is None else own for name, own in given.items()}
        if run.schedule not in (None, study.get("schedule")):  # the study's share is another's
            values["decay_share"] = run.decay_share
        known = {name: _checked(name, v) for name, v in values.items() if v is not None}
        origin = {name: "the study" if given[name] is None else "given" for name in known}
        schedule = known.get("schedule", ASSUMED_SCHEDULE)
        return TrainingSettings(
            betas=known.get("betas"),
            clip=known.get("clip"),
            floor=known.get("floor"),
            schedule=schedule,
            decay_share=checked_share(schedule, known.get("decay_share")),
            origin={"schedule": "assumed"} | origin,
        )

    def decay_steps(self, steps: int) -> int | None:
        """Steps of a decay at the end of the run; None if the decay follows the warmup."""
        return decay_steps(self.schedule, self.decay_share, steps)

    def check_fit(self, steps: int, warmup: int) -> None:
        """Raise if warmup and decay are longer than the run."""
        Schedule(self.schedule, steps, warmup, decay_share=self.decay_share)


def _checked(name: str, value: Any) -> Any:
    if name == "betas":
        betas: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) else ()
        if len(betas) == 2 and all(_is_number(beta) and 0 <= beta < 1 for beta in betas):
            return float(betas[0]), float(betas[1])
    elif name == "schedule":
        if value not in [*SCHEDULES]:
            raise UnknownNameError("schedule", value, SCHEDULES)
        return value
    elif name == "decay_share":
        if _is_number(value) and 0 < value <= 1:
            return float(value)
    elif _is_number(value) and 0 <= value <= (1 if name == "floor" else math.inf):
        return float(value)
    raise OptionError(f"{name}={value!r} must be {_VALID[name]}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def in_words(names: Iterable[str]) -> str:
    """Options as a reader knows them.

    >>> in_words(["betas", "clip"])
    'betas, clipping'
    """
    return ", ".join(_LABELS.get(name, name) for name in names)


def refuse_ungrouped(options: Mapping[str, Any]) -> None:
    """Arguments of `transfer` that are fields of its groups raise an error that shows the call."""
    check_arguments("transfer", options, _OF_RUN | _OF_BASE)
    if options:
        raise OptionError(
            f"transfer takes {', '.join(options)} as fields of a group. {how_to_set(options)}"
        )


def how_to_set(names: Iterable[str]) -> str:
    """How to set these options, in Python and on the command line.

    >>> how_to_set(["std", "floor"])
    'Pass base=TunedBase(std=…), run=TargetRun(floor=…), or --std … --floor … on the command line.'
    """
    names = list(names)
    groups = {
        "base=TunedBase": [name for name in names if name not in _OF_RUN],
        "run=TargetRun": [name for name in names if name in _OF_RUN],
    }
    calls = [
        f"{head}({', '.join(f'{name}=…' for name in own)})" for head, own in groups.items() if own
    ]
    flags = " ".join(f"--{name.replace('_', '-')} …" for name in names)
    return f"Pass {', '.join(calls)}, or {flags} on the command line."
