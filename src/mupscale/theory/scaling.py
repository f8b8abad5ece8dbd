"""The result of a derivation: five exact expressions and the steps that led to them."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import sympy

from mupscale.errors import DimensionError, NotExactError, OptionError, UnknownNameError
from mupscale.text import wrapped
from mupscale.theory import formulas
from mupscale.theory.assumptions import Assumption
from mupscale.theory.formulas import Expr, inline, latex, tidy
from mupscale.theory.optimizers import Decay, Optimizer
from mupscale.theory.rules import Rule
from mupscale.theory.steps import Step, latex_text, steps_to_text
from mupscale.theory.units import Unit

FIELDS = ("init_std", "multiplier", "lr", "weight_decay", "eps")
LABELS = {
    "init_std": "init std",
    "multiplier": "multiplier",
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "eps": "epsilon",
}


@dataclass(frozen=True)
class Factors:
    """A scaling in numbers: the factors on the base values."""

    init_std: float
    multiplier: float
    lr: float
    weight_decay: float
    eps: float


@dataclass(frozen=True)
class Scaling:
    """The values of one unit under one rule and optimizer, relative to the base values σ0, η0, λ0
    and ε0.
    """

    unit: Unit
    optimizer: Optimizer
    rule: Rule
    decay: Decay
    init_std: Expr
    multiplier: Expr
    lr: Expr
    weight_decay: Expr
    eps: Expr
    steps: tuple[Step, ...] = field(repr=False)
    blocks: Mapping[str, "Scaling"] = field(default_factory=dict[str, "Scaling"], repr=False)
    """For a fused matrix, the scaling of each block's rows; only multiplier and init differ."""
    assumption: Assumption | None = field(default=None, repr=False)
    """What its factor on the hidden rate rests on; None for a matrix that is not repeated."""

    @property
    def expressions(self) -> dict[str, Expr]:
        return {name: getattr(self, name) for name in FIELDS}

    @property
    def standing(self) -> str:
        """Derived within the paper's framework, extrapolated beyond it, or derived with a number of
        extrapolated steps.
        """
        if "extrapolated" in (self.unit.standing, self.optimizer.standing):
            return "extrapolated"
        beyond = sum(step.standing == "extrapolated" for step in self.steps)
        words = {0: "", 1: ", one extrapolated step"}
        return "derived" + words.get(beyond, f", {beyond} extrapolated steps")

    @property
    def caveats(self) -> tuple[str, ...]:
        """Limits of the result."""
        other = ""
        if self.optimizer.name == "adam" and self.decay != "l2":
            other = (
                f"torch.optim.Adam decays by l2; this is {self.decay} decay (torch.optim.AdamW's "
                "is lr_coupled)"
            )
        return tuple(text for text in (self.unit.remark, self.optimizer.caveat, other) if text)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What factors on the hidden rate rest on, in words: its own, or those of its rows."""
        if not self.blocks:
            return () if self.assumption is None else (self.assumption.text(),)
        texts = {name: text for name, block in self.blocks.items() for text in block.assumptions}
        if len(set(texts.values())) < 2:
            return tuple(set(texts.values()))
        return tuple(f"{name}: {text}" for name, text in texts.items())

    @property
    def notes(self) -> tuple[str, ...]:
        """What is printed below the values."""
        return (*self.caveats, *self.assumptions)

    def fold(self, multiplier: Expr | str | float | None = None) -> "Scaling":
        """Move a factor of the forward pass (default: the multiplier) into the parameter without
        changing the training: W' = aW, g' = g/a.

        Raises NotExactError if the optimizer makes that inexact.

        >>> from mupscale.theory import Readout, derive
        >>> folded = derive(Readout("n"), "adamw").fold()
        >>> folded.init_std, folded.lr, folded.weight_decay, folded.eps, folded.multiplier
        (1/n, 1/n, n, 1, 1)
        """
        a = self.multiplier if multiplier is None else _positive(multiplier)
        if a == 1:
            return self
        if self.optimizer.not_exact:
            raise NotExactError(
                f"a multiplier of {inline(a)} cannot be folded under {self.optimizer}: "
                f"{self.optimizer.not_exact}. Keep the multiplier in the forward pass."
            )
        factors = {name: a**power for name, power in self.optimizer.fold_powers(self.decay).items()}
        step = Step(
            "Folding",
            ("a", "a"),
            a,
            f"W' = aW has the gradient g/a, so std × a, rate × {inline(factors['lr'])}, decay × "
            f"{inline(factors['weight_decay'])} and epsilon × {inline(factors['eps'])} give the "
            "same training",
            "abc-symmetry (Yang & Hu 2021)",
        )
        return dataclasses.replace(
            self,
            **{name: tidy(getattr(self, name) * factor) for name, factor in factors.items()},
            steps=(*self.steps, step),
            blocks={name: block.fold(a) for name, block in self.blocks.items()},
        )

    def evaluate(
        self,
        *,
        target: Mapping[str, int],
        base: Mapping[str, int] | None = None,
        reference_r: int | None = None,
    ) -> Factors:
        """Numbers: each expression at the target, divided by its value at the base.

        A dimension that `base` leaves out is taken from the target, so a base planned onto itself
        gives 1 everywhere. `reference_r=1` measures r from 1, whatever r the base has. A value of 0
        (the decay of a gain) stays 0.

        >>> from mupscale.theory import KeyValue, derive
        >>> kv = derive(KeyValue("n", "r"), "adamw")
        >>> kv.evaluate(base={"n": 256, "r": 1}, target={"n": 1024, "r": 4}).lr
        0.375
        >>> kv.evaluate(base={"n": 256}, target={"n": 1024, "r": 4}).lr
        0.25
        """
        needed = sorted(
            self.unit.dimensions()
            | {str(s) for e in self.expressions.values() for s in e.free_symbols}
        )
        at_target = _numbers("target", target, needed)
        missing = [name for name in needed if name not in at_target]
        if missing:
            known = ", ".join(f"{k}={v}" for k, v in target.items()) or "nothing"
            raise DimensionError(
                f"target says {known}, but {self.unit} also needs {', '.join(missing)}."
            )
        self.unit.at(at_target)  # raises if the numbers do not fit together
        at_base = at_target | _numbers("base", base or {}, needed)
        if reference_r is not None and "r" in needed:
            at_base |= _numbers("reference_r", {"r": reference_r}, ["r"])
        ends = tuple(at_target.items()), tuple(at_base.items())
        return Factors(**{name: _ratio(e, *ends) for name, e in self.expressions.items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the five expressions are strings that sympy can parse."""
        data: dict[str, Any] = {
            "unit": str(self.unit),
            "optimizer": self.optimizer.name,
            "rule": self.rule.name,
            "decay": self.decay,
            "standing": self.standing,
            "caveats": list(self.caveats),
            "assumptions": list(self.assumptions),
            **{name: str(value) for name, value in self.expressions.items()},
            "steps": [step.to_dict() for step in self.steps],
        }
        if self.blocks:
            data["blocks"] = {
                name: {key: str(value) for key, value in block.expressions.items()}
                for name, block in self.blocks.items()
            }
        return data

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    def to_text(self, *, steps: bool = True) -> str:
        title = f"{self.unit} · {self.rule} · {self.optimizer} · {self.decay} decay"
        lines = [wrapped(f"{title} · {self.standing}", hanging="  "), ""]
        lines += [f"  {LABELS[name]:<14} {inline(e)}" for name, e in self.expressions.items()]
        lines += [
            f"  rows of {name}: multiplier {inline(b.multiplier)}, init std {inline(b.init_std)}"
            for name, b in self.blocks.items()
        ]
        lines += [f"\n{wrapped(f'note: {note}', '  ', ' ' * 8)}" for note in self.notes]
        return "\n".join([*lines, *(steps_to_text(self.steps) if steps else ())])

    def to_markdown(self, *, steps: bool = True) -> str:
        title = f"**{self.unit}**, {self.rule}, {self.optimizer}, {self.decay} decay"
        lines = [f"{title}: *{self.standing}*", "", "| | |", "|---|---|"]
        lines += [f"| {LABELS[name]} | ${latex(e)}$ |" for name, e in self.expressions.items()]
        lines += [
            f"| rows of {name}: multiplier | ${latex(block.multiplier)}$ |"
            for name, block in self.blocks.items()
        ]
        lines += [f"\n> {note}" for note in self.notes]
        for number, step in enumerate(self.steps if steps else (), start=1):
            mark = "" if step.standing == "derived" else f" *({step.standing})*"
            formula = f"${step.quantity[1]} = {latex(step.value)}$"
            lines += [
                "",
                f"{number}. **{step.title}**{mark}: {formula}.",
                f"   Why: {step.reason} ({step.source}).",
            ]
        return "\n".join(lines)

    def to_latex(self, *, steps: bool = True) -> str:
        lines = [
            rf"% {self.unit}, {self.rule}, {self.optimizer}, {self.decay}: {self.standing}",
            r"\begin{align*}",
            *(
                rf"\text{{{LABELS[name]}}} &= {latex(value)} \\"
                for name, value in self.expressions.items()
            ),
            r"\end{align*}",
            *(f"Note: {latex_text(note)}." for note in self.notes),
        ]
        if steps:
            lines.append(r"\begin{enumerate}")
            for step in self.steps:
                formula = f"${step.quantity[1]} = {latex(step.value)}$"
                lines += [
                    rf"  \item \textbf{{{step.title}}} ({step.standing}): {formula}.",
                    f"    Why: {latex_text(step.reason)} ({latex_text(step.source)}).",
                ]
            lines.append(r"\end{enumerate}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text(steps=False)


def _positive(value: Expr | str | float) -> Expr:
    if isinstance(value, float) and not math.isfinite(value):
        raise OptionError(
            f"multiplier={value} is not finite. Give a positive number or formula such as '1/n'."
        )
    a = formulas.parse(value) if isinstance(value, str) else sympy.nsimplify(value, rational=True)
    if not a.is_positive:
        raise OptionError(
            f"multiplier={value} is not positive. Give a positive number or formula such as '1/n'."
        )
    return a


def _numbers(where: str, values: Mapping[str, int], needed: list[str]) -> dict[str, int]:
    for name in values:
        if name not in needed and name not in formulas.SYMBOLS:
            raise UnknownNameError(
                f"dimension in {where}", name, dict.fromkeys([*formulas.SYMBOLS, *needed])
            )
    whole = {name: formulas.dimension(f"{where}: {name}", value) for name, value in values.items()}
    return {name: int(value) for name, value in whole.items()}


@lru_cache(maxsize=4096)
def _ratio(
    expression: Expr, target: tuple[tuple[str, int], ...], base: tuple[tuple[str, int], ...]
) -> float:
    if expression == 0:
        return 0.0
    over, under = (
        expression.subs({formulas.symbol(name): value for name, value in values})
        for values in (target, base)
    )
    # 30 digits before the only rounding: the result is the nearest double.
    return float(sympy.N(over / under, 30))
