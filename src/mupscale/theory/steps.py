"""The steps of a derivation, and how they are printed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mupscale.text import wrapped
from mupscale.theory.formulas import Expr, inline
from mupscale.theory.units import Standing


@dataclass(frozen=True)
class Step:
    """One step of a derivation: `quantity` (as text and as LaTeX) has this `value`."""

    title: str
    quantity: tuple[str, str]
    value: Expr
    reason: str
    source: str
    standing: Standing = "derived"

    def to_dict(self) -> dict[str, str]:
        return {
            "title": self.title,
            "quantity": self.quantity[0],
            "value": str(self.value),
            "reason": self.reason,
            "source": self.source,
            "standing": self.standing,
        }


def steps_to_text(steps: Sequence[Step]) -> Iterator[str]:
    """Numbered, each with its reason and source."""
    for number, step in enumerate(steps, start=1):
        mark = "" if step.standing == "derived" else f"  ({step.standing})"
        yield ""
        yield wrapped(f"{number}. {step.title}{mark}", hanging="    ")
        yield f"     {step.quantity[0]} = {inline(step.value)}"
        yield wrapped(f"why: {step.reason}", " " * 5, " " * 10)
        yield wrapped(f"[{step.source}]", " " * 5, " " * 6)


_ESCAPES = str.maketrans({
    "√": r"$\surd $", "σ": r"$\sigma $", "Δ": r"$\Delta $", "‖": r"$\|$", "×": r"$\times $",
    "β": r"$\beta $", "μ": r"$\mu $", "ε": r"$\varepsilon $", "λ": r"$\lambda $",
    "η": r"$\eta $", "Θ": r"$\Theta $", "·": r"$\cdot $", "≤": r"$\le $", "⊕": r"$\oplus $",
    "₀": "$_0$", "²": "$^2$", "_": r"\_", "^": r"\^{}", "%": r"\%", "&": r"\&", "–": "--",
})  # fmt: skip


def latex_text(text: str) -> str:
    """Text with its symbols as pdflatex has them."""
    return text.translate(_ESCAPES)
