"""What a forward pass showed, as plain values: sources, norms, uses of parameters, attentions,
sums.
"""

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
"""The factor of a source that is a constant, whose value the meta device does not have: a buffer,
say.
"""

SourceKind = Literal["matrix", "table", "norm"]
UseKind = Literal[
    "lookup", "product", "convolution", "gain", "bias", "added", "joined", "scale", "other"
]


@dataclass(eq=False)
class ValueSource:
    """Something that a tensor may be a sum of: what comes out of a matrix, a table or a norm."""

    number: int
    bit: int
    kind: SourceKind
    parameter: str | None
    module: str
    inputs: Mapping[int, float]
    """Of which sources its input is the sum, with their factors."""
    depends: int
    """Bits of all sources that it depends on, however indirectly."""
    from_input: bool = False
    """Whether it acts on the model's own input: a patch embedding."""
    from_attention: bool = False
    """Whether it takes what attention mixed."""
    chooses: bool = False
    """Whether it goes into a softmax, a sigmoid or a choice of the largest: a router or a gate."""
    through: frozenset[int] = frozenset()
    """Sources that its input comes from through a nonlinearity, entry by entry."""
    outputs: int = 0
    """How many outputs it has."""


@dataclass(eq=False)
class NormSeen:
    """One normalization: what went in, and the gain and bias that followed."""

    source: int
    module: str
    inputs: Mapping[int, float]
    gain: str | None = None
    offset: float = 0.0


@dataclass(frozen=True)
class Use:
    """One use of a parameter."""

    kind: UseKind
    module: str
    bit: int
    source: int | None = None
    offset: float = 0.0
    "Of a gain: it acts as weight + offset."
    out_axis: int | None = None
    "Which axis of the stored tensor holds the outputs, for a product."
    of: frozenset[int] = frozenset()
    "Of a bias or a scale: the sources that it is put onto."
    groups: int = 1
    "Of a convolution."


@dataclass(eq=False)
class AttentionUse:
    """Which sources became queries, keys and values in one attention, with their rows and how often
    each is used.
    """

    module: str
    parts: dict[Role, TensorPart] = field(default_factory=dict[Role, "TensorPart"])
    shared_inside: int = 1
    "Query heads per key/value head where the attention's own kernel repeats them."


@dataclass(frozen=True)
class TensorPart:
    """Rows of sources that are queries, keys or values."""

    sources: frozenset[int]
    rows: Rows | None
    "Row numbers of the one source, as they enter the attention; None where they were lost."
    entries: int
    "Numbers that enter the attention: each row as often as it is used."


@dataclass
class ForwardTrace:
    """What one forward pass showed."""

    uses: dict[str, list[Use]] = field(default_factory=dict[str, list[Use]])
    sources: list[ValueSource] = field(default_factory=list[ValueSource])
    norms: list[NormSeen] = field(default_factory=list[NormSeen])
    attentions: list[AttentionUse] = field(default_factory=list[AttentionUse])
    sums: list[Mapping[int, float]] = field(default_factory=list[Mapping[int, float]])
    "Sums of sources, tables among them, that went into a norm, into a matrix or out of the model."
    outputs: Mapping[int, float] = field(default_factory=dict[int, float])
    """The sources of the first output, with their factors; UNKNOWN behind a nonlinearity such as a
    cap on logits.
    """
    reached: int = 0
    "Bits of everything that the outputs depend on."
    device: str = "meta"

    @property
    def has_unseen_constant(self) -> bool:
        """Whether something is multiplied by a constant whose value the meta device does not
        have.
        """
        several = (*self.sums, self.outputs, *(source.inputs for source in self.sources))
        return any(math.isinf(factor) for total in several for factor in total.values())

    def effective(self, name: str) -> bool:
        """Whether a parameter changes the output."""
        return any(use.bit & self.reached for use in self.uses.get(name, []))


@dataclass(frozen=True)
class TraceFailed:
    """Why the model could not be followed."""

    error: str
