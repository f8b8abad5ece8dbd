"""A plan for people: the table, one parameter explained, two plans compared."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sympy

from mupscale.planning.units import fused_unit, scaling_for, unit_for
from mupscale.planning.values import PlannedParameter, RowBlock
from mupscale.reading import ROLES, role_row
from mupscale.text import markdown_table, text_table, wrapped
from mupscale.theory import FIELDS, LABELS, Decay, Rule, Scaling
from mupscale.theory.formulas import Expr, inline, symbol, tidy

HEAD = (
    *("role", "parameters", "shape", "r"),
    *("init std", "multiplier", "lr", "decay", "eps", "why"),
)


def number(value: float) -> str:
    """A factor in a cell.

    >>> number(0.125), number(8.0), number(1 / 3)
    ('0.125', '8', '0.3333')
    """
    return f"{value:.4g}"


def rows(parameters: Iterable[PlannedParameter], rule: Rule, decay: Decay) -> list[tuple[str, ...]]:
    """The cells of the table: one row per role and values, and one per part of a fused matrix."""
    grouped: dict[object, list[PlannedParameter]] = {}
    for p in parameters:
        blocks = tuple((b.role, b.init_std, b.multiplier, b.lr, b.weight_decay) for b in p.rows)
        key = (p.role, p.values, p.repetitions, p.folded, p.standing, blocks)
        grouped.setdefault(key, []).append(p)
    table: list[tuple[str, ...]] = []
    for group in sorted(grouped.values(), key=lambda group: ROLES.index(group[0].role)):
        table += [_row(group, rule, decay), *(_block_row(group[0], b) for b in group[0].rows)]
    return table


def _row(group: list[PlannedParameter], rule: Rule, decay: Decay) -> tuple[str, ...]:
    first, templates = group[0], list(dict.fromkeys(p.template for p in group))
    more = f" (and {len(templates) - 1} more)" if len(templates) > 1 else ""
    times = f" × {len(group)}" if len(group) > 1 else ""
    role = role_row(first.role)
    shared = str(first.repetitions) if role.shared else ""
    init, *others = map(number, first.values)
    start = "set" if role.start == "set" else init
    shape, why = _shape(first), _why(first, rule, decay)
    return first.role, templates[0] + more + times, shape, shared, start, *others, why


def _block_row(fused: PlannedParameter, block: RowBlock) -> tuple[str, ...]:
    values = (block.init_std, block.multiplier, block.lr, block.weight_decay, fused.eps)
    why = "a hook multiplies these rows" if block.multiplier != 1 else ""
    return f"· {block.role}", f"{block.outputs} rows", "", "", *map(number, values), why


def _shape(parameter: PlannedParameter) -> str:
    return " × ".join(map(str, parameter.shape))


def _why(parameter: PlannedParameter, rule: Rule, decay: Decay) -> str:
    scaling = scaling_of(parameter, rule, decay)
    folded = f"; × {number(parameter.folded)} folded in" if parameter.folded != 1 else ""
    hooked = f"; × {number(parameter.multiplier)} by a hook" if parameter.multiplier != 1 else ""
    beyond = "" if scaling.standing == "derived" else f" ({scaling.standing})"
    by = f"{parameter.optimizer}: " if parameter.optimizer != "adamw" else ""
    return f"{by}lr {inline(_readable(scaling.lr, parameter))}{folded}{hooked}{beyond}"


def _readable(expression: Expr, parameter: PlannedParameter) -> Expr:
    """The formula as one would write it: where heads × head_dim is the width, without `inner`."""
    both = (parameter.target, parameter.base)
    if all(sizes.get("inner") == sizes.get("n") for sizes in both):
        return tidy(expression.subs(symbol("inner"), symbol("n")))
    return expression


def scaling_of(parameter: PlannedParameter, rule: Rule, decay: Decay) -> Scaling:
    """The derivation that a parameter's numbers come from."""
    in_block = "L" in parameter.target
    if parameter.rows:
        unit = fused_unit(in_block=in_block).q
    else:
        unit = unit_for(parameter.role, in_block=in_block, output=parameter.output)
    return scaling_for(unit, parameter.optimizer, rule, decay)


