"""The formulas of `mupscale.theory` as JavaScript, for the calculator page."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

import sympy

from mupscale.errors import NotDerivedError, NotExactError
from mupscale.targets.shapes import SHAPES
from mupscale.targets.widths import with_width
from mupscale.theory import (
    DECAYS,
    FIELDS,
    LABELS,
    OPTIMIZERS,
    RULES,
    Decay,
    Dense,
    Embedding,
    Expr,
    KeyValue,
    Optimizer,
    Readout,
    Residual,
    Rule,
    RuleTable,
    Scaling,
    Unit,
    Vector,
    derive,
)
from mupscale.theory.formulas import inline, symbol, tidy

Data: TypeAlias = dict[str, Any]

SIZES = ("n", "L", "r", "inner", "d_ff")
"""The symbols of the units below, which the page computes from its inputs."""

UNITS: Mapping[str, Unit] = {
    "Embedding": Embedding("n"),
    "Query": Residual(Dense("inner", "n"), "L", output=False),
    "Key, value": Residual(KeyValue("n", "r", "inner"), "L", output=False),
    "Attention output": Residual(Dense("n", "inner", width="n"), "L"),
    "Feed-forward in": Residual(Dense("d_ff", "n"), "L", output=False),
    "Feed-forward out": Residual(Dense("n", "d_ff", width="n"), "L"),
    "Gains and biases in blocks": Residual(Vector("n"), "L", output=False),
    "Final norm": Vector("n"),
    "Readout": Readout("n"),
}
"""The weights of a decoder with pre-norms, as a plan reads them."""

PROXY = {"width": 512, "depth": 8}
"""The base that the page starts with, for each well-known model."""

PYTHON = """\
import mupscale as mu
from mupscale.theory import Dense, Embedding, KeyValue, Readout, Residual, Vector

target = {target}
base = {base}
choices = {choices}
scalings = {{
{scalings}
}}
factors = {{}}
for name, scaling in scalings.items():
    sizes = [{{key: model[key] for key in scaling.unit.dimensions()}} for model in (target, base)]
    factors[name] = scaling.evaluate(target=sizes[0], base=sizes[1])
    print(name, factors[name])
