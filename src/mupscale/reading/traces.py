"""What a forward pass showed, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mupscale.reading.roles import Role
from mupscale.reading.rows import Rows

UNKNOWN = math.nan
"""The factor of a source that is not a constant: a gate, a rotation."""
UNSEEN = math.inf
"""The factor of a source that is a constant without a value on the meta device, as a buffer is."""

SourceKind = Literal["matrix", "table", "norm"]
UseKind = Literal[
    "lookup", "product", "convolution", "gain", "bias", "added", "joined", "scale", "other"
]


@dataclass(eq=False)
class ValueSource:
    """The output of a matrix, a table or a norm: a tensor can be a sum of several."""

    number: int
    bit: int
    kind: SourceKind
    parameter: str | None
    inputs: Mapping[int, float]
    """The sources that its input is a sum of, with their factors."""
    depends: int
    """Bits of all sources that it depends on, directly or not."""
    from_input: bool = False
    """Whether it acts on the model's own input, as a patch embedding does."""
    from_attention: bool = False
    """Whether its input is the output of attention."""
    chooses: bool = False
    """Whether a softmax, a sigmoid or a top-k takes its output: a router or a gate."""
    through: frozenset[int] = frozenset()
    """Sources that its input comes from through an elementwise nonlinearity."""
    outputs: int = 0


@dataclass(eq=False)
class NormSeen:
    """One normalization: its input, and the gain that followed."""

    source: int
    module: str
    inputs: Mapping[int, float]
    gain: str | None = None
    offset: float = 0.0


@dataclass(frozen=True)
class Use:
    """One use of a parameter."""

    kind: UseKind
    bit: int
    source: int | None = None
    offset: float = 0.0
    "A gain acts as weight + offset."
    out_axis: int | None = None
    "The axis of the stored tensor that holds the outputs, for a product."
    of: frozenset[int] = frozenset()
    "The sources that a bias or a scale acts on."
    groups: int = 1
    "The groups of a convolution."


@dataclass(frozen=True)
class TensorPart:
    """Rows of sources that are queries, keys or values."""

    sources: frozenset[int]
    rows: Rows | None
    "Row numbers of the single source, as they enter the attention; None if they were lost."
    entries: int
    "Numbers that enter the attention: each row as often as it is used."


@dataclass(eq=False)
class AttentionUse:
    """The sources that became queries, keys and values in one attention."""

    parts: dict[Role, TensorPart]
    shared_inside: int = 1
    "Query heads per key/value head, where the attention kernel itself repeats them."


@dataclass
class ForwardTrace:
    """What one forward pass showed."""

    uses: dict[str, list[Use]] = field(default_factory=dict[str, list[Use]])
    sources: list[ValueSource] = field(default_factory=list[ValueSource])
    norms: list[NormSeen] = field(default_factory=list[NormSeen])
    attentions: list[AttentionUse] = field(default_factory=list[AttentionUse])
    sums: list[Mapping[int, float]] = field(default_factory=list[Mapping[int, float]])
    "Sums of sources, or single tables, that entered a norm or a matrix or left the model."
    outputs: Mapping[int, float] = field(default_factory=dict[int, float])
    """The sources of the first output; UNKNOWN factors behind a nonlinearity (a cap on logits)."""
    reached: int = 0
    "Bits of everything that the outputs depend on."
    device: str = "meta"

    @property
    def has_unseen_constant(self) -> bool:
        """Whether something is multiplied by a constant that has no value on the meta device."""
        sums = (*self.sums, self.outputs, *(source.inputs for source in self.sources))
        return any(math.isinf(factor) for total in sums for factor in total.values())

    def effective(self, name: str) -> bool:
        """Whether a parameter changes the output."""
        return any(use.bit & self.reached for use in self.uses.get(name, []))


@dataclass(frozen=True)
class TraceFailed:
    """Why the model could not be followed."""

    error: str
