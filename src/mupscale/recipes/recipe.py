"""`Recipe`: the values to train a target with, how certain they are, and their evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mupscale.analysis.estimates import Estimate
from mupscale.planning import Plan
from mupscale.recipes import exports, showing
from mupscale.recipes.crossing import RunCrossing
from mupscale.recipes.lengths import RunLength
from mupscale.recipes.options import Betas, TrainingSettings, how_to_set, in_words
from mupscale.recipes.predicting import Extrapolated
from mupscale.recipes.rows import RecipeRow
from mupscale.recipes.shapes import ModelShape
from mupscale.recipes.values import BaseValue, CarriedDecay
from mupscale.records import finite
from mupscale.theory import optimizer_named

FORMAT = "mupscale recipe"


@dataclass(frozen=True)
class StudyEvidence:
    """The runs behind a recipe."""

    study: str
    runs: int
    seeds: tuple[int, ...]
    members: tuple[str, ...]
    "Models with an optimum under the rule."
    axis: str
    "What the models differ in."
    drift: Estimate | None
    "Octaves of the optimum per doubling along the axis."
    drift_verdict: str
    "Whether the optimum moves, with the definition of that word."
    regret: Estimate | None
    "The largest cost, in nats, of training a model at the proxy's optimum."
    confidence: float
    study_flops: float | None
    target_flops: float

    @property
    def share(self) -> float | None:
        """FLOPs of the study over FLOPs of the target's run."""
        return None if self.study_flops is None else self.study_flops / self.target_flops


@dataclass(frozen=True)
class Recipe:
    """Base values for a target, the plan that turns them into values per parameter, and the risks.

    To apply it: `plan.initialize_(model, std=recipe.std.value, seed=0)`, then
    `plan.param_groups(model, **recipe.base_values)`.
    """

    target: str
    shape: ModelShape
    rule: str
    why: str
    "Why this rule."
    log2_lr: Estimate
    lr: BaseValue
    decay: CarriedDecay
    eps: BaseValue | None
    "None if it is unknown, or if the optimizer has none."
    std: BaseValue
    factors: Mapping[str, BaseValue]
    "Tuned factors by kind of weight, which the plan contains."
    training: TrainingSettings
    unknown: tuple[str, ...]
    "Options that neither the study nor the caller set: betas, eps, clip, floor, sequence."
    settings: Mapping[str, Any]
    "The study's optimizer settings."
    length: RunLength
    crossing: RunCrossing = field(repr=False)
    "The jump in batch and length, and what rules for it say."
    noise_scale: float | None
    "Gradient noise scale of the study's runs in tokens, if it is known."
    plan: Plan = field(repr=False)
    rows: tuple[RecipeRow, ...] = field(repr=False)
    evidence: StudyEvidence
    extrapolated: Extrapolated | None
    risks: tuple[str, ...]
    doubts: tuple[str, ...]
    "Why the recipe is inconclusive; empty if it is conclusive."

    @property
    def conclusive(self) -> bool:
        return not self.doubts

    @property
    def exit_status(self) -> int:
        return 0 if self.conclusive else 3

    @property
    def betas(self) -> Betas | None:
        """Of the target's run: a rule for the run may change those of the base."""
        return self.crossing.betas if self.crossing.changes_betas else self.training.betas

    @property
    def decay_steps(self) -> int | None:
        """Steps of a decay at the end of the run; None if the decay follows the warmup."""
        return self.training.decay_steps(self.length.steps)

    @property
    def request(self) -> str | None:
        """One sentence that lists what is unknown and how to set it."""
        return f"{in_words(self.unknown)}. {how_to_set(self.unknown)}" if self.unknown else None

    @property
    def weight_decay(self) -> BaseValue:
        """The base weight decay, carried over as chosen."""
        return self.decay.value

    @property
    def base_values(self) -> dict[str, Any]:
        """Arguments for `plan.param_groups`, as far as they are known."""
        values: dict[str, Any] = {"lr": self.lr.value, "weight_decay": self.weight_decay.value}
        if self.eps is not None and all(row.eps is not None for row in self.rows):
            values["eps"] = self.eps.value
        if self.training.betas is not None:
            values["betas"] = self.training.betas  # the base's: the plan changes them
        if self.plan.run is not None and optimizer_named(self.plan.optimizer).momentum:
            values["momentum"] = self.settings.get("momentum")
        return values

    @property
    def effective_taus(self) -> tuple[float, float] | None:
        """The smallest and largest τ = 1/(rate × decay × steps) of any parameter. None for l2
        decay, or without decay.
        """
        products = [row.lr * row.weight_decay for row in self.rows if row.lr * row.weight_decay > 0]
        if not products or self.plan.decay == "l2":
            return None
        return 1 / (max(products) * self.length.steps), 1 / (min(products) * self.length.steps)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, columns: int | None = None) -> str:
        """Plain text, as wide as the terminal or as given."""
        return showing.text(self, columns)

    def to_markdown(self) -> str:
        return showing.markdown(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None for infinite ends, and for what is unknown."""
        decay = self.decay
        values = {name: getattr(self, name) for name in ("lr", "weight_decay", "eps", "std")}
        factors = {name: value.to_dict() for name, value in self.factors.items()}
        return {
            "format": FORMAT,
            "version": 1,
            "target": {"name": self.target, **asdict(self.shape)},
            "rule": {"name": self.rule, "why": self.why},
            "conclusive": self.conclusive,
            "doubts": list(self.doubts),
            "not_known": list(self.unknown),
            "base_values": {
                **{name: value and value.to_dict() for name, value in values.items()},
                "betas": self.training.betas and list(self.training.betas),
            },
            **({"factors": factors} if factors else {}),
            "clip": self.training.clip,
            "floor": self.training.floor,
            "schedule": {
                "name": self.training.schedule,
                "decay_share": self.training.decay_share,
                "source": self.training.origin["schedule"],
            },
            "log2_lr": finite(asdict(self.log2_lr)),
            "extrapolated": self.extrapolated and finite(asdict(self.extrapolated)),
            "decay": {
                "chosen": decay.chosen,
                "wd": decay.by_wd.to_dict(),
                "tau": decay.by_tau and decay.by_tau.to_dict(),
                "power-lines": decay.by_law and decay.by_law.to_dict(),
                "law": decay.law and asdict(decay.law),
                "proxy_steps": decay.proxy_steps,
                "base_tau": {"proxy": decay.proxy_tau, "target": decay.target_tau},
                "effective_tau": self.effective_taus and list(self.effective_taus),
            },
            "length": asdict(self.length),
            "run": self.crossing.to_dict(),
            "noise_scale_tokens": self.noise_scale,
            "plan": [{**asdict(row), "shape": list(row.shape)} for row in self.rows],
            "assumptions": self.plan.assumptions,
            "hooks": len(self.plan.hooks),
            "evidence": {**finite(asdict(self.evidence)), "share": self.evidence.share},
            "risks": list(self.risks),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=2) + "\n"

    def export(self, kind: str) -> str:
        """A file for a trainer: pytorch, transformers, lightning, torchtitan, megatron or json."""
        return exports.export(self, kind)