"""
"""Code for the reader to copy; the page fills in the names in single braces."""


def script() -> str:
    """The text of `formulas.js`: data as JSON, and one function per distinct formula."""
    pools = Pools()
    data = {
        "sizes": list(SIZES),
        "fields": [LABELS[name] for name in FIELDS],
        "units": [_unit(label, unit) for label, unit in UNITS.items()],
        "rules": list(RULES),
        "optimizers": {optimizer.name: optimizer.decay for optimizer in OPTIMIZERS.values()},
        "decays": list(DECAYS),
        "presets": dict(_presets()),
        "tables": {
            f"{rule} {optimizer} {decay}": [
                pools.table(table) for table in _tables(optimizer, rule, decay)
            ]
            for rule, optimizer, decay in product(RULES.values(), OPTIMIZERS.values(), DECAYS)
        },
        "python": PYTHON,
        **pools.contents(),
    }
    functions = ",\n".join(
        f"  ({{ {', '.join(SIZES)} }}) => {sympy.jscode(e)}" for e in pools.formulas
    )
    return (
        "// Written by website/formulas.py from mupscale.theory when the site is built.\n"
        "window.mupscaleFormulas = "
        f"{json.dumps(data, ensure_ascii=False, separators=(',', ':'))};\n"
        f"window.mupscaleFormulas.functions = [\n{functions},\n];\n"
    )


@dataclass(frozen=True)
class Column:
    """The scaling of one unit, and the Python that derives it."""

    scaling: Scaling
    code: str


@dataclass
class Pools:
    """Values that occur many times, stored once; references hold their index."""

    formulas: dict[Expr, int] = field(default_factory=dict[Expr, int])
    steps: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    notes: dict[str, int] = field(default_factory=dict[str, int])
    columns: dict[tuple[Any, ...], int] = field(default_factory=dict[tuple[Any, ...], int])

    def table(self, table: tuple[Iterable[Column], Iterable[str]]) -> Data:
        columns, notes = table
        return {
            "columns": [self._column(column) for column in columns],
            "notes": [_place(self.notes, note) for note in notes],
        }

    def _column(self, column: Column) -> int:
        formulas = tuple(
            _place(self.formulas, value) for value in column.scaling.expressions.values()
        )
        steps = tuple(
            _place(
                self.steps,
                (s.title, s.quantity[0], inline(s.value), s.reason, s.source, s.standing),
            )
            for s in column.scaling.steps
        )
        return _place(self.columns, (column.code, column.scaling.standing, formulas, steps))

    def contents(self) -> Data:
        n, inner = symbol("n"), symbol("inner")
        return {
            "formulas": [[inline(e), inline(tidy(e.subs(inner, n)))] for e in self.formulas],
            "steps": list(self.steps),
            "notes": list(self.notes),
            "columns": list(self.columns),
        }


def _place(pool: dict[Any, int], value: object) -> int:
    return pool.setdefault(value, len(pool))


def _tables(
    optimizer: Optimizer, rule: Rule, decay: Decay
) -> Iterator[tuple[list[Column], list[str]]]:
    """The table with multipliers in the forward pass, and with them folded, as in a plan."""
    scalings = {label: _derived(unit, optimizer, rule, decay) for label, unit in UNITS.items()}
    notes = RuleTable(scalings, optimizer, rule, decay).notes
    yield [Column(scaling, _call(scaling)) for scaling in scalings.values()], notes
    columns: list[Column] = []
    refusals: list[str] = []
    for label, scaling in scalings.items():
        try:
            columns.append(
                Column(
                    scaling.fold(), _call(scaling) + (".fold()" if scaling.multiplier != 1 else "")
                )
            )
        except NotExactError as error:
            columns.append(Column(scaling, _call(scaling)))
            refusals.append(f"{label}: {error}")
    yield columns, notes + refusals


def _derived(unit: Unit, optimizer: Optimizer, rule: Rule, decay: Decay) -> Scaling:
    try:
        return derive(unit, optimizer, rule=rule, decay=decay)
    except NotDerivedError:  # Muon and Shampoo leave this one to AdamW
        return derive(unit, "adamw", rule=rule, decay=decay)


def _call(scaling: Scaling) -> str:
    return f'mu.derive({source(scaling.unit)}, "{scaling.optimizer}", **choices)'


def source(unit: Unit) -> str:
    """The Python that creates a unit.

    >>> source(Residual(KeyValue("n", "r", "inner"), "L", output=False))
    'Residual(KeyValue("n", "r", inner="inner"), "L", output=False)'
    """
    arguments: list[str] = []
    for given in dataclasses.fields(unit):
        value = getattr(unit, given.name)
        if value != given.default:
            keyword = "" if given.default is dataclasses.MISSING else f"{given.name}="
            arguments.append(keyword + _literal(value))
    return f"{type(unit).__name__}({', '.join(arguments)})"


def _literal(value: object) -> str:
    if isinstance(value, Unit):
        return source(value)
    return f'"{value}"' if isinstance(value, sympy.Expr) else repr(value)


def _unit(label: str, unit: Unit) -> Data:
    core = unit.branch if isinstance(unit, Residual) else unit
    shape = " × ".join(inline(size) for size in unit.shape()) if core.grows_both_ways else ""
    return {"label": label, "shape": shape, "constant": core.initial == "constant"}


def _presets() -> Iterator[tuple[str, Data]]:
    """Well-known models, each with its proxy, except those with a tied readout: the page has no
    row for it.
    """
    for name, shape in SHAPES.items():
        if not shape.settings["tie_word_embeddings"]:
            thin = with_width(shape.settings, PROXY["width"], fixed=True) | {
                "num_hidden_layers": PROXY["depth"]
            }
            yield name, {"target": _sizes(shape.settings), "base": _sizes(thin)}


def _sizes(settings: Mapping[str, Any]) -> dict[str, int]:
    keys = {
        "n": "hidden_size",
        "L": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "d_ff": "intermediate_size",
    }
    return {name: settings[key] for name, key in keys.items()}
