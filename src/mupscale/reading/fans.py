"""The fans of a parameter and their axes: by its use in a forward pass, or by its module."""

import math
import re
from dataclasses import dataclass

from mupscale.reading.measuring import Measured
from mupscale.reading.roles import TABLES, Role
from mupscale.reading.structure import Entry
from mupscale.reading.traces import Use


@dataclass
class Fans:
    """Fans of a model's parameters."""

    measured: Measured | None
    width: int | None = None
    """The width of the residual stream, once it is known."""

    def _uses(self, entry: Entry, kind: str) -> list[Use]:
        return [] if self.measured is None else self.measured.uses(entry.name, kind)

    def is_kernel(self, entry: Entry) -> bool:
        """Whether it is the kernel of a convolution, by its use or by its module."""
        by_use = bool(self._uses(entry, "convolution"))
        return len(entry.shape) > 2 and (by_use or entry.kind == "convolution")

    def of(self, entry: Entry, role: Role) -> tuple[int, int]:
        """Outputs and inputs."""
        shape = entry.shape
        if len(shape) <= 1:
            return math.prod(shape), 1
        if self.is_kernel(entry):
            positions = math.prod(shape[2:])
            if self.out_axis(entry, "hidden") == 0:
                return shape[0], shape[1] * positions
            # A transposed convolution is stored as (in, out / groups, …).
            by_module = getattr(entry.owner, "groups", 1)
            groups = by_module if self.measured is None else self.measured.groups(entry.name)
            return shape[1] * groups, shape[0] // groups * positions
        if self._is_table(entry, role):
            return shape[-1], math.prod(shape[:-1])
        n_out, n_in = shape[-2:]
        return (n_in, n_out) if self._is_transposed(entry) else (n_out, n_in)

    def out_axis(self, entry: Entry, role: Role) -> int:
        """The axis of the stored tensor that holds the outputs."""
        last = len(entry.shape) - 1
        if last <= 0:
            return 0
        if self.is_kernel(entry):
            uses = self._uses(entry, "convolution")
            by_module = bool(getattr(entry.owner, "transposed", False))
            return 1 if (uses[0].out_axis == 1 if uses else by_module) else 0
        outputs_last = self._is_table(entry, role) or self._is_transposed(entry)
        return last if outputs_last else last - 1

    def _is_table(self, entry: Entry, role: Role) -> bool:
        """Whether it is looked up, not applied as a matrix as a projection of patches is."""
        if role not in TABLES:
            return False
        if self.measured is not None and self.measured.seen(entry.name):
            return self.measured.looked_up(entry.name) or not self.measured.multiplies(entry.name)
        return entry.kind not in ("linear", "convolution")

    def _is_transposed(self, entry: Entry) -> bool:
        """Whether the last axis holds the outputs, by the forward pass or by the module."""
        if self.measured is not None and not self.measured.looked_up(entry.name):
            axis = self.measured.out_axis(entry.name)
            if axis is not None:
                return axis == -1
        if len(entry.shape) == 3:
            return bool(getattr(entry.owner, "is_transposed", self._in_comes_first(entry)))
        return entry.transposed

    def _in_comes_first(self, entry: Entry) -> bool:
        """Stacked experts are (experts, out, in) unless the first matrix shows otherwise."""
        parameters = entry.owner.named_parameters()
        first = next((p for name, p in parameters if re.search(r"gate|up|w1", name)), None)
        if first is None or first.ndim != 3:
            return False
        return first.shape[1] == self.width != first.shape[2]
