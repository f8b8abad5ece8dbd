"""The role of a parameter: what its name suggests, compared with what a forward pass showed.

A contradiction is an error that shows both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mupscale.reading.measuring import FUSED, Measured
from mupscale.reading.roles import ANY_MATRIX, BRANCH_OUTPUTS, NOT_DRAWN, Role, role_row
from mupscale.reading.structure import Entry

NAME = "name"
CONFIRMED = "name, confirmed by a forward pass"
NAME_ONLY = "name alone: a forward pass does not use it"
USER = "you"
FROZEN = "frozen in the model"


@dataclass(frozen=True)
class Verdict:
    """A role and how it is known; the role is None if nothing settles it."""

    role: Role | None
    evidence: str
    contradiction: str = ""
    """What a forward pass showed, if that contradicts the name or the user."""


def _contradicts(shown: Role | None, role: Role) -> bool:
    return shown is not None and shown not in role_row(role).seen_as | ANY_MATRIX


def settle(
    entry: Entry, named: Role | None, chosen: str | None, seen: MeasuredUse | None
) -> Verdict:
    """The role of a parameter, from the user's choice, its name and a forward pass."""
    if chosen is not None:
        role: Role = chosen.removesuffix("!")  # pyright: ignore[reportAssignmentType]
        against = "" if chosen.endswith("!") else _against_user(entry, role, seen)
        return Verdict(role, USER, against)
    if named is None and not entry.tensor.requires_grad:
        return Verdict("frozen", FROZEN)
    if seen is None:
        return Verdict(named, NAME)
    shown, what = seen.role(entry)
    if not seen.measured.seen(entry.name):
        return Verdict(named, NAME_ONLY)
    if named is None:
        return Verdict(shown, f"a forward pass: {what}")
    if _contradicts(shown, named):
        return Verdict(named, NAME, what)
    # Where the residual stream could be followed, what is not in it ends no branch.
    if named in BRANCH_OUTPUTS and shown not in BRANCH_OUTPUTS and seen.measured.has_stream:
        return Verdict(named, NAME, f"{what}, and is not added to the residual stream")
    silent = "" if seen.measured.changes_output(entry.name) else "; it does not change the output"
    return Verdict(named, CONFIRMED + silent)


def _against_user(entry: Entry, role: Role, seen: MeasuredUse | None) -> str:
    """What contradicts the user's role, in words; empty if nothing does."""
    vector = sum(size > 1 for size in entry.shape) <= 1
    if vector and role not in NOT_DRAWN and role != "position":
        return f"is a vector of shape {entry.shape}, and {role} is for matrices"
    if seen is None or not seen.measured.seen(entry.name):
        return ""
    shown, what = seen.role(entry)
    if role != "hidden":
        return what if _contradicts(shown, role) else ""
    no_matrix = shown in ("depthwise", "embedding", "readout")
    if no_matrix or not seen.measured.multiplies(entry.name):
        return f"{what}, and hidden is for matrices that multiply"
    # A matrix may be planned as hidden although it is a query or ends a branch, but not as keys
    # or values: their rule depends on r, the number of query heads per key/value head.
    return what if shown in ("key", "value", "fused_qkv") else ""


