"""A plan for people: the table, one parameter explained, two plans compared."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sympy

from mupscale.planning.units import fused_unit, unit_for
from mupscale.planning.values import PlannedParameter, RowBlock
from mupscale.reading import ROLES, role_row
from mupscale.theory import FIELDS, LABELS, Decay, Rule, Scaling, derive
from mupscale.theory.formulas import Expr, inline, symbol, tidy

COLUMNS = (
    "role",
    "parameters",
    "out × in",
    "r",
    "init std",
    "multiplier",
    "lr",
    "decay",
    "eps",
    "why",
)


@dataclass(frozen=True)
class PlanRow:
    """Parameters of one role with the same values."""

    role: str
    templates: tuple[str, ...]
    count: int
    shape: tuple[int, ...]
    repetitions: int
    values: tuple[float, ...]
    why: str

    @property
    def cells(self) -> tuple[str, ...]:
        named = self.templates[0] + (
            f" (and {len(self.templates) - 1} more)" if len(self.templates) > 1 else ""
        )
        times = f" × {self.count}" if self.count > 1 else ""
        shape = " × ".join(str(n) for n in self.shape)
        # The rows of a fused matrix ("· key") show neither r nor a start of their own.
        role = None if self.role.startswith("·") else role_row(self.role)
        shared = str(self.repetitions) if role and role.shared else ""
        init, *others = (number(value) for value in self.values)
        start = "set" if role and role.start == "set" else init
        return self.role, named + times, shape, shared, start, *others, self.why


def number(value: float) -> str:
    """A factor in a cell.

    >>> number(0.125), number(8.0), number(1 / 3)
    ('0.125', '8', '0.3333')
    """
    return f"{value:.4g}"


def rows(parameters: Iterable[PlannedParameter], rule: Rule, decay: Decay) -> list[PlanRow]:
    """The table, grouped by role and values; rows of a fused matrix each have a line of their
    own.
    """
    grouped: dict[object, list[PlannedParameter]] = {}
    for p in parameters:
        blocks = tuple((b.role, b.init_std, b.multiplier, b.lr, b.weight_decay) for b in p.rows)
        grouped.setdefault(
            (p.role, p.values, p.repetitions, p.folded, p.standing, blocks), []
        ).append(p)
    table: list[PlanRow] = []
    for group in sorted(grouped.values(), key=lambda group: ROLES.index(group[0].role)):
        first, templates = group[0], tuple(dict.fromkeys(p.template for p in group))
        why = _why(first, rule, decay)
        table.append(
            PlanRow(
                first.role, templates, len(group), first.shape, first.repetitions, first.values, why
            )
        )
        table += [_block_row(first, block) for block in first.rows]
    return table


def _block_row(fused: PlannedParameter, block: RowBlock) -> PlanRow:
    count = sum(stop - start for start, stop in block.slices)
    values = (block.init_std, block.multiplier, block.lr, block.weight_decay, fused.eps)
    why = "a hook multiplies these rows" if block.multiplier != 1 else ""
    return PlanRow(f"· {block.role}", (f"{count} rows",), 1, (), fused.repetitions, values, why)


def _why(parameter: PlannedParameter, rule: Rule, decay: Decay) -> str:
    scaling = scaling_of(parameter, rule, decay)
    folded = f"; × {number(parameter.folded)} folded in" if parameter.folded != 1 else ""
    hooked = f"; × {number(parameter.multiplier)} by a hook" if parameter.multiplier != 1 else ""
    beyond = "" if scaling.standing == "derived" else f" ({scaling.standing})"
    by = f"{parameter.optimizer}: " if parameter.optimizer != "adamw" else ""
    return f"{by}lr {inline(_seen(scaling.lr, parameter))}{folded}{hooked}{beyond}"


def _seen(expression: Expr, parameter: PlannedParameter) -> Expr:
    """The formula as one would write it: where heads × head_dim is the width, without `inner`."""
    if all(
        numbers.get("inner") == numbers.get("n") for numbers in (parameter.target, parameter.base)
    ):
        return tidy(expression.subs(symbol("inner"), symbol("n")))
    return expression


def scaling_of(parameter: PlannedParameter, rule: Rule, decay: Decay) -> Scaling:
    """The derivation that a parameter's numbers come from."""
    in_block = "L" in parameter.target
    if parameter.rows:
        unit = fused_unit(in_block=in_block).q
    else:
        unit = unit_for(parameter.role, in_block=in_block, output=parameter.output)
    return derive(unit, parameter.optimizer, rule=rule, decay=decay)


def aligned(table: Sequence[PlanRow]) -> list[str]:
    """The table in columns."""
    cells = [COLUMNS, *(row.cells for row in table)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    return [lines[0], "─" * max(len(line) for line in lines), *lines[1:]]


def markdown(table: Sequence[PlanRow]) -> list[str]:
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(row.cells for row in table)]
    return [
        "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in line) + " |"
        for line in lines
    ]


