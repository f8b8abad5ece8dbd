"""How many outputs and inputs a parameter has, and along which axes: as it is used, or as its
module is known to do.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

from mupscale.reading.measuring import Measured
from mupscale.reading.roles import Role
from mupscale.reading.structure import Entry


@dataclass
class Fans:
    """Fans of a model's parameters."""

    measured: Measured | None
    width: int | None = None
    """Of the residual stream, once it is known."""

    def is_kernel(self, entry: Entry) -> bool:
        """Whether it is the kernel of a convolution, by its use or by its module."""
        by_use = self.measured is not None and bool(self.measured.uses(entry.name, "convolution"))
        return len(entry.shape) > 2 and (by_use or entry.kind == "convolution")

    def of(self, entry: Entry, role: Role) -> tuple[int, int]:
        """Outputs and inputs."""
        if len(entry.shape) <= 1:
            return math.prod(entry.shape), 1
        if self.is_kernel(entry):
            return self._kernel_fans(entry)
        if role in ("embedding", "position") and not self._multiplies(entry):
            return entry.shape[-1], math.prod(entry.shape[:-1])
        n_out, n_in = entry.shape[-2:]
        return (n_in, n_out) if self._is_transposed(entry) else (n_out, n_in)

    def _kernel_fans(self, entry: Entry) -> tuple[int, int]:
        """Of a convolution: its output channels, and the entries that each of them takes in."""
        owner: Any = entry.owner
        groups = (
            self.measured.groups(entry.name)
            if self.measured is not None
            else getattr(owner, "groups", 1)
        )
        places = math.prod(entry.shape[2:])
        if (
            self.out_axis(entry, "hidden") == 1
        ):  # a transposed convolution is stored as (in, out / groups, …)
            return entry.shape[1] * groups, entry.shape[0] // groups * places
        return entry.shape[0], entry.shape[1] * places

    def _multiplies(self, entry: Entry) -> bool:
        """Whether a table is applied as a matrix (a projection of patches), instead of being looked
        up.
        """
        if self.measured is not None and self.measured.seen(entry.name):
            return self.measured.multiplies(entry.name) and not self.measured.looked_up(entry.name)
        return entry.kind in ("linear", "convolution")

    def out_axis(self, entry: Entry, role: Role) -> int:
        """Which axis of the stored tensor holds the outputs."""
        if len(entry.shape) <= 1:
            return 0
        if self.is_kernel(entry):
            uses = [] if self.measured is None else self.measured.uses(entry.name, "convolution")
            transposed = (
                uses[0].out_axis == 1 if uses else bool(getattr(entry.owner, "transposed", False))
            )
            return 1 if transposed else 0
        if role in ("embedding", "position") and not self._multiplies(entry):
            return len(entry.shape) - 1
        return len(entry.shape) - (1 if self._is_transposed(entry) else 2)

    def _is_transposed(self, entry: Entry) -> bool:
        """Whether the last axis holds the outputs: as the forward pass uses it, or as its module is
        known to do.
        """
        axis = None if self.measured is None else self.measured.out_axis(entry.name)
        if axis is not None and not (
            self.measured is not None and self.measured.looked_up(entry.name)
        ):
            return axis == -1
        if len(entry.shape) == 3:
            return bool(getattr(entry.owner, "is_transposed", self._in_comes_first(entry)))
        return entry.transposed

    def _in_comes_first(self, entry: Entry) -> bool:
        """Stacked experts are (experts, out, in) unless the input side of the first matrix shows
        otherwise.
        """
        first = next(
            (p for name, p in entry.owner.named_parameters() if re.search(r"gate|up|w1", name)),
            None,
        )
        return (
            first is not None and first.ndim == 3 and first.shape[1] == self.width != first.shape[2]
        )
