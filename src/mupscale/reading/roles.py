"""The registry of roles: one row for each role that a parameter can have.

To add a role, add its name to `Role` and its row to `ROLE_ROWS`. Nothing has a default: a role
without a row raises an error wherever it is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

from mupscale.errors import UnknownNameError
from mupscale.theory import (
    Dense,
    Embedding,
    Expert,
    KeyValue,
    LowRank,
    Readout,
    Router,
    Table,
    Unit,
    Vector,
)

Role = Literal[
    "embedding", "position", "query", "key", "value", "fused_qkv", "attention_output",
    "low_rank_down", "low_rank_up", "mlp_in", "mlp_out", "router", "expert_in", "expert_out",
    "hidden", "branch_output", "depthwise", "gain", "bias", "readout", "frozen",
]  # fmt: skip
ROLES: tuple[Role, ...] = get_args(Role)

Kind = Literal["matrix", "table", "vector"]
"""A table has a row of n_out numbers for each of a fixed number of inputs: tokens, positions,
pixels of a patch, taps of a filter.
"""
Dimension = Literal["width", "inner", "d_ff"]
"""What a fan can grow with: the width, query heads × head_dim, or the units of the MLP."""


@dataclass(frozen=True)
class RoleRow:
    """What every room needs to know about a role."""

    unit: Unit
    """Its unit in the theory. A fused matrix is dense here; planning splits its rows."""
    grows: tuple[Dimension | None, Dimension | None]
    """What its outputs and its inputs grow with; None for a number that stays fixed."""
    seen_as: frozenset[Role]
    """What a forward pass may show it to be, in addition to `ANY_MATRIX`."""
    start: Literal["drawn", "set", "kept"] = "drawn"
    """Drawn at random, set to a constant, or left as the model made it."""
    takes_width: bool = False
    """Whether its inputs must equal the width before a name alone is believed."""
    ends_branch: bool = False
    """Whether it ends a residual branch, and so carries the branch's multiplier."""
    shared: bool = False
    """Whether it holds keys or values, which several query heads may share."""

    @property
    def kind(self) -> Kind:
        match self.unit:
            case Embedding():
                return "table"
            case Vector():
                return "vector"
            case _:
                return "matrix"


def _roles(*names: Role) -> frozenset[Role]:
    return frozenset(names)


ANY_MATRIX = _roles("hidden", "mlp_in")
"""Shown for a matrix that multiplies and feeds another one, which contradicts no name."""

TABLES = _roles("embedding", "position")
"""Tables that are looked up, or added position by position."""
_HEADS = _roles("query", "key", "value")
_ENDS = _roles("attention_output", "branch_output")
_DENSE = Dense("n_out", "n_in", width="n")
_KEY, _VALUE = (KeyValue("n", "r", "inner", part) for part in ("key", "value"))
_LOW_RANK = LowRank("n_out", "n_in", width="n")
_EXPERT = Expert("n_out", "n_in", width="n", active="active/experts")

# fmt: off
ROLE_ROWS: Mapping[Role, RoleRow] = {  # in the order of every table that lists roles
    "embedding": RoleRow(Embedding("n"), ("width", None), TABLES),
    "position": RoleRow(Table("n"), ("width", None), TABLES),
    "query": RoleRow(_DENSE, ("inner", "width"), _roles("query"), takes_width=True),
    "key": RoleRow(_KEY, ("inner", "width"), _roles("key"), takes_width=True, shared=True),
    "value": RoleRow(_VALUE, ("inner", "width"), _roles("value"), takes_width=True, shared=True),
    "fused_qkv": RoleRow(
        _DENSE, ("inner", "width"), _HEADS | _roles("fused_qkv"), takes_width=True, shared=True
    ),
    "attention_output": RoleRow(_DENSE, ("width", "inner"), _ENDS, ends_branch=True),
    "low_rank_down": RoleRow(_LOW_RANK, ("width", "width"), _HEADS | _ENDS, takes_width=True),
    "low_rank_up": RoleRow(_LOW_RANK, ("width", "width"), _HEADS | _ENDS),
    "mlp_in": RoleRow(_DENSE, ("d_ff", "width"), _roles(), takes_width=True),
    "mlp_out": RoleRow(_DENSE, ("width", "d_ff"), _ENDS, ends_branch=True),
    "router": RoleRow(Router("n"), (None, "width"), _roles(), takes_width=True),
    "expert_in": RoleRow(_EXPERT, ("d_ff", "width"), _roles(), takes_width=True),
    "expert_out": RoleRow(_EXPERT, ("width", "d_ff"), _ENDS, ends_branch=True),
    "hidden": RoleRow(_DENSE, ("width", "width"), _roles()),
    "branch_output": RoleRow(_DENSE, ("width", "width"), _ENDS, ends_branch=True),
    "depthwise": RoleRow(Table("n"), ("width", None), _roles("depthwise")),
    "gain": RoleRow(Vector("n"), (None, None), _roles("gain"), start="set"),
    "bias": RoleRow(Vector("n"), (None, None), _roles("bias"), start="set"),
    "readout": RoleRow(Readout("n"), (None, "width"), _roles("readout")),
    "frozen": RoleRow(Vector("n"), (None, None), _roles(), start="kept"),
}
# fmt: on

BRANCH_OUTPUTS = frozenset(role for role in ROLES if ROLE_ROWS[role].ends_branch)
EXPERTS = frozenset(role for role in ROLES if ROLE_ROWS[role].unit is _EXPERT)
NOT_DRAWN = frozenset(role for role in ROLES if ROLE_ROWS[role].start != "drawn")


def role_row(role: str) -> RoleRow:
    """The row of a role; an unknown role raises an error that names it.

    >>> print(role_row("key").unit)
    KeyValue(n, r, inner=inner)
    """
    row = ROLE_ROWS.get(cast(Role, role))
    if row is None:
        raise UnknownNameError("role", role, ROLES)
    return row
