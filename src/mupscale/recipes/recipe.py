"""`Recipe`: what to train a target with, how sure that is, and where it comes from."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mupscale.analysis.estimates import Estimate
from mupscale.planning import Plan
from mupscale.recipes import exports, showing
from mupscale.recipes.lengths import RunLength
from mupscale.recipes.predicting import Extrapolated
from mupscale.recipes.rows import RecipeRow
from mupscale.recipes.shapes import ModelShape
from mupscale.recipes.told import Betas, Told, in_words, request
from mupscale.recipes.values import BaseValue, CarriedDecay

FORMAT = "mupscale recipe"


@dataclass(frozen=True)
class StudyEvidence:
    """What stands behind the numbers of a recipe."""

    study: str
    runs: int
    seeds: tuple[int, ...]
    members: tuple[str, ...]
    "Models with an optimum under the rule."
    axis: str
    "In what they differ."
    drift: Estimate | None
    "Octaves of the optimum for each doubling along the axis."
    regret: Estimate | None
    "The most that a model gives up, in nats, if it is trained at the optimum of the least of them."
    confidence: float
    study_flops: float | None
    target_flops: float

    @property
    def share(self) -> float | None:
        """What the study cost, over what the target's run costs."""
        return None if self.study_flops is None else self.study_flops / self.target_flops


@dataclass(frozen=True)
class Recipe:
    """Base values for a target, the plan that makes them each parameter's own, and what is not
    known.

    A value: nothing is changed by it. `plan` applies it to a model: `plan.initialize_(model,
    std=recipe.std.value, seed=0)` and `plan.param_groups(model, **recipe.base_values)`.
    """

    target: str
    shape: ModelShape
    rule: str
    why: str
    log2_lr: Estimate
    lr: BaseValue
    decay: CarriedDecay
    eps: BaseValue | None
    "None where it is not known, or the optimizer has none."
    std: BaseValue
    told: Told
    unknown: tuple[str, ...]
    """Arguments of `transfer` for what neither the study nor the caller said: betas, eps, clip,
    floor, sequence.
    """
    settings: Mapping[str, Any]
    "Of the study's optimizer."
    length: RunLength
    plan: Plan = field(repr=False)
    rows: tuple[RecipeRow, ...] = field(repr=False)
    evidence: StudyEvidence
    extrapolated: Extrapolated | None
    risks: tuple[str, ...]
    doubts: tuple[str, ...]
    "Why it is inconclusive; empty where it is not."

    @property
    def conclusive(self) -> bool:
        return not self.doubts

    @property
    def exit_status(self) -> int:
        return 0 if self.conclusive else 3

    @property
    def betas(self) -> Betas | None:
        return self.told.betas

    @property
    def request(self) -> str | None:
        """What is not known, and how to say it: one sentence for all of it."""
        return f"{in_words(self.unknown)}. {request(self.unknown)}" if self.unknown else None

    @property
    def weight_decay(self) -> BaseValue:
        """Of the base, as chosen."""
        return self.decay.value

    @property
    def base_values(self) -> dict[str, Any]:
        """What `plan.param_groups` takes, as far as it is known."""
        values: dict[str, Any] = {"lr": self.lr.value, "weight_decay": self.weight_decay.value}
        if self.eps is not None and all(row.eps is not None for row in self.rows):
            values["eps"] = self.eps.value
        return values if self.betas is None else {**values, "betas": self.betas}

    @property
    def effective_taus(self) -> tuple[float, float] | None:
        """The least and the largest τ of any parameter: 1/(its rate × its decay × steps). None
        without decay, or l2.
        """
        products = [row.lr * row.weight_decay for row in self.rows if row.lr * row.weight_decay > 0]
        if not products or self.plan.decay == "l2":
            return None
        return 1 / (max(products) * self.length.steps), 1 / (min(products) * self.length.steps)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        return showing.text(self)

    def to_markdown(self) -> str:
        return showing.markdown(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None for infinite ends, and for what is not known."""
        return {
            "format": FORMAT,
            "version": 1,
            "target": {"name": self.target, **dataclasses.asdict(self.shape)},
            "rule": {"name": self.rule, "why": self.why},
            "conclusive": self.conclusive,
            "doubts": list(self.doubts),
            "not_known": list(self.unknown),
            "base_values": self._base_values(),
            "clip": self.told.clip,
            "floor": self.told.floor,
            "log2_lr": _finite(dataclasses.asdict(self.log2_lr)),
            "extrapolated": self.extrapolated and _finite(dataclasses.asdict(self.extrapolated)),
            "decay": self._decay(),
            "length": dataclasses.asdict(self.length),
            "plan": [{**dataclasses.asdict(row), "shape": list(row.shape)} for row in self.rows],
            "hooks": len(self.plan.hooks),
            "evidence": {
                **_finite(dataclasses.asdict(self.evidence)),
                "share": self.evidence.share,
            },
            "risks": list(self.risks),
        }

    def _base_values(self) -> dict[str, Any]:
        values = {
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "eps": self.eps,
            "std": self.std,
        }
        found: dict[str, Any] = {name: value and value.to_dict() for name, value in values.items()}
        return found | {"betas": self.betas and list(self.betas)}

    def _decay(self) -> dict[str, Any]:
        decay = self.decay
        return {
            "chosen": decay.chosen,
            "wd": decay.by_wd.to_dict(),
            "tau": decay.by_tau and decay.by_tau.to_dict(),
            "proxy_steps": decay.proxy_steps,
            "base_tau": {"proxy": decay.proxy_tau, "target": decay.target_tau},
            "effective_tau": self.effective_taus and list(self.effective_taus),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=2) + "\n"

    def export(self, kind: str) -> str:
        """For a trainer: pytorch, transformers, lightning, torchtitan, megatron or json."""
        return exports.export(self, kind)


def _finite(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}  # pyright: ignore[reportUnknownVariableType]
    return None if isinstance(values, float) and not math.isfinite(values) else values