def assumptions(
    parameters: Iterable[PlannedParameter], rule: Rule, decay: Decay, reference_r: int | None
) -> list[str]:
    """What the key/value factors rest on, one sentence per distinct factor, with its roles."""
    found: dict[str, dict[str, None]] = {}
    alike = {(p.role, p.optimizer, *p.target.items(), *p.base.items()): p for p in parameters}
    for p in alike.values():  # layers say the same
        for role, scaling in _shared(p, rule, decay):
            words = _assumption(scaling, p, reference_r)
            if words:
                found.setdefault(words, {})[role] = None
    return [f"{', '.join(roles)}: {words}" for words, roles in found.items()]


def _shared(p: PlannedParameter, rule: Rule, decay: Decay) -> Iterable[tuple[str, Scaling]]:
    """Its keys and values, alone or as rows."""
    roles = [block.role for block in p.rows] or [p.role]
    shared = [role for role in roles if role in ("key", "value")]
    units = {role: unit_for(role, in_block="L" in p.target) for role in shared}
    return [(role, scaling_for(unit, p.optimizer, rule, decay)) for role, unit in units.items()]


def _assumption(scaling: Scaling, p: PlannedParameter, reference_r: int | None) -> str:
    """Empty without repeated heads, and where a factor of 1 meets a base with the same r."""
    given, there = scaling.assumption, dict(p.base)
    if reference_r is not None:
        there["r"] = reference_r
    same_r = p.target["r"] == there["r"]
    if given is None or (same_r and (there["r"] == 1 or given.factor == 1)):
        return ""
    here, base = (
        given.factor.subs({symbol(name): value for name, value in sizes.items()})
        for sizes in (p.target, there)
    )
    cancels = "; the base has the same factor, so it cancels" if here == base != 1 else ""
    return given.text(lambda formula: _readable(formula, p)) + cancels


def text(table: list[tuple[str, ...]]) -> str:
    """The table at the terminal's width, without columns that say the same in every row."""
    dull = {"r": "", "multiplier": "1"}
    shown = [k for k, name in enumerate(HEAD) if any(row[k] != dull.get(name) for row in table)]
    head = [{"multiplier": "mult."}.get(HEAD[k], HEAD[k]) for k in shown]
    return text_table(
        head, [[row[k] for k in shown] for row in table], details=("why", "parameters")
    )


def markdown(table: list[tuple[str, ...]]) -> str:
    return markdown_table(HEAD, [[cell.replace("*", "\\*") for cell in row] for row in table])


def explain(
    parameter: PlannedParameter,
    rule: Rule,
    decay: Decay,
    reference_r: int | None,
    tuned: Mapping[str, float],
) -> str:
    """The derivation of one parameter's values, step by step, with its numbers put in."""
    scaling = scaling_of(parameter, rule, decay)
    here, there = (
        ", ".join(f"{name} = {value}" for name, value in sizes.items())
        for sizes in (parameter.target, parameter.base)
    )
    lines = [
        wrapped(f"{parameter.name}: {parameter.role}, {_shape(parameter)}"),
        wrapped(
            f"{scaling.unit} · {rule} · {scaling.optimizer} · {decay} decay · {scaling.standing}"
        ),
        wrapped(f"here {here}; in the base {there}"),
        *([wrapped(f"role known by: {parameter.evidence}")] if parameter.evidence else []),
        "",
    ]
    for name in FIELDS:
        value = _with_numbers(getattr(scaling, name), parameter)
        lines.append(wrapped(f"{LABELS[name]:<14} {value}", "  ", " " * 17))
    lines += _consequences(parameter, tuned)
    for note in (*scaling.caveats, *assumptions([parameter], rule, decay, reference_r)):
        lines += ["", wrapped(f"note: {note}", "  ", " " * 8)]
    for k, step in enumerate(scaling.steps, start=1):
        standing = "" if step.standing == "derived" else f"  ({step.standing})"
        value = _with_numbers(step.value, parameter)
        lines += [
            "",
            wrapped(f"{k}. {step.title}{standing}"),
            wrapped(f"{step.quantity[0]} = {value}", " " * 5, " " * 10),
            wrapped(f"why: {step.reason}", " " * 5, " " * 10),
            wrapped(f"[{step.source}]", " " * 5, " " * 6),
        ]
    return "\n".join(lines)


