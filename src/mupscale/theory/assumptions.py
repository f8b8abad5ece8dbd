"""What the factor on the rate of repeated key/value heads rests on, in words: one text for every
place that prints a factor.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mupscale.theory.formulas import Expr, inline
from mupscale.theory.rules import DERIVED, Rule


@dataclass(frozen=True)
class Assumption:
    """A factor on the hidden rate, the reason for it, and what other assumptions would give."""

    rule: Rule
    part: str | None
    """Key or value, if that is known."""
    updates: str
    """The optimizer's updates, as the derivation takes them to be."""
    factor: Expr
    two_norms: Expr
    """With the paper's norms: the expected norm for the initial matrix, and updates as large as
    the initial matrix in the spectral norm.
    """
    one_norm: Expr
    """With one norm for both, RMS to RMS."""

    def text(self, readable: Callable[[Expr], Expr] = lambda formula: formula) -> str:
        """One sentence without its full stop. `readable` may simplify the formulas."""
        factor, two, one = (
            inline(readable(formula)) for formula in (self.factor, self.two_norms, self.one_norm)
        )
        subject = f"the factor {factor} on the hidden rate"
        only = "" if self.rule.kv_part == "both" else f" (on {self.rule.kv_part} only)"
        chosen = self.rule.of_part(self.part).kv_factor
        if self.rule.of_part(self.part) != self.rule:
            factor_on = f"the rule's factor is on {self.rule.kv_part} only"
            return f"{factor_on}; {self.part}s keep the hidden rate and decay"
        alike = f"{self.updates} as large as the initial matrix in"
        if chosen == "rms":
            basis = f"{alike} one norm, RMS to RMS, which sizes both"
            return f"{subject}{only} assumes {basis}; the paper's two norms give {two}"
        if chosen in DERIVED:
            printed = "heads × head_dim = n, and " if chosen == "paper" else ""
            basis = f"{printed}{alike} the spectral norm (the expected norm sizes it)"
            return f"{subject}{only} assumes {basis}; one norm for both gives {one}"
        others = f"one norm for initial matrix and update gives {one}, the paper's two norms {two}"
        return f"{subject}{only} is set by the rule, not derived; {others}"
