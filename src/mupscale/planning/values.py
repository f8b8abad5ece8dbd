"""What a plan is made of: plain frozen values, one for each parameter."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mupscale.reading import NOT_DRAWN, Role

Slices = tuple[tuple[int, int], ...]
Multipliers = Literal["fold", "hook"]


@dataclass(frozen=True)
class RowBlock:
    """The rows of q, k or v in a fused matrix, and the factors they would have in a matrix of their
    own.
    """

    role: Role
    slices: Slices
    """(start, stop) along the output axis."""
    init_std: float
    multiplier: float
    """What a hook multiplies their outputs by; 1 where the optimizer steps the rows by
    themselves.
    """
    lr: float
    weight_decay: float


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
    """What a gain or bias is set to (its stored value); None for what is drawn, or left as the
    model made it.
    """
    multiplier: float = 1.0
    """What a hook multiplies by in the forward pass, beyond the model's own constants."""
    folded: float = 1.0
    """What has been moved from the forward pass into the values above."""
    offset: float = 0.0
    """A gain that acts as 1 + weight has offset 1."""
    rows: tuple[RowBlock, ...] = ()
    kernel: bool = False
    """Whether it is the kernel of a convolution."""
    kept: str = ""
    """Why `initialize_` leaves it as the model made it; empty where it does not."""
    evidence: str = ""
    """How its role is known."""

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def drawn(self) -> bool:
        """Whether it starts at random."""
        return self.role not in NOT_DRAWN

    @property
    def values(self) -> tuple[float, ...]:
        """Init, multiplier, rate, decay and epsilon: what the table shows."""
        return self.init_std, self.multiplier, self.lr, self.weight_decay, self.eps


@dataclass(frozen=True)
class Hook:
    """A factor in the forward pass of one module: on its output, on its input, or on the rows of
    its weight.
    """

    module: str
    where: Literal["output", "input", "rows"]
    factor: float = 1.0
    rows: tuple[tuple[Slices, float], ...] = ()
