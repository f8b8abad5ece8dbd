"""The paper's parameterization table, derived and compared with the print, cell by cell.

Two cells are equal when they are the same function of n and r. The row that the paper names "Init.
Var." is compared twice: as a variance, as its name says, and as the standard deviation that it is.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import sympy

from mupscale import reports
from mupscale.paper.claims import Claim
from mupscale.paper.experiment import QUIETLY, Cost, Execution, Experiment, Findings, Scale
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


@dataclass(frozen=True)
class DerivedCell:
    """An entry of the table, printed and derived."""

    row: str
    column: str
    printed: str
    derived: str
    equal: bool


def cells() -> list[DerivedCell]:
    """Every entry; the first row in both readings."""
    columns = parameterization().columns
    return [
        _cell(label, column, printed, derived(columns[column]))
        for label, (row, derived) in _READINGS.items()
        for column, printed in PRINTED[row].items()
    ]


def _cell(row: str, column: str, text: str, derived: Expr) -> DerivedCell:
    printed = parse(text, ["n", "r"])
    return DerivedCell(row, column, inline(printed), inline(derived), same(printed, derived))


def same(left: Expr, right: Expr) -> bool:
    """Whether two expressions in positive n and r are one function.

    >>> same(parse("(1 + sqrt(r))/(2*n)"), parse("(1 - r)/(2*n*(1 - sqrt(r)))"))
    True
    """
    return sympy.simplify(left - right) == 0


def as_lines() -> Iterator[str]:
    """The derived table, with every difference from the print."""
    found, head = cells(), ["derived", *PRINTED[_INIT], "as printed?"]
    rows: list[list[str]] = []
    for row in dict.fromkeys(cell.row for cell in found):
        across = [cell for cell in found if cell.row == row]
        equal = "equal" if all(cell.equal for cell in across) else "differs"
        rows.append([row, *(cell.derived for cell in across), equal])
    yield from text_table(head, rows).splitlines()
    for cell in (cell for cell in found if not cell.equal):
        yield f"{cell.row}, {cell.column}: derived {cell.derived}, printed {cell.printed}"


def claims() -> list[Claim]:
    """The two cells that are the paper's own, the whole table, and its contradictions."""
    found = cells()
    table = [cell for cell in found if cell.row != _INIT]
    own = [cell for cell in table if cell.column == "K, V" and cell.row in ("LR", "Weight Decay")]
    init = [cell for cell in found if cell.row == _INIT]
    as_std = [cell for cell in found if cell.row == _READ_AS_STD]
    return [
        _claim("Keys and values: η = (1 + √r)/(2n), λ = 2n/(1 + √r)", own),
        _claim("The parameterization table, its first row read as standard deviations", table),
        _claim(
            'The first row holds variances ("Init. Var.")',
            init,
            f"; as standard deviations {_count(as_std)}",
        ),
        _readout_claim(),
    ]


def _claim(says: str, compared: list[DerivedCell], more: str = "") -> Claim:
    agrees = all(cell.equal for cell in compared)
    seen = f"{_count(compared)} equal to the derived ones{more}"
    return Claim(
        Parameterization.name, "arithmetic", says, seen, 0, "agrees" if agrees else "disagrees"
    )


def _count(compared: list[DerivedCell]) -> str:
    return f"{sum(cell.equal for cell in compared)} of {len(compared)} cells"


def _readout_claim() -> Claim:
    """The text gives the output layer η = 1/n, λ = n; the table η = λ = 1 and multiplier 1/n."""
    folded = derive(Readout(n), "adamw", rule="gqa-mup").fold()
    agrees = same(folded.lr, 1 / n) and same(folded.weight_decay, n)
    seen = (
        f"with the multiplier folded in: η = {inline(folded.lr)}, λ = {inline(folded.weight_decay)}"
    )
    says = "Output layer: η = 1/n, λ = n in the text; multiplier 1/n, η = 1, λ = 1 in the table"
    return Claim(
        Parameterization.name, "arithmetic", says, seen, 0, "agrees" if agrees else "disagrees"
    )


class Parameterization(Experiment):
    """The same at both scales: a derivation."""

    name = "parameterization"

    def cost(self, scale: Scale, workers: int) -> Cost | None:
        return None

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        """Nothing to run: the table is derived when needed."""
        how.report(len(cells()), len(cells()))

    def findings(self, scale: Scale, folder: Path) -> Findings:
        path = reports.save_csv([asdict(cell) for cell in cells()], folder / "parameterization.csv")
        return Findings(tuple(as_lines()), tuple(claims()), (path,))

    def dry_run(self, scale: Scale) -> Iterator[str]:
        yield from as_lines()


EXPERIMENT = Parameterization()
