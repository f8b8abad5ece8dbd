"""What is known about a model's parameters: one fact each, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Role = Literal[
    "embedding",
    "position",
    "readout",
    "query",
    "key",
    "value",
    "fused_qkv",
    "attention_output",
    "mlp_in",
    "mlp_out",
    "low_rank_down",
    "low_rank_up",
    "router",
    "expert_in",
    "expert_out",
    "hidden",
    "branch_output",
    "gain",
    "bias",
]
ROLES: tuple[Role, ...] = get_args(Role)

BRANCH_OUTPUTS: frozenset[Role] = frozenset({"attention_output", "mlp_out", "expert_out", "branch_output"})
"""Matrices that end a residual branch, and so carry its multiplier."""


@dataclass(frozen=True)
class Block:
    """Some of the outputs of a fused matrix: `slices` are (start, stop) along its output axis."""

    role: Role
    slices: tuple[tuple[int, int], ...]

    @property
    def outputs(self) -> int:
        return sum(stop - start for start, stop in self.slices)


@dataclass(frozen=True)
class ParameterFact:
    """What one parameter is. Names are those of the bare model: wrappers (DDP, torch.compile) are looked through."""

    name: str
    shape: tuple[int, ...]
    role: Role
    fan_in: int
    fan_out: int
    out_axis: int
    """Which axis of the stored tensor holds the outputs."""
    width: int
    """The embedding width of the model."""
    depth: int | None = None
    """The number of blocks, for a parameter inside one; None outside."""
    output: bool = False
    """Whether it ends a residual branch."""
    repetitions: int = 1
    inner: int | None = None
    """Query heads × head_dim, for attention."""
    active: float = 1.0
    """The share of tokens that reach it: active / all experts."""
    forward_multiplier: float = 1.0
    """A constant by which the model's own forward pass multiplies what comes out of it."""
    fixed: bool = False
    """A vector whose length stays the same at any width: a gain that all heads share, the bias of the logits."""
    offset: float = 0.0
    """A gain that acts as 1 + weight has offset 1."""
    start: float | None = None
    """What a gain or bias acts as at the start; None for what is drawn, or set by the model to a value of its own."""
    normed_by: str | None = None
    """The norm (its module) that takes a branch's output before it is added to the residual stream: a post-norm."""
    tied: tuple[str, ...] = ()
    """Other names of the same tensor."""
    blocks: tuple[Block, ...] = ()
    """The parts of a fused matrix; empty where their layout is not known."""
    template: str = ""
    """The name with * for the index of the block: the same for the same parameter of a deeper model."""


@dataclass(frozen=True)
class ModelFacts:
    """Every parameter of a model, by name, and what they have in common."""

    parameters: Mapping[str, ParameterFact]
    width: int
    depth: int
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    final_gain: str | None = None
    """The gain of the norm before the readout."""
    readout_multiplier: float = 1.0
    """The constant by which the model multiplies its logits; the only place where that of a tied readout is kept."""
    watched: bool = False
    """Whether one forward pass on the meta device could be watched, so that `normed_by` is known."""
    readout_module: str | None = None
    """The module whose weight is the readout, also where that is the embedding's."""
    settings: Mapping[str, float] = field(default_factory=dict[str, float])
    """Constants of the config that matter to a plan: the attention scale, say."""

    @property
    def repetitions(self) -> int:
        return self.heads // self.kv_heads if self.heads and self.kv_heads else 1

    @property
    def tied_readout(self) -> bool:
        """Whether the readout is the embedding."""
        return not any(fact.role == "readout" for fact in self.parameters.values())
