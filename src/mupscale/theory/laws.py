"""Fitted laws: what runs of other people say about batch and weight decay, each with its range.

A law is an absolute number for a run, fitted to measurements. The rules of `runs` are factors from
one run to another.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy

from mupscale.errors import DimensionError, NotDerivedError
from mupscale.theory import formulas

POWER_LINES = "Power Lines (arXiv 2505.13738)"

_LARGE = ((1e9, "B"), (1e6, "M"))


def short(number: float) -> str:
    """A size with two or more digits and a unit.

    >>> short(111e6), short(3.3e9), short(7_504_924_672), short(1280), short(2.0)
    ('111M', '3.3B', '7.5B', '1,280', '2')
    """
    for unit, letter in _LARGE:
        if number >= unit:
            value = number / unit
            return f"{value:.0f}{letter}" if value >= 10 else f"{value:.2g}{letter}"
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


@dataclass(frozen=True)
class Law:
    """A formula in D (tokens of the whole run) or TPP (tokens per parameter), and its standing."""

    gives: str
    formula: str | None
    "None where only the exponent is published."
    text: str
    "The formula as people write it."
    source: str
    evidence: str
    fitted: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    "The range of each size in the runs behind it."

    def at(self, **sizes: float) -> float:
        """The law in numbers.

        >>> round(LAWS["decay"].at(TPP=20), 4), round(LAWS["batch"].at(D=1e10))
        (0.2236, 423693)
        >>> LAWS["critical-batch"].at(D=1e10)
        Traceback (most recent call last):
        mupscale.errors.NotDerivedError: critical batch: only ∝ D^0.462 is known, no constant.
        """
        if self.formula is None:
            raise NotDerivedError(f"{self.gives}: only {self.text} is known, no constant.")
        for name, value in sizes.items():
            if not (math.isfinite(value) and value > 0):
                raise DimensionError(f"{name}={value:g} must be a positive number.")
        values = {formulas.symbol(name): sympy.Rational(value) for name, value in sizes.items()}
        return float(sympy.N(formulas.parse(self.formula, sizes).subs(values), 30))

    def outside(self, **sizes: float) -> str | None:
        """A warning if the sizes of a run lie outside the range that the law was fitted on.

        >>> LAWS["decay"].outside(parameters=1e9, tokens_per_parameter=20)
        >>> LAWS["decay"].outside(parameters=7e9).partition(") ")[2]
        'was fitted on 111M to 3.3B parameters; this run has 7B'
        """
        beyond = [
            (f"{short(low)} to {short(high)} {name.replace('_', ' ')}", short(sizes[name]))
            for name, (low, high) in self.fitted.items()
            if name in sizes and not low <= sizes[name] <= high
        ]
        if not beyond:
            return None
        ranges, values = (" and ".join(words) for words in zip(*beyond, strict=True))
        return f"{self.source} was fitted on {ranges}; this run has {values}"


# The number of tokens per parameter comes from a public port of the paper's formulas, not from the
# paper itself, which was not at hand.
_POWER_LINES = {
    "source": POWER_LINES,
    "evidence": "about 400 runs with AdamW",
}
_RANGE = {"parameters": (111e6, 3.3e9), "tokens_per_parameter": (20.0, 1280.0)}

LAWS: Mapping[str, Law] = {
    "decay": Law(
        "τ_epoch with the lowest loss",
        "1.084*TPP**(-0.527)",
        "1.084·TPP^-0.527",
        **_POWER_LINES,
        fitted=_RANGE,
    ),
    "batch": Law(
        "batch with the lowest loss, in tokens",
        "2048*0.0306*D**0.383",
        "0.0306·D^0.383 sequences of 2,048 tokens",
        **_POWER_LINES,
        fitted=_RANGE,
    ),
    "critical-batch": Law("critical batch", None, "∝ D^0.462", **_POWER_LINES, fitted=_RANGE),
}
"""τ_epoch = B/(η·λ·D) is 1/(lr × decay × steps): η is the peak rate of hidden weights and λ their
decay, as the optimizer gets them. Above the critical batch, more tokens per batch save hardly any
steps.
"""
