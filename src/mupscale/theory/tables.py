"""Tables, derived cell by cell: the paper's parameterization, and a comparison of optimizers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy

from mupscale.text import markdown_table, terminal_columns, text_table, wrapped
from mupscale.theory.derivation import derive
from mupscale.theory.formulas import Expr, L, inline, latex, n, r, tidy
from mupscale.theory.optimizers import OPTIMIZERS, Decay, Optimizer, optimizer_named
from mupscale.theory.rule_files import rule_named
from mupscale.theory.rules import RULES, Rule
from mupscale.theory.scaling import FIELDS, LABELS, Scaling
from mupscale.theory.steps import latex_text
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


@dataclass(frozen=True)
class RuleTable:
    """A scaling for each kind of weight; n is the fan-in of the weight, in epsilon the embedding
    width.
    """

    columns: Mapping[str, Scaling]
    optimizer: Optimizer
    rule: Rule
    decay: Decay

    @property
    def notes(self) -> list[str]:
        others = [label for label, s in self.columns.items() if s.optimizer != self.optimizer]
        trained = f"trained by AdamW, since {self.optimizer} steps hidden matrices only"
        caveats = dict.fromkeys(c for s in self.columns.values() for c in s.caveats)
        by_standing: dict[str, list[str]] = {}
        for label, s in self.columns.items():
            by_standing.setdefault(s.standing, []).append(label)
        by_standing.pop("derived", None)
        return [
            *([f"{', '.join(others)}: {trained}"] if others else []),
            *caveats,
            *(f"{', '.join(labels)}: {standing}" for standing, labels in by_standing.items()),
            *(f"{label}: {text}" for label, s in self.columns.items() for text in s.assumptions),
        ]

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
        lines = [["", *self.columns], *([LABELS[f], *self._cells(f, inline)] for f in FIELDS)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        if (
            sum(widths) + 2 * len(widths) > terminal_columns()
        ):  # one row per kind of weight is narrower
            lines = [list(column) for column in zip(*lines, strict=True)]
        notes = (f"\n{wrapped(f'note: {note}', hanging='      ')}" for note in self.notes)
        title = f"{self.rule} · {self.optimizer} · {self.decay} decay"
        head = wrapped(title, hanging="  ")
        return "\n".join([head, "", text_table(lines[0], lines[1:]), *notes])

    def to_markdown(self) -> str:
        rows = [[LABELS[f], *(f"${cell}$" for cell in self._cells(f, latex))] for f in FIELDS]
        notes = (f"\n> {note}" for note in self.notes)
        return "\n".join([markdown_table(["", *self.columns], rows), *notes])

    def to_latex(self) -> str:
        head = " & ".join(["", *self.columns]) + r" \\ \midrule"
        rows = [
            " & ".join([LABELS[name], *(f"${cell}$" for cell in self._cells(name, latex))]) + r" \\"
            for name in FIELDS
        ]
        begin = rf"\begin{{tabular}}{{l{'c' * len(self.columns)}}} \toprule"
        notes = [rf"\par {{\footnotesize Note: {latex_text(note)}.}}" for note in self.notes]
        return "\n".join([begin, head, *rows, r"\bottomrule \end{tabular}", *notes])

    def _cells(self, name: str, show: Any) -> list[str]:
        return [show(getattr(scaling, name)) for scaling in self.columns.values()]


def parameterization(
    optimizer: Optimizer | str | type = "adamw",
    *,
    rule: Rule | str = "gqa-mup",
    decay: Decay = "lr_coupled",
    depth: str = "none",
) -> RuleTable:
    """The paper's table 1, derived; with `depth="1/L"`, with a column for each matrix of a branch.

    >>> parameterization().columns["K, V"].lr
    (sqrt(r) + 1)/(2*n)
    """
    optimizer = optimizer_named(optimizer)
    rule = (rule_named(rule) if isinstance(rule, str) else rule).with_(depth=depth)
    units = _COLUMNS if depth == "none" else _COLUMNS_IN_DEPTH
    if rule.kv_part != "both":
        units = dict(_with_parts(units))
    columns: dict[str, Scaling] = {}
    for label, unit in units.items():
        core = unit.branch if isinstance(unit, Residual) else unit
        by_adamw = optimizer.whole_matrix and not core.grows_both_ways
        own = OPTIMIZERS["adamw"] if by_adamw else optimizer
        columns[label] = derive(unit, own, rule=rule, decay=decay)
    return RuleTable(columns, optimizer, rule, decay)


def _with_parts(units: Mapping[str, Unit]) -> Iterator[tuple[str, Unit]]:
    """The columns with K and V apart."""
    for label, unit in units.items():
        core = unit.branch if isinstance(unit, Residual) else unit
        if not isinstance(core, KeyValue):
            yield label, unit
            continue
        for name, part in (("K", "key"), ("V", "value")):
            one = replace(core, part=part)
            yield name, replace(unit, branch=one) if isinstance(unit, Residual) else one


@dataclass(frozen=True)
class OptimizerRow:
    """How the learning rate depends on repetition and width under one optimizer."""

    optimizer: Optimizer
    step: Expr
    """Norm of a unit step on the key/value matrix, without its constant factor."""
    kv_factor: Expr
    one_norm: Expr
    """The key/value factor with one norm for initial matrix and update."""
    width_exponent: Expr
    standing: str

    def to_dict(self) -> dict[str, str]:
        return {
            "optimizer": self.optimizer.name,
            "step": str(self.step),
            "kv_factor": str(self.kv_factor),
            "one_norm": str(self.one_norm),
            "width_exponent": str(self.width_exponent),
            "standing": self.standing,
            "caveat": self.optimizer.caveat,
        }


def compare_optimizers() -> list[OptimizerRow]:
    """For every optimizer, the key/value factor and the power of n in the hidden rate."""
    rows: list[OptimizerRow] = []
    for optimizer in OPTIMIZERS.values():
        dense, kv = derive(_DENSE, optimizer), derive(KeyValue(n, r), optimizer)
        by_rms = derive(KeyValue(n, r), optimizer, rule=RULES["gqa-mup"].with_(kv_factor="rms"))
        step = next(step.value for step in kv.steps if step.title == "Step of the stored matrix")
        exponent = tidy(n * sympy.diff(dense.lr, n) / dense.lr)
        factor, one_norm = (tidy(one.lr / dense.lr) for one in (kv, by_rms))
        rows.append(OptimizerRow(optimizer, step, factor, one_norm, exponent, kv.standing))
    return rows


_TWO_FACTORS = (
    "the unit step is that of the stored K or V. The K/V factor assumes updates as large as the "
    "initial matrix in the spectral norm (the expected norm sizes it); 'one norm' is the factor "
    "with one norm for both"
)


def optimizers_to_text(rows: list[OptimizerRow]) -> str:
    head = ["optimizer", "unit step", "K/V factor", "one norm", "power of n", "standing"]
    cells = [
        [
            row.optimizer.name,
            inline(row.step),
            inline(row.kv_factor),
            inline(row.one_norm),
            inline(row.width_exponent),
            row.standing,
        ]
        for row in rows
    ]
    caveats = [
        wrapped(f"note: {row.optimizer.name}: {row.optimizer.caveat}", hanging="      ")
        for row in rows
        if row.optimizer.caveat
    ]
    factors = wrapped(f"note: {_TWO_FACTORS}", hanging="      ")
    return "\n".join([text_table(head, cells), "", factors, *caveats])
