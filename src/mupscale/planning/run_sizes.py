"""A plan for another batch and length: what `Rule.run` says, on every parameter."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mupscale.errors import OptionError
from mupscale.planning.values import PlannedParameter
from mupscale.theory import (
    Decay,
    Rule,
    RunFactors,
    RunSize,
    derive_run,
    optimizer_named,
    scaled_beta,
)
from mupscale.theory.runs import RUN_LABELS

Betas = tuple[float, float]


@dataclass(frozen=True)
class RunJump:
    """From the run in which the values were tuned to the target's."""

    base: RunSize
    target: RunSize

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "RunJump":
        return RunJump(RunSize(**data["base"]), RunSize(**data["target"]))

    def factors(self, rule: Rule, optimizer: str, decay: Decay) -> RunFactors:
        scaling = derive_run(rule.run, optimizer, decay=decay)
        return scaling.evaluate(base=self.base, target=self.target)

    def apply(
        self, parameters: Mapping[str, PlannedParameter], rule: Rule, decay: Decay
    ) -> dict[str, PlannedParameter]:
        """Every parameter with the factors of its optimizer; zeros stay zeros."""
        names = {parameter.optimizer for parameter in parameters.values()}
        found = {name: self.factors(rule, name, decay) for name in names}
        return {name: _times(p, found[p.optimizer]) for name, p in parameters.items()}

    def betas(self, rule: Rule, optimizer: str, decay: Decay, base: Betas | None) -> Betas | None:
        """The target's betas, from those of the base or the optimizer's defaults."""
        betas = optimizer_named(optimizer).betas if base is None else base
        if betas is None:
            return None
        found = self.factors(rule, optimizer, decay)
        first, second = betas
        return scaled_beta("β1", first, found.beta1), scaled_beta("β2", second, found.beta2)

    def momentum(self, rule: Rule, optimizer: str, decay: Decay, base: float | None) -> float:
        if base is None:
            raise OptionError(
                f"the momentum of {optimizer} changes with the batch. Pass the base's to "
                "param_groups, such as momentum=0.9."
            )
        return scaled_beta("momentum", base, self.factors(rule, optimizer, decay).beta1)

    def warnings(self, rule: Rule) -> tuple[str, ...]:
        """Sizes outside of those that the rule was measured for."""
        return tuple(
            f"{axis} of {size:,.0f} tokens lies outside {low:,.0f} to {high:,.0f}, for which the "
            f"rule's exponents were measured"
            for axis, low, high in rule.run_ranges
            for size in dict.fromkeys((getattr(self.base, axis), getattr(self.target, axis)))
            if not low <= size <= high
        )

    def text(self, rule: Rule, optimizers: Iterable[str], decay: Decay) -> list[str]:
        """One line per optimizer with other factors."""
        by_text: dict[str, list[str]] = {}
        for name in dict.fromkeys(optimizers):
            found = asdict(self.factors(rule, name, decay))
            changed = [f"{RUN_LABELS[key]} × {x:.4g}" for key, x in found.items() if x != 1]
            by_text.setdefault(", ".join(changed) or "no change", []).append(name)
        several = len(by_text) > 1
        return [
            f"run, included above ({rule.run}): from {self.base} to {self.target}"
            f"{' for ' + ' and '.join(names) if several else ''}: {text}"
            for text, names in by_text.items()
        ]


def _times(parameter: PlannedParameter, found: RunFactors) -> PlannedParameter:
    rows = tuple(
        replace(row, lr=row.lr * found.lr, weight_decay=row.weight_decay * found.weight_decay)
        for row in parameter.rows
    )
    return replace(
        parameter,
        lr=parameter.lr * found.lr,
        weight_decay=parameter.weight_decay * found.weight_decay,
        eps=parameter.eps * found.eps,
        rows=rows,
    )