class MeasuredUse:
    """Roles by what a forward pass showed, each with a description in words."""

    def __init__(self, measured: Measured, entries: Sequence[Entry]) -> None:
        self.measured = measured
        self._ends: dict[tuple[str | None, int | None], list[str]] = {}
        for entry in entries:
            if entry.name in measured.ends:
                self._ends.setdefault((entry.stack, entry.block), []).append(entry.name)
        self._roles: dict[str, tuple[Role | None, str]] = {}

    def role(self, entry: Entry) -> tuple[Role | None, str]:
        """The role that its use alone settles, or None; and its use in words."""
        if entry.name not in self._roles:
            self._roles[entry.name] = self._role(entry)
        return self._roles[entry.name]

    def _role(self, entry: Entry) -> tuple[Role | None, str]:
        seen, name = self.measured, entry.name
        if not seen.seen(name):
            return None, "is not used in a forward pass"
        if seen.looked_up(name):
            return self._table(entry)
        if seen.multiplies(name):
            return self._matrix(entry)
        return self._vector(entry)

    def _table(self, entry: Entry) -> tuple[Role | None, str]:
        factor = self.measured.factor(entry.name)
        if factor is None:
            return "position", "is looked up, for something other than the residual stream"
        plain = math.isnan(factor) or factor == 1
        return "embedding", "is looked up" if plain else f"is looked up, times {factor:.6g}"

    def _vector(self, entry: Entry) -> tuple[Role | None, str]:
        seen, name = self.measured, entry.name
        gain = seen.gain(name)
        if gain is not None:
            acts = f"weight + {gain.offset:g}" if gain.offset else "its weight"
            return "gain", f"multiplies what a norm gives, as {acts}"
        if seen.uses(name, "bias"):
            of = seen.bias_of(name)
            return "bias", f"is added to {f'the output of {of[0]}' if of else 'what a norm gives'}"
        if seen.uses(name, "scale"):
            return "gain", "scales activations channel by channel"
        if seen.uses(name, "added"):
            return "position", "is added to activations, position by position"
        if seen.uses(name, "joined"):
            if len(entry.shape) > 1:
                return "position", "is put beside activations, as a token"
            return None, "is put beside activations"
        return None, "enters through an operation that is not a product, a sum or a norm"

    def _matrix(self, entry: Entry) -> tuple[Role | None, str]:
        seen, name = self.measured, entry.name
        fed = seen.attention_roles.get(name, frozenset())
        if name in seen.readouts:
            return "readout", "multiplies, and the model returns the result"
        if seen.uses(name, "convolution"):
            return self._kernel(entry)
        if fed == FUSED:
            return "fused_qkv", "gives the queries, keys and values of an attention"
        if len(fed) == 1:
            (role,) = fed
            plural = {"query": "queries", "key": "keys", "value": "values"}
            return role, f"gives the {plural[role]} of an attention"
        if fed:
            return None, f"gives the {' and '.join(sorted(fed))} of an attention together"
        if name in seen.ends:
            return self._end(entry)
        if seen.from_input(name):
            return "embedding", "multiplies the model's own input"
        if seen.begins_stream(name):
            return "hidden", "multiplies, and the residual stream begins with the result"
        return self._inner(entry)

    def _end(self, entry: Entry) -> tuple[Role | None, str]:
        seen, name = self.measured, entry.name
        norm = seen.ends[name].normed_by
        how = f"through the norm {norm.module}, " if norm else ""
        into = f"is added, {how}to the residual stream"
        if seen.takes_attention(name):
            return "attention_output", f"takes what attention mixes and {into}"
        return "branch_output", into

    def _kernel(self, entry: Entry) -> tuple[Role | None, str]:
        seen, name = self.measured, entry.name
        if seen.groups(name) > 1 and entry.shape[1] == 1:
            return "depthwise", "filters each channel by itself"
        if seen.from_input(name):
            return "embedding", "is a convolution of the model's own input"
        if name in seen.ends:
            return "branch_output", "is a convolution whose result is added to the residual stream"
        return "hidden", "is a convolution"

    def _inner(self, entry: Entry) -> tuple[Role | None, str]:
        """A matrix between others: plain, unless its outputs choose experts or open a gate."""
        seen, name = self.measured, entry.name
        if seen.chooses(name):
            outputs = f"its {min(entry.shape)} outputs go into a softmax, a sigmoid or a choice"
            return None, f"multiplies; {outputs}"
        if not seen.feeds_matrix(name):
            return None, "multiplies, and where the result goes could not be followed"
        if any(seen.feeds(name, end) for end in self._ends.get((entry.stack, entry.block), [])):
            return "mlp_in", "multiplies, and feeds a matrix that ends a branch"
        return "hidden", "multiplies, and feeds another matrix"