def _with_numbers(expression: Expr, parameter: PlannedParameter) -> str:
    """A formula, its value here and in the base, and their ratio."""
    expression = _readable(expression, parameter)
    if not expression.free_symbols:
        return inline(expression)
    here, there = (
        float(sympy.N(expression.subs({symbol(k): v for k, v in sizes.items()})))
        for sizes in (parameter.target, parameter.base)
    )
    values = f"{here:.6g} here, {there:.6g} in the base: factor {here / there:.6g}"
    return f"{inline(expression)} = {values}"


def _consequences(parameter: PlannedParameter, tuned: Mapping[str, float]) -> list[str]:
    """What was folded, hooked or tuned, and the factors that the parameter gets in the end."""
    lines: list[str] = []
    for name, value in tuned.items():
        lines += ["", wrapped(f"× {value:.6g} on {name.partition('.')[0]}: {name} was tuned", "  ")]
    if parameter.folded != 1:
        folded = "of the forward pass is folded into the parameter (W' = aW, g' = g/a)"
        lines += ["", wrapped(f"× {parameter.folded:.6g} {folded}", "  ")]
    if parameter.multiplier != 1:
        lines += ["", f"  × {parameter.multiplier:.6g} is a hook in the forward pass"]
    for block in parameter.rows:
        rows = (
            f"{block.role} rows ({block.outputs}): init std × {block.init_std:.6g}, a hook "
            f"multiplies them by {block.multiplier:.6g}; they train at lr × {block.lr:.6g}"
        )
        lines.append(wrapped(rows, "  ", " " * 4))
    start = (
        f"init std × {parameter.init_std:.6g}" if parameter.drawn
        else "starts as the model made it" if parameter.start is None
        else f"starts at {parameter.start:g}"
    )  # fmt: skip
    factors = {"lr": parameter.lr, "weight decay": parameter.weight_decay, "eps": parameter.eps}
    gets = ", ".join([start, *(f"{name} × {value:.6g}" for name, value in factors.items())])
    return [*lines, "", wrapped(f"gets: {gets}", "  ", " " * 8)]


@dataclass(frozen=True)
class Difference:
    """One value in which two plans differ, for all parameters of one template."""

    template: str
    field: str
    mine: object
    other: object

    def __str__(self) -> str:
        mine, other = (
            number(value) if isinstance(value, float) else str(value)
            for value in (self.mine, self.other)
        )
        return f"{self.template}: {self.field} {mine} → {other}"


class Differences(tuple[Difference, ...]):
    """The differences between two plans; prints one per line."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(str(difference) for difference in self) or "no difference"


_COMPARED = [
    *("role", "shape", "repetitions", "optimizer", "init_std", "start"),
    *("multiplier", "folded", "lr", "weight_decay", "eps", "rows"),
]


def plan_differences(
    mine: Mapping[str, PlannedParameter],
    other: Mapping[str, PlannedParameter],
    settings: Iterable[Difference],
) -> Differences:
    """Settings first, then values by template, then parameters that only one of the two has."""
    differences = list(settings)
    for name in {**mine, **other}:
        template = (mine.get(name) or other[name]).template
        if name in mine and name in other:
            fields = [(f, getattr(mine[name], f), getattr(other[name], f)) for f in _COMPARED]
        else:
            fields = [("present", name in mine, name in other)]
        differences += [
            Difference(template, *values) for values in fields if values[1] != values[2]
        ]
    # The same difference in every layer is one; by its repr, since settings may not be hashable.
    return Differences({repr(difference): difference for difference in differences}.values())
