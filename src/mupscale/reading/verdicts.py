"""What a parameter is: its name's claim beside what a forward pass showed. A contradiction is an
error with both.
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
SAID = "you"
FROZEN = "frozen in the model"


@dataclass(frozen=True)
class Verdict:
    """A role and how it is known; no role where nothing settles it."""

    role: Role | None
    evidence: str
    contradiction: str = ""
    """What a forward pass showed, where that contradicts the name or the user."""


def _contradicts(shown: Role | None, role: Role) -> bool:
    return shown is not None and shown not in role_row(role).seen_as | ANY_MATRIX


def settle(entry: Entry, named: Role | None, said: str | None, seen: MeasuredUse | None) -> Verdict:
    """The role of a parameter, from its name, from what the user said, and from a forward pass."""
    if said is not None:
        return _as_said(entry, said, seen)
    if named is None and not entry.tensor.requires_grad:
        return Verdict("frozen", FROZEN)
    if seen is None:
        return Verdict(named, NAME)
    role, what = seen.role(entry)
    if not seen.measured.seen(entry.name):
        return Verdict(named, NAME_ONLY)
    if named is None:
        return Verdict(role, f"a forward pass: {what}")
    if _contradicts(role, named):
        return Verdict(named, NAME, what)
    if named in BRANCH_OUTPUTS and role not in BRANCH_OUTPUTS and seen.whole:
        return Verdict(named, NAME, f"{what}, and is not added to the residual stream")
    silent = "" if seen.measured.changes_output(entry.name) else "; it does not change the output"
    return Verdict(named, CONFIRMED + silent)


def _as_said(entry: Entry, said: str, seen: MeasuredUse | None) -> Verdict:
    role: Role = said.removesuffix("!")  # pyright: ignore[reportAssignmentType]
    if said.endswith("!"):
        return Verdict(role, SAID)
    vector = sum(size > 1 for size in entry.shape) <= 1
    if vector and role not in NOT_DRAWN and role != "position":
        return Verdict(
            role, SAID, f"is a vector of shape {entry.shape}, and {role} is for matrices"
        )
    if seen is None or not seen.measured.seen(entry.name):
        return Verdict(role, SAID)
    found, what = seen.role(entry)
    if role == "hidden":
        plain = seen.measured.multiplies(entry.name) and found not in (
            "depthwise",
            "embedding",
            "readout",
        )
        if not plain:
            return Verdict(role, SAID, f"{what}, and hidden is for matrices that multiply")
        if found in ("key", "value", "fused_qkv"):
            return Verdict(role, SAID, what)
        return Verdict(role, SAID)
    if _contradicts(found, role):
        return Verdict(role, SAID, what)
    return Verdict(role, SAID)


class MeasuredUse:
    """Roles by what a forward pass showed."""

    def __init__(self, measured: Measured, entries: Sequence[Entry]) -> None:
        self.measured = measured
        self._ends: dict[tuple[str | None, int | None], list[str]] = {}
        for entry in entries:
            if entry.name in measured.ends:
                self._ends.setdefault((entry.stack, entry.block), []).append(entry.name)
        self._known: dict[str, tuple[Role | None, str]] = {}

    @property
    def whole(self) -> bool:
        """Whether the residual stream could be followed to the end, so that what is not in it ends
        no branch.
        """
        return self.measured.has_stream

    def role(self, entry: Entry) -> tuple[Role | None, str]:
        """The role that is settled by use alone, or none; and what was seen, in words."""
        if entry.name not in self._known:
            self._known[entry.name] = self._role(entry)
        return self._known[entry.name]

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
        times = (
            "" if factor is None or math.isnan(factor) or factor == 1 else f", times {factor:.6g}"
        )
        if factor is None:
            return "position", "is looked up, for something other than the residual stream"
        return "embedding", f"is looked up{times}"

    def _vector(self, entry: Entry) -> tuple[Role | None, str]:
        seen, name = self.measured, entry.name
        gain = seen.gain(name)
        if gain is not None:
            acts = f"weight + {gain.offset:g}" if gain.offset else "its weight"
            return "gain", f"multiplies what a norm gives, as {acts}"
        if seen.uses(name, "bias"):
            of = seen.bias_of(name)
            return (
                "bias",
                f"is added to what comes out of {of[0]}" if of else "is added to what a norm gives",
            )
        if seen.uses(name, "scale"):
            return "gain", "scales activations channel by channel"
        if seen.uses(name, "added"):
            return "position", "is added to activations, place by place"
        if seen.uses(name, "joined"):
            token = len(entry.shape) > 1
            return "position" if token else None, "is put beside activations" + (
                ", as a token" if token else ""
            )
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
        if seen.takes_attention(name):
            return (
                "attention_output",
                f"takes what attention mixes and is added, {how}to the residual stream",
            )
        return "branch_output", f"is added, {how}to the residual stream"

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
        """A matrix between others: plain, unless its outputs choose something (experts, how far a
        gate opens).
        """
        seen, name = self.measured, entry.name
        if seen.chooses(name):
            return (
                None,
                f"multiplies; its {min(entry.shape)} outputs go into a softmax, a sigmoid or a "
                "choice",
            )
        if not seen.feeds_matrix(name):
            return None, "multiplies, and where the result goes could not be followed"
        if any(seen.feeds(name, end) for end in self._ends.get((entry.stack, entry.block), [])):
            return "mlp_in", "multiplies, and feeds a matrix that ends a branch"
        return "hidden", "multiplies, and feeds another matrix"
