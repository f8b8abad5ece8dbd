"""What a plan is made of: plain frozen values, one per parameter."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mupscale.reading import NOT_DRAWN, Role

Slices = tuple[tuple[int, int], ...]
Multipliers = Literal["fold", "hook"]


@dataclass(frozen=True)
class RowBlock:
    """The rows of q, k or v in a fused matrix, with the factors of a separate matrix."""

    role: Role
    slices: Slices
    """(start, stop) along the output axis."""
    init_std: float
    multiplier: float
    """What a hook multiplies their outputs by; 1 where the optimizer steps these rows alone."""
    lr: float
    weight_decay: float

    @property
    def outputs(self) -> int:
        return sum(stop - start for start, stop in self.slices)


@dataclass(frozen=True)
class PlannedParameter:
    """What one parameter gets: factors on the base values σ0, η0, λ0, ε0."""

    name: str
    template: str
    shape: tuple[int, ...]
    role: Role
    out_axis: int
    repetitions: int
    optimizer: str
    standing: str
    target: Mapping[str, int]
    """The dimensions put into the formulas; `L` for a parameter inside a block."""
    base: Mapping[str, int]
    output: bool
    """Whether it ends a residual branch, and so carries the branch's multiplier."""
    init_std: float
    lr: float
    weight_decay: float
    eps: float
    start: float | None = None
    """The stored value of a gain or bias at the start; None if it is drawn or left as it is."""
    multiplier: float = 1.0
    """What a hook multiplies by in the forward pass, in addition to the model's own constants."""
    folded: float = 1.0
    """The factor of the forward pass that was moved into the values above."""
    offset: float = 0.0
    """A gain that acts as 1 + weight has offset 1."""
    rows: tuple[RowBlock, ...] = ()
    kernel: bool = False
    """Whether it is the kernel of a convolution."""
    kept: str = ""
    """Why `initialize_` leaves it as the model made it; empty if it does not."""
    evidence: str = ""
    """How its role is known."""

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def drawn(self) -> bool:
        """Whether its role starts at random."""
        return self.role not in NOT_DRAWN

    @property
    def values(self) -> tuple[float, ...]:
        """The factors in the table: init, multiplier, rate, decay and epsilon."""
        return self.init_std, self.multiplier, self.lr, self.weight_decay, self.eps

    @property
    def row_multipliers(self) -> tuple[tuple[Slices, float], ...]:
        """The parts of a fused matrix whose outputs a hook multiplies."""
        return tuple((b.slices, b.multiplier) for b in self.rows if b.multiplier != 1)


@dataclass(frozen=True)
class Hook:
    """A factor in the forward pass of a module: on its output, its input or rows of its weight."""

    module: str
    where: Literal["output", "input", "rows"]
    factor: float = 1.0
    rows: tuple[tuple[Slices, float], ...] = ()