def explain(parameter: PlannedParameter, rule: Rule, decay: Decay) -> str:
    """The derivation of one parameter's values, step by step, with its numbers put in."""
    scaling = scaling_of(parameter, rule, decay)
    here, there = _said(parameter.target), _said(parameter.base)
    lines = [
        f"{parameter.name}: {parameter.role}, {' × '.join(str(n) for n in parameter.shape)}",
        f"{scaling.unit} · {rule} · {scaling.optimizer} · {decay} decay · {scaling.standing}",
        f"here {here}; in the base {there}",
        *([f"its role is known by: {parameter.evidence}"] if parameter.evidence else []),
        "",
    ]
    for name in FIELDS:
        lines.append(f"  {LABELS[name]:<14} {_with_numbers(getattr(scaling, name), parameter)}")
    lines += _consequences(parameter)
    lines += [f"\n  note: {caveat}" for caveat in scaling.caveats]
    for k, step in enumerate(scaling.steps, start=1):
        lines += [
            "",
            f"{k}. {step.title}" + ("" if step.standing == "derived" else f"  ({step.standing})"),
            f"     {step.quantity[0]} = {_with_numbers(step.value, parameter)}",
            textwrap.fill(
                f"why: {step.reason}", 112, initial_indent=" " * 5, subsequent_indent=" " * 10
            ),
            f"     [{step.source}]",
        ]
    return "\n".join(lines)


def _said(dimensions: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in dimensions.items())


def _with_numbers(expression: Expr, parameter: PlannedParameter) -> str:
    """A formula, its value here and in the base, and their ratio."""
    expression = _seen(expression, parameter)
    if not expression.free_symbols:
        return inline(expression)
    here, there = (
        float(sympy.N(expression.subs({symbol(k): v for k, v in numbers.items()})))
        for numbers in (parameter.target, parameter.base)
    )
    return f"{inline(expression)} = {here:.6g} here, {there:.6g} in the base: factor {here / there:.6g}"


def _consequences(parameter: PlannedParameter) -> list[str]:
    """What was folded or hooked, and what the optimizer and the initialization get in the end."""
    lines: list[str] = []
    if parameter.folded != 1:
        lines += [
            "",
            f"  × {parameter.folded:.6g} of the forward pass is folded into the parameter (W' = "
            "aW, g' = g/a)",
        ]
    if parameter.multiplier != 1:
        lines += ["", f"  × {parameter.multiplier:.6g} is a hook in the forward pass"]
    for block in parameter.rows:
        count = sum(stop - start for start, stop in block.slices)
        lines.append(
            f"  {block.role} rows ({count}): init std × {block.init_std:.6g}, a hook multiplies "
            "them by "
            f"{block.multiplier:.6g}; they train at lr × {block.lr:.6g}"
        )
    starts = f"init std × {parameter.init_std:.6g}" if parameter.drawn else _start(parameter)
    lines += [
        "",
        f"  gets: {starts}, lr × {parameter.lr:.6g}, weight decay × {parameter.weight_decay:.6g}, "
        f"eps × {parameter.eps:.6g}",
    ]
    return lines


def _start(parameter: PlannedParameter) -> str:
    return (
        "starts as the model made it"
        if parameter.start is None
        else f"starts at {parameter.start:g}"
    )


@dataclass(frozen=True)
class Difference:
    """One value in which two plans differ, for all parameters of one template."""

    template: str
    field: str
    mine: object
    other: object

    def __str__(self) -> str:
        return f"{self.template}: {self.field} {_shown(self.mine)} → {_shown(self.other)}"


class Differences(tuple[Difference, ...]):
    """What differs between two plans; prints itself line by line."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(str(difference) for difference in self) or "no difference"


_COMPARED = ("role", "shape", "repetitions", "optimizer", "init_std", "start", "multiplier", "folded", "lr",
             "weight_decay", "eps", "rows")  # fmt: skip


def plan_differences(
    mine: Mapping[str, PlannedParameter],
    other: Mapping[str, PlannedParameter],
    settings: Iterable[Difference],
) -> Differences:
    """Settings first, then values by template, then parameters that only one of the two has."""
    found = list(settings)
    for name in [*mine, *(name for name in other if name not in mine)]:
        if name in mine and name in other:
            fields = [
                (field, getattr(mine[name], field), getattr(other[name], field))
                for field in _COMPARED
            ]
        else:
            fields = [("present", name in mine, name in other)]
        template = (mine.get(name) or other[name]).template
        found += [
            Difference(template, field, left, right)
            for field, left, right in fields
            if left != right
        ]
    # the same difference in every layer is one; by what it says, since settings hold what cannot be
    # hashed
    return Differences({repr(difference): difference for difference in found}.values())


def _shown(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)
