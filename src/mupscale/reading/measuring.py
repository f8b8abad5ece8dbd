"""From a trace to what each parameter was seen to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mupscale.reading.facts import BlockFact
from mupscale.reading.roles import Role
from mupscale.reading.rows import Rows
from mupscale.reading.traces import (
    AttentionUse,
    ForwardTrace,
    NormSeen,
    TensorPart,
    Use,
    ValueSource,
)

FUSED: frozenset[Role] = frozenset({"query", "key", "value"})


@dataclass(frozen=True)
class End:
    """A matrix that ends a residual branch."""

    factor: float
    """The constant on its way into the residual stream; NaN where it is not a constant."""
    normed_by: NormSeen | None = None
    """The norm between the matrix and the sum."""
    stream_normed: bool = False
    """Whether the sum is normalized before the next block takes it, as in BERT (post-LN)."""

    @property
    def norm_module(self) -> str | None:
        """The module of that norm: the owner of its gain, or where it runs."""
        norm = self.normed_by
        return norm and (norm.gain.rpartition(".")[0] if norm.gain else norm.module)


@dataclass
class Measured:
    """What a trace shows about parameters, by name."""

    trace: ForwardTrace

    # Uses

    def uses(self, name: str, *kinds: str) -> list[Use]:
        return [use for use in self.trace.uses.get(name, []) if not kinds or use.kind in kinds]

    def seen(self, name: str) -> bool:
        return name in self.trace.uses

    def times(self, name: str) -> int:
        """How often a matrix is used in one forward pass."""
        return len(self.uses(name, "product", "convolution"))

    def looked_up(self, name: str) -> bool:
        return bool(self.uses(name, "lookup"))

    def multiplies(self, name: str) -> bool:
        return bool(self.times(name))

    def out_axis(self, name: str) -> int | None:
        """Which of the last two axes holds the outputs (-1 or -2), if every product agrees."""
        axes = {use.out_axis for use in self.uses(name, "product")}
        return axes.pop() if len(axes) == 1 else None

    def gain(self, name: str) -> Use | None:
        return next(iter(self.uses(name, "gain")), None)

    def from_input(self, name: str) -> bool:
        """Whether it acts on the model's own input."""
        sources = self._sources_of(name)
        return bool(sources) and all(source.from_input for source in sources)

    def bias_of(self, name: str) -> list[str]:
        """The matrices that a bias is added to."""
        numbers = {number for use in self.uses(name, "bias", "scale") for number in use.of}
        parameters = [self.trace.sources[number].parameter for number in sorted(numbers)]
        return [parameter for parameter in parameters if parameter is not None]

    def _sources_of(self, name: str) -> list[ValueSource]:
        return [self.trace.sources[use.source] for use in self.uses(name) if use.source is not None]

    def _matrices_in(self, numbers: Iterable[int]) -> list[str]:
        """The parameters among some sources that are matrices."""
        sources = [self.trace.sources[number] for number in numbers]
        return [s.parameter for s in sources if s.kind == "matrix" and s.parameter is not None]

    # The residual stream

    @cached_property
    def ends(self) -> Mapping[str, End]:
        """The matrices that end a residual branch: their output is added to what they depend on."""
        ends: dict[str, End] = {}
        normed = self._normed_streams
        for total in self.trace.sums:
            for number in self._later(total):
                factor, norm = total[number], self._norms.get(number)
                for matrix in self._matrices_in([number]):
                    before = ends.get(matrix)
                    if before is None or not math.isfinite(before.factor):
                        ends[matrix] = End(factor, None, number in normed)
                if norm is not None and not self._later(norm.inputs):
                    ends |= dict.fromkeys(self._matrices_in(norm.inputs), End(factor, norm))
        return ends

    def _later(self, total: Iterable[int]) -> list[int]:
        """The sources of a sum that depend on another one in it; the others begin the stream."""
        sources = [self.trace.sources[number] for number in total]
        bits = _bits(sources)
        return [source.number for source in sources if source.depends & bits & ~source.bit]

    @cached_property
    def _normed_streams(self) -> frozenset[int]:
        """Sources in a sum that is normalized as a whole and continues as the stream."""
        return frozenset(
            number
            for norm in self.trace.norms
            if len(norm.inputs) > 1 and norm.source in self._summed
            for number in norm.inputs
        )

    @cached_property
    def _norms(self) -> Mapping[int, NormSeen]:
        return {norm.source: norm for norm in self.trace.norms}

    @property
    def has_stream(self) -> bool:
        """Whether any residual branch was seen."""
        return bool(self.ends)

    def factor(self, name: str) -> float | None:
        """The constant on the output of a table or matrix: NaN if unknown, None if not seen."""
        numbers = {source.number for source in self._sources_of(name)}
        factors = [
            total[number]
            for total in (*self.trace.sums, self.trace.outputs)
            for number in numbers
            if number in total
        ]
        known = [factor for factor in factors if math.isfinite(factor)]
        return known[-1] if known else (math.nan if factors else None)

    @cached_property
    def readouts(self) -> Mapping[str, float]:
        """Matrices whose output is the model's, with the constant on it."""
        return {
            matrix: factor * _factor_before(self.trace.sources[number])
            for number, factor in self.trace.outputs.items()
            for matrix in self._matrices_in([number])
            if matrix not in self.ends
        }

    @property
    def final_norm(self) -> NormSeen | None:
        """The norm whose output the readout takes."""
        for number in self.trace.outputs:
            source = self.trace.sources[number]
            if source.kind == "matrix" and len(source.inputs) == 1:
                (inside,) = source.inputs
                if inside in self._norms:
                    return self._norms[inside]
        return None

    # Attention

    @cached_property
    def attention_roles(self) -> Mapping[str, frozenset[Role]]:
        """For each matrix that feeds an attention, whether as queries, keys or values."""
        roles: dict[str, set[Role]] = {}
        for attention in self.trace.attentions:
            for role, part in attention.parts.items():
                for name in self._matrices(part):
                    roles.setdefault(name, set()).add(role)
        return {name: frozenset(several) for name, several in roles.items()}

    def _matrices(self, part: TensorPart) -> list[str]:
        """The matrices behind queries, keys or values, also behind a norm of the heads."""
        names: list[str] = []
        for number in part.sources:
            norm = self._norms.get(number)
            names += self._matrices_in([number] if norm is None else norm.inputs)
        return names

    @cached_property
    def _first_attentions(self) -> Mapping[str, AttentionUse]:
        """The first attention that each matrix feeds."""
        first: dict[str, AttentionUse] = {}
        for attention in self.trace.attentions:
            for part in attention.parts.values():
                for name in self._matrices(part):
                    first.setdefault(name, attention)
        return first

    def repetitions(self, name: str) -> int | None:
        """How many query heads share the keys or values of a matrix."""
        attention = self._first_attentions.get(name)
        if attention is None or not self.attention_roles[name] & {"key", "value"}:
            return None
        query = self._times_used(attention.parts["query"])
        for role in ("key", "value"):
            part = attention.parts[role]
            here = self._times_used(part) if name in self._matrices(part) else None
            if query and here and here % query == 0:
                return here // query * attention.shared_inside
        return None

    def _times_used(self, part: TensorPart) -> int | None:
        """How often each row of the matrix behind queries, keys or values enters the attention."""
        matrices = self._matrices(part)
        if len(matrices) == 1 and len(self.attention_roles[matrices[0]]) == 1:
            outputs = self._sources_of(matrices[0])[0].outputs
            if outputs and part.entries % outputs == 0:
                return part.entries // outputs
        return _count(part.rows)  # a fused matrix: only some of its rows are here

    def blocks(self, name: str) -> tuple[BlockFact, ...] | None:
        """The rows of queries, keys and values in a fused matrix; None if they were lost."""
        attention = self._first_attentions.get(name)
        if attention is None or self.attention_roles[name] != FUSED:
            return None
        blocks: list[BlockFact] = []
        for role, part in attention.parts.items():
            rows = part.rows and part.rows.tensor()
            if rows is None:
                return None
            blocks.append(BlockFact(role, _slices(rows)))
        return tuple(blocks)

    def takes_attention(self, name: str) -> bool:
        return any(source.from_attention for source in self._sources_of(name))

    def chooses(self, name: str) -> bool:
        """Whether its output is a choice: of experts, or of how far a gate opens."""
        return any(source.chooses for source in self._sources_of(name))

    def feeds_matrix(self, name: str) -> bool:
        """Whether another matrix takes its output, gated or through a nonlinearity."""
        return any(source.number in self._taken for source in self._sources_of(name))

    @cached_property
    def _taken(self) -> frozenset[int]:
        """Sources that some matrix takes."""
        matrices = [source for source in self.trace.sources if source.kind == "matrix"]
        return frozenset(number for m in matrices for number in (*m.inputs, *m.through))

    def feeds(self, name: str, other: str) -> bool:
        """Whether the matrix `other` depends on `name`."""
        bits = _bits(self._sources_of(name))
        return any(source.depends & bits for source in self._sources_of(other))

    def begins_stream(self, name: str) -> bool:
        """Whether a residual stream begins with its output (a projection of the embedding)."""
        numbers = {source.number for source in self._sources_of(name)}
        return name not in self.ends and not numbers.isdisjoint(self._summed)

    @cached_property
    def _summed(self) -> frozenset[int]:
        return frozenset(number for total in self.trace.sums for number in total)

    def groups(self, name: str) -> int:
        return next((use.groups for use in self.uses(name, "convolution")), 1)

    def changes_output(self, name: str) -> bool:
        return self.trace.effective(name)


def _bits(sources: Iterable[ValueSource]) -> int:
    bits = 0
    for source in sources:
        bits |= source.bit
    return bits


def _factor_before(source: ValueSource) -> float:
    """The constant on the single input of a matrix: T5 scales the input of its readout."""
    return next(iter(source.inputs.values())) if len(source.inputs) == 1 else 1.0


def _count(rows: Rows | None) -> int | None:
    """How often each row number occurs, if all occur equally often."""
    numbers = rows and rows.tensor()
    if numbers is None:
        return None
    counts = torch.bincount(numbers.flatten())
    counts = counts[counts > 0]
    return int(counts[0]) if bool((counts == counts[0]).all()) else None


def _slices(rows: Tensor) -> tuple[tuple[int, int], ...]:
    """Row numbers as runs.

    >>> _slices(torch.tensor([[4, 5], [0, 1]]))
    ((0, 2), (4, 6))
    """
    numbers = torch.unique(rows)
    breaks = (numbers[1:] != numbers[:-1] + 1).nonzero().flatten() + 1
    pieces = torch.tensor_split(numbers, breaks.tolist())
    return tuple((int(piece[0]), int(piece[-1]) + 1) for piece in pieces)
