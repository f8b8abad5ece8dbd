"""Factors by kind of weight, on top of what a rule gives: lr.embedding = 2 doubles its rate.

A rule says how values change with the size of a model. Which values are best at one size is a
matter of tuning, for each kind of weight: such a factor is found on the base and carried to the
target, where the rule multiplies it like any other base value.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from mupscale.errors import OptionError, UnknownNameError
from mupscale.planning.groups import plain_number, takes_no_eps
from mupscale.planning.values import PlannedParameter
from mupscale.reading import ROLES, Role
from mupscale.theory import optimizer_named

QUANTITIES: Mapping[str, str] = MappingProxyType(
    {"lr": "lr", "std": "init_std", "weight_decay": "weight_decay", "eps": "eps"}
)
"""What a factor can multiply, and the field of a planned parameter that holds it."""

_OWN_GROUP: Mapping[str, tuple[Role, ...]] = {
    "embedding": ("embedding", "position"),
    "readout": ("readout",),
    "gains": ("gain", "bias"),
}

GROUPS: Mapping[str, frozenset[Role]] = {
    **{name: frozenset(roles) for name, roles in _OWN_GROUP.items()},
    "hidden": frozenset(
        role
        for role in ROLES
        if role != "frozen" and not any(role in roles for roles in _OWN_GROUP.values())
    ),
}
"""Kinds of weights: each role belongs to one. A factor may also name a single role."""


def factor_names() -> list[str]:
    """Every name that a factor can have.

    >>> names = factor_names()
    >>> "lr.embedding" in names, "std.readout" in names, "weight_decay.mlp_out" in names
    (True, True, True)
    """
    kinds = [*GROUPS, *(role for role in ROLES if role not in (*GROUPS, "frozen"))]
    return [f"{quantity}.{kind}" for quantity in QUANTITIES for kind in kinds]


def roles_of(name: str) -> tuple[str, frozenset[Role]]:
    """The quantity of a factor and the roles it applies to.

    >>> quantity, roles = roles_of("lr.gains")
    >>> quantity, sorted(roles)
    ('lr', ['bias', 'gain'])
    """
    if name not in factor_names():
        raise UnknownNameError("factor", name, _SHORT, factor_names())
    quantity, _, kind = name.partition(".")
    return quantity, GROUPS.get(kind, frozenset(role for role in ROLES if role == kind))


_SHORT = [f"{quantity}.{kind}" for quantity in QUANTITIES for kind in GROUPS]
"""The names to list in an error."""


def check_factor(name: str, value: object) -> float:
    """A factor is a finite number above 0, with a known name."""
    roles_of(name)
    number = plain_number(value)
    if number is None or not math.isfinite(number) or number <= 0:
        raise OptionError(
            f"{name} = {value!r} must be a finite number above 0: it multiplies what the rule "
            "gives. 1 leaves it as it is."
        )
    return number


def multiplied(
    parameters: Mapping[str, PlannedParameter], factors: Mapping[str, float]
) -> dict[str, PlannedParameter]:
    """The parameters with their factors; several that apply to one are multiplied."""
    found = dict(parameters)
    for name, value in factors.items():
        factor, (quantity, roles) = check_factor(name, value), roles_of(name)
        _refuse_without_effect(name, quantity, roles, parameters.values())
        for key, parameter in found.items():
            found[key] = _times(parameter, quantity, roles, factor)
    return found


def applying(parameter: PlannedParameter, factors: Mapping[str, float]) -> dict[str, float]:
    """Those of the factors that reach a parameter, or some of its rows."""
    roles = {parameter.role, *(block.role for block in parameter.rows)}
    return {name: value for name, value in factors.items() if roles_of(name)[1] & roles}


def _times(
    parameter: PlannedParameter, quantity: str, roles: frozenset[Role], factor: float
) -> PlannedParameter:
    """A factor for keys reaches only their rows of a fused matrix."""
    field = QUANTITIES[quantity]
    whole = parameter.role in roles
    if whole:
        parameter = replace(parameter, **{field: getattr(parameter, field) * factor})
    if field == "eps":  # one for the whole matrix
        return parameter
    rows = tuple(
        replace(block, **{field: getattr(block, field) * factor})
        if whole or block.role in roles
        else block
        for block in parameter.rows
    )
    return replace(parameter, rows=rows)


def _refuse_without_effect(
    name: str, quantity: str, roles: frozenset[Role], parameters: Iterable[PlannedParameter]
) -> None:
    """An option that does nothing is a mistake."""
    every = list(parameters)
    own = [p for p in every if p.role in roles]
    in_rows = [p for p in every if any(block.role in roles for block in p.rows)]
    if not own and not in_rows:
        present = {p.role for p in every}
        has = [*(kind for kind, of_kind in GROUPS.items() if of_kind & present), *sorted(present)]
        known = ", ".join(dict.fromkeys(has))
        raise OptionError(f"{name}: the model has no such weights. It has {known}.")
    if not own and quantity != "std" and not _steps_rows(in_rows[0]):
        raise OptionError(
            f"{name}: {in_rows[0].name} fuses q, k and v, and its rows share one {quantity}. Use "
            f"{quantity}.fused_qkv or {quantity}.hidden."
        )
    reasons: dict[str, tuple[str, Callable[[PlannedParameter], bool]]] = {
        "std": ("starts at a constant, not at random", lambda p: not p.drawn),
        "weight_decay": ("is not decayed by the rules", lambda p: p.weight_decay == 0),
        "eps": ("is trained by an optimizer without epsilon", takes_no_eps),
    }
    if quantity in reasons:
        why, without = reasons[quantity]
        if own and all(without(p) for p in own):
            raise OptionError(f"{name}: {own[0].role} {why}, so the factor would do nothing.")


def _steps_rows(parameter: PlannedParameter) -> bool:
    """Whether the optimizer gives the rows of a fused matrix rates of their own."""
    return optimizer_named(parameter.optimizer).whole_matrix
