"""What is known about a model's parameters: one fact each, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from mupscale.reading.roles import Role

Made = Literal["drawn", "constant", "frozen", "unknown"]
"""How the model itself made a tensor; unknown on the meta device, where there are no numbers."""


@dataclass(frozen=True)
class BlockFact:
    """Some outputs of a fused matrix: `slices` are (start, stop) along its output axis."""

    role: Role
    slices: tuple[tuple[int, int], ...]

    @property
    def outputs(self) -> int:
        return sum(stop - start for start, stop in self.slices)


@dataclass(frozen=True)
class ParameterFact:
    """What one parameter is. Names are those of the model without wrappers (DDP, torch.compile)."""

    name: str
    shape: tuple[int, ...]
    role: Role
    fan_in: int
    fan_out: int
    out_axis: int
    """The axis of the stored tensor that holds the outputs."""
    width: int
    """The embedding width of the model."""
    depth: int | None = None
    """The number of blocks, for a parameter inside one; None outside."""
    output: bool = False
    """Whether it ends a residual branch."""
    repetitions: int = 1
    """Query heads per key/value head."""
    inner: int | None = None
    """Query heads × head_dim, for attention."""
    active: float = 1.0
    """The share of tokens that reach it: active / all experts."""
    forward_multiplier: float = 1.0
    """A constant that the model's own forward pass multiplies its output by."""
    unseen_constant: bool = False
    """Whether the forward pass multiplies it by a constant whose value is not visible."""
    fixed: bool = False
    """A vector with the same length at any width: a gain that heads share, a bias of logits."""
    offset: float = 0.0
    """A gain that acts as 1 + weight has offset 1."""
    start: float | None = None
    """What it acts as at the start; None if drawn, or set by the model to several values."""
    normed_by: str | None = None
    """The module of the norm between a branch's output and the residual stream: a post-norm."""
    tied: tuple[str, ...] = ()
    """Other names of the same tensor."""
    blocks: tuple[BlockFact, ...] = ()
    """The parts of a fused matrix; empty if their layout is not known."""
    kernel: bool = False
    """Whether it is the kernel of a convolution: a matrix of (outputs) × (inputs × positions)."""
    made: Made = "unknown"
    evidence: str = ""
    """How this is known: by name, by following a forward pass, or from the user."""
    post_norm: bool = False
    """Whether it ends a branch on a stream that is normalized after each sum, as in BERT."""
    template: str = ""
    """The name with * for the block's index: the same in a deeper model."""


@dataclass(frozen=True)
class ModelFacts:
    """Every parameter of a model by name, and the facts about the model as a whole."""

    parameters: Mapping[str, ParameterFact]
    architecture: type[nn.Module]
    """The class of the model."""
    width: int
    depth: int
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    final_gain: str | None = None
    """The gain of the norm before the readout."""
    final_norm: str | None = None
    """The module of that norm, also if it has no gain."""
    readout_multiplier: float = 1.0
    """The constant that the model multiplies its logits by; for a tied readout, it is only here."""
    not_followed: str | None = "not tried"
    """Why no forward pass could be followed, so that roles rest on names; None if one was."""
    readout_module: str | None = None
    """The module whose weight is the readout, also if that is the embedding's."""
    tied_table: str | None = None
    """The embedding that is also the readout, by sharing a tensor or by being used twice."""
    sketched: bool = False
    """Whether these facts come from plain dimensions, with the shapes of another model."""
    settings: Mapping[str, float] = field(default_factory=dict[str, float])
    """Constants of the config that matter to a plan, such as the attention scale."""

    @property
    def repetitions(self) -> int:
        """r: the largest number of query heads per key/value head."""
        return max((fact.repetitions for fact in self.parameters.values()), default=1)

    @property
    def tied_readout(self) -> bool:
        return self.tied_table is not None

    @property
    def followed(self) -> bool:
        return self.not_followed is None
