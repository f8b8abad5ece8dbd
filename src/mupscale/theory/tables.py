"""Tables, derived cell by cell: the paper's parameterization table, and the optimizers side by
side.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from mupscale.theory.derivation import derive
from mupscale.theory.formulas import Expr, L, inline, latex, n, r, tidy
from mupscale.theory.optimizers import OPTIMIZERS, Decay, Optimizer, optimizer_named
from mupscale.theory.rule_files import rule_named
from mupscale.theory.rules import Rule
from mupscale.theory.scaling import FIELDS, LABELS, Scaling
from mupscale.theory.units import Dense, Embedding, KeyValue, Readout, Residual, Unit

_DENSE = Dense(n, n)
_COLUMNS: Mapping[str, Unit] = {
    "Embed": Embedding(n),
    "Unembed": Readout(n),
    "Q, O": _DENSE,
    "K, V": KeyValue(n, r),
    "Feed-forward": _DENSE,
}
_COLUMNS_IN_DEPTH: Mapping[str, Unit] = {
    "Embed": Embedding(n),
    "Unembed": Readout(n),
    "Q": Residual(_DENSE, L, output=False),
    "K, V": Residual(KeyValue(n, r), L, output=False),
    "O": Residual(_DENSE, L),
    "Feed-forward in": Residual(_DENSE, L, output=False),
    "Feed-forward out": Residual(_DENSE, L),
}


def as_rows(head: list[str], rows: list[list[str]]) -> str:
    """Aligned columns of plain text.

    >>> print(as_rows(["", "a"], [["row", "1"]]))
         a
    row  1
    """
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    )


def as_markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


@dataclass(frozen=True)
class RuleTable:
    """A scaling for each kind of weight, with n each weight's own fan-in (and the embedding width
    in epsilon).
    """

    columns: Mapping[str, Scaling]
    optimizer: Optimizer
    rule: Rule
    decay: Decay

    @property
    def notes(self) -> list[str]:
        aside = [
            label for label, scaling in self.columns.items() if scaling.optimizer != self.optimizer
        ]
        beside = f"{', '.join(aside)}: trained by AdamW beside {self.optimizer}, which steps hidden matrices only"
        caveats = {caveat: None for scaling in self.columns.values() for caveat in scaling.caveats}
        standings = {s.standing: None for s in self.columns.values() if s.standing != "derived"}
        beyond = [
            f"{', '.join(k for k, s in self.columns.items() if s.standing == word)}: {word}"
            for word in standings
        ]
        return [*([beside] if aside else []), *caveats, *beyond]

    def to_dict(self) -> dict[str, Any]:
        return {
            "rule": self.rule.name,
            "optimizer": self.optimizer.name,
            "decay": self.decay,
            "depth": self.rule.depth,
            "columns": {
                label: {
                    **{name: str(value) for name, value in scaling.expressions.items()},
                    "unit": str(scaling.unit),
                    "optimizer": scaling.optimizer.name,
                    "standing": scaling.standing,
                }
                for label, scaling in self.columns.items()
            },
            "notes": self.notes,
        }

    def to_text(self) -> str:
        title = f"{self.rule} · {self.optimizer} · {self.decay} decay"
        body = as_rows(["", *self.columns], [[LABELS[f], *self._cells(f, inline)] for f in FIELDS])
        return "\n".join([title, "", body, *(f"\nnote: {note}" for note in self.notes)])

    def to_markdown(self) -> str:
        rows = [
            [LABELS[name], *(f"${cell}$" for cell in self._cells(name, latex))] for name in FIELDS
        ]
        return "\n".join(
            [as_markdown(["", *self.columns], rows), *(f"\n> {note}" for note in self.notes)]
        )

    def to_latex(self) -> str:
        head = " & ".join(["", *self.columns]) + r" \\ \midrule"
        rows = [
            " & ".join([LABELS[name], *(f"${cell}$" for cell in self._cells(name, latex))]) + r" \\"
            for name in FIELDS
        ]
        begin = rf"\begin{{tabular}}{{l{'c' * len(self.columns)}}} \toprule"
        return "\n".join([begin, head, *rows, r"\bottomrule \end{tabular}"])

    def _cells(self, name: str, show: Any) -> list[str]:
        return [show(getattr(scaling, name)) for scaling in self.columns.values()]


def parameterization(
    optimizer: Optimizer | str | type = "adamw",
    *,
    rule: Rule | str = "gqa-mup",
    decay: Decay = "lr_coupled",
    depth: str = "none",
) -> RuleTable:
    """The paper's table 1, derived; with `depth="1/L"` the residual branches are told apart.

    >>> parameterization().columns["K, V"].lr
    (sqrt(r) + 1)/(2*n)
    """
    optimizer = optimizer_named(optimizer)
    rule = (rule_named(rule) if isinstance(rule, str) else rule).with_(depth=depth)
    units = _COLUMNS if depth == "none" else _COLUMNS_IN_DEPTH
    columns = {
        label: _derive_or_beside(unit, optimizer, rule, decay) for label, unit in units.items()
    }
    return RuleTable(columns, optimizer, rule, decay)


def _derive_or_beside(unit: Unit, optimizer: Optimizer, rule: Rule, decay: Decay) -> Scaling:
    core = unit.branch if isinstance(unit, Residual) else unit
    alone = optimizer.whole_matrix and not core.grows_both_ways
    return derive(unit, OPTIMIZERS["adamw"] if alone else optimizer, rule=rule, decay=decay)


@dataclass(frozen=True)
class OptimizerRow:
    """What repetition and width do to the learning rate under one optimizer."""

    optimizer: Optimizer
    step: Expr
    """Norm of a unit step on the key/value matrix, without its constant factor."""
    kv_factor: Expr
    width_exponent: Expr
    standing: str

    def to_dict(self) -> dict[str, str]:
        return {
            "optimizer": self.optimizer.name,
            "step": str(self.step),
            "kv_factor": str(self.kv_factor),
            "width_exponent": str(self.width_exponent),
            "standing": self.standing,
            "caveat": self.optimizer.caveat,
        }


def compare_optimizers() -> list[OptimizerRow]:
    """Every optimizer: its key/value factor, the power of n in its hidden rate, and where that
    comes from.
    """
    return [_compare(optimizer) for optimizer in OPTIMIZERS.values()]


def _compare(optimizer: Optimizer) -> OptimizerRow:
    dense, kv = derive(_DENSE, optimizer), derive(KeyValue(n, r), optimizer)
    step = next(step.value for step in kv.steps if step.title == "Step of the stored matrix")
    exponent = tidy(n * sympy.diff(dense.lr, n) / dense.lr)
    return OptimizerRow(optimizer, step, tidy(kv.lr / dense.lr), exponent, kv.standing)


def optimizers_to_text(rows: list[OptimizerRow]) -> str:
    head = ["optimizer", "unit step on K, V", "K/V factor", "power of n", "standing"]
    cells = [
        [
            row.optimizer.name,
            inline(row.step),
            inline(row.kv_factor),
            inline(row.width_exponent),
            row.standing,
        ]
        for row in rows
    ]
    caveats = [
        f"note: {row.optimizer.name}: {row.optimizer.caveat}"
        for row in rows
        if row.optimizer.caveat
    ]
    return "\n".join([as_rows(head, cells), "", *caveats])
