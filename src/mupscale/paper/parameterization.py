"""The paper's parameterization table, derived and compared with the print, cell by cell.

Two cells are equal when they are the same function of n and r. The row that the paper names "Init.
Var." is compared twice: as a variance, as its name says, and as the standard deviation that it is.
"""

from collections.abc import Callable, Iterator, Mapping

import sympy

from mupscale.paper.claims import Claim
from mupscale.paper.experiment import PrintedCell, PrintedTable, equal_cells
from mupscale.text import text_table
from mupscale.theory import Readout, Scaling, derive, parameterization
from mupscale.theory.formulas import Expr, inline, n, parse

PRINTED: Mapping[str, Mapping[str, str]] = {
    "Init. Var.": {
        "Embed": "1", "Unembed": "1", "Q, O": "1/sqrt(n)", "K, V": "1/sqrt(n)",
        "Feed-forward": "1/sqrt(n)",
    },
    "Multiplier": {"Embed": "1", "Unembed": "1/n", "Q, O": "1", "K, V": "1", "Feed-forward": "1"},
    "LR": {
        "Embed": "1", "Unembed": "1", "Q, O": "1/n", "K, V": "(1 + sqrt(r))/(2*n)",
        "Feed-forward": "1/n",
    },
    "Weight Decay": {
        "Embed": "1", "Unembed": "1", "Q, O": "n", "K, V": "2*n/(1 + sqrt(r))",
        "Feed-forward": "n",
    },
}  # fmt: skip
"""As the paper prints it, with its own row names."""

_INIT, _READ_AS_STD = "Init. Var.", "Init. Var., read as std"
_READINGS: Mapping[str, tuple[str, Callable[[Scaling], Expr]]] = {
    _READ_AS_STD: (_INIT, lambda scaling: scaling.init_std),
    "Multiplier": ("Multiplier", lambda scaling: scaling.multiplier),
    "LR": ("LR", lambda scaling: scaling.lr),
    "Weight Decay": ("Weight Decay", lambda scaling: scaling.weight_decay),
    _INIT: (_INIT, lambda scaling: scaling.init_std**2),
}
"""What is compared: a printed row, and our formula for it."""


def same(left: Expr, right: Expr) -> bool:
    """Whether two expressions in positive n and r are one function.

    >>> same(parse("(1 + sqrt(r))/(2*n)"), parse("(1 - r)/(2*n*(1 - sqrt(r)))"))
    True
    """
    return sympy.simplify(left - right) == 0


class Parameterization(PrintedTable):
    name = "parameterization"
    head = ("row", "column", "printed", "derived", "equal")

    def cells(self) -> list[PrintedCell]:
        """Every entry; the first row in both readings."""
        columns, cells = parameterization().columns, list[PrintedCell]()
        for label, (row, formula) in _READINGS.items():
            for column, text in PRINTED[row].items():
                printed, ours = parse(text, ["n", "r"]), formula(columns[column])
                both = inline(printed), inline(ours)
                cells.append(PrintedCell(label, column, *both, same(printed, ours)))
        return cells

    def lines(self) -> Iterator[str]:
        """The derived table, with every difference from the print."""
        head = ["derived", *PRINTED[_INIT], "as printed?"]
        yield from text_table(head, self.rows()).splitlines()
        for cell in self.cells():
            if not cell.equal:
                yield f"{cell.row}, {cell.column}: derived {cell.ours}, printed {cell.printed}"

    def claims(self) -> list[Claim]:
        """The two cells that are the paper's own, the whole table, and its contradictions."""
        found = self.cells()
        table = [cell for cell in found if cell.row != _INIT]
        own = [one for one in table if one.column == "K, V" and one.row in ("LR", "Weight Decay")]
        as_std = equal_cells([cell for cell in found if cell.row == _READ_AS_STD])
        return [
            self._claim("Keys and values: η = (1 + √r)/(2n), λ = 2n/(1 + √r)", own),
            self._claim(
                "The parameterization table, its first row read as standard deviations", table
            ),
            self._claim(
                'The first row holds variances ("Init. Var.")',
                [cell for cell in found if cell.row == _INIT],
                f"; as standard deviations {as_std}",
            ),
            self._readout_claim(),
        ]

    def _claim(self, says: str, compared: list[PrintedCell], more: str = "") -> Claim:
        verdict = "agrees" if all(cell.equal for cell in compared) else "disagrees"
        seen = f"{equal_cells(compared)} equal to the derived ones{more}"
        return Claim(self.name, "arithmetic", says, seen, 0, verdict)

    def _readout_claim(self) -> Claim:
        """The text gives the output layer η = 1/n, λ = n; the table η = λ = 1 and multiplier
        1/n.
        """
        folded = derive(Readout(n), "adamw", rule="gqa-mup").fold()
        agrees = same(folded.lr, 1 / n) and same(folded.weight_decay, n)
        both = f"η = {inline(folded.lr)}, λ = {inline(folded.weight_decay)}"
        says = "Output layer: η = 1/n, λ = n in the text; multiplier 1/n, η = 1, λ = 1 in the table"
        seen = f"with the multiplier folded in: {both}"
        verdict = "agrees" if agrees else "disagrees"
        return Claim(self.name, "arithmetic", says, seen, 0, verdict)


EXPERIMENT = Parameterization()
