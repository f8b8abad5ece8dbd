"""From a trace to what each parameter was seen to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    """The constant on its way into the residual stream; not a number where it is not a constant."""
    normed_by: NormSeen | None = None
    """The norm that takes it before it is added."""
    stream_normed: bool = False
    """Whether the sum is normalized before the next block takes it, as in BERT (post-LN)."""


@dataclass
class Measured:
    """What a trace says of parameters, by name."""

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
        return bool(self.uses(name, "product", "convolution"))

    def out_axis(self, name: str) -> int | None:
        """Which of the last two axes holds the outputs, where every product agrees: -1 or -2."""
        found = {use.out_axis for use in self.uses(name, "product")}
        return found.pop() if len(found) == 1 else None

    def gain(self, name: str) -> Use | None:
        return next(iter(self.uses(name, "gain")), None)

    def from_input(self, name: str) -> bool:
        """Whether it acts on the model's own input."""
        sources = self._sources_of(name)
        return bool(sources) and all(source.from_input for source in sources)

    def bias_of(self, name: str) -> list[str]:
        """The matrices that a bias is added to."""
        numbers = {number for use in self.uses(name, "bias", "scale") for number in use.of}
        sources = [self.trace.sources[number] for number in sorted(numbers)]
        return [source.parameter for source in sources if source.parameter is not None]

    def _sources_of(self, name: str) -> list[ValueSource]:
        return [self.trace.sources[use.source] for use in self.uses(name) if use.source is not None]

    # The residual stream

    @cached_property
    def ends(self) -> Mapping[str, End]:
        """The matrices that end a residual branch: what comes out of them is added to what they
        depend on.
        """
        found: dict[str, End] = {}
        sources = self.trace.sources
        normed = self._normed_streams
        for total in self.trace.sums:
            bits = 0
            for number in total:
                bits |= sources[number].bit
            for number, factor in total.items():
                source = sources[number]
                if not source.depends & bits & ~source.bit:
                    continue  # it is where the stream begins
                if source.kind == "matrix" and source.parameter is not None:
                    before = found.get(source.parameter)
                    if before is None or not math.isfinite(before.factor):
                        found[source.parameter] = End(factor, None, number in normed)
                elif source.kind == "norm" and not self._is_stream(self._norm_of(number).inputs):
                    norm = self._norm_of(number)
                    for inner in norm.inputs:
                        matrix = sources[inner]
                        if matrix.kind == "matrix" and matrix.parameter is not None:
                            found[matrix.parameter] = End(factor, norm)
        return found

    def _is_stream(self, total: Mapping[int, float]) -> bool:
        """Whether a sum holds something beside what it was made of: a branch's output beside its
        input.
        """
        several = [self.trace.sources[number] for number in total]
        bits = 0
        for source in several:
            bits |= source.bit
        return any(source.depends & bits & ~source.bit for source in several)

    @cached_property
    def _normed_streams(self) -> frozenset[int]:
        """Sources in a sum that is normalized as a whole, where the norm's output is the stream
        from then on.
        """
        begins = {number for total in self.trace.sums for number in total}
        return frozenset(
            number
            for norm in self.trace.norms
            if len(norm.inputs) > 1 and norm.source in begins
            for number in norm.inputs
        )

    def _norm_of(self, source: int) -> NormSeen:
        return self._norms[source]

    @cached_property
    def _norms(self) -> Mapping[int, NormSeen]:
        return {norm.source: norm for norm in self.trace.norms}

    @property
    def has_stream(self) -> bool:
        """Whether any residual branch was seen."""
        return bool(self.ends)

    def factor(self, name: str) -> float | None:
        """The constant by which the forward pass multiplies what comes out of a table or matrix;
        None if not seen.
        """
        numbers = {source.number for source in self._sources_of(name)}
        found = [
            total[number]
            for total in (*self.trace.sums, self.trace.outputs)
            for number in numbers
            if number in total
        ]
        known = [factor for factor in found if math.isfinite(factor)]
        return known[-1] if known else (math.nan if found else None)

    @cached_property
    def readouts(self) -> Mapping[str, float]:
        """Matrices whose output is the model's, with the constant on it."""
        found: dict[str, float] = {}
        for number, factor in self.trace.outputs.items():
            source = self.trace.sources[number]
            if (
                source.kind == "matrix"
                and source.parameter is not None
                and source.parameter not in self.ends
            ):
                found[source.parameter] = factor * _before(source)
        return found

    @property
    def final_norm(self) -> NormSeen | None:
        """The norm whose output the readout takes."""
        for number in self.trace.outputs:
            source = self.trace.sources[number]
            if source.kind == "matrix" and len(source.inputs) == 1:
                (inside,) = source.inputs
                if self.trace.sources[inside].kind == "norm":
                    return self._norm_of(inside)
        return None

    # Attention

    @cached_property
    def attention_roles(self) -> Mapping[str, frozenset[Role]]:
        """For each matrix that feeds an attention, whether by queries, keys or values."""
        return {
            name: frozenset(
                role for attention in several for role, names in attention.items() if name in names
            )
            for name, several in self._attentions_by_name.items()
        }

    @cached_property
    def _attention_names(self) -> list[dict[Role, list[str]]]:
        """For each attention, the matrices behind its queries, keys and values."""
        return [
            {role: self._matrices(part) for role, part in attention.parts.items()}
            for attention in self.trace.attentions
        ]

    @cached_property
    def _attentions_by_name(self) -> Mapping[str, list[dict[Role, list[str]]]]:
        found: dict[str, list[dict[Role, list[str]]]] = {}
        for attention in self._attention_names:
            for name in dict.fromkeys(name for names in attention.values() for name in names):
                found.setdefault(name, []).append(attention)
        return found

    def _matrices(self, part: TensorPart) -> list[str]:
        """The matrices behind queries, keys or values, also through a norm of the heads."""
        names: list[str] = []
        for number in part.sources:
            source = self.trace.sources[number]
            inside = source.inputs if source.kind == "norm" else {number: 1.0}
            several = [self.trace.sources[one] for one in inside]
            names += [
                one.parameter
                for one in several
                if one.kind == "matrix" and one.parameter is not None
            ]
        return names

    @cached_property
    def _places(self) -> Mapping[str, AttentionUse]:
        """The first attention that each matrix feeds."""
        found: dict[str, AttentionUse] = {}
        for attention, names in zip(self.trace.attentions, self._attention_names, strict=True):
            for name in dict.fromkeys(name for several in names.values() for name in several):
                found.setdefault(name, attention)
        return found

    def repetitions(self, name: str) -> int | None:
        """How many query heads share what a matrix gives as keys or values: how often its rows
        enter the attention.
        """
        attention = self._places.get(name)
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
        if len(matrices) != 1 or len(self.attention_roles[matrices[0]]) > 1:
            return _count(part.rows)  # a fused matrix: only some of its rows are here
        outputs = self._sources_of(matrices[0])[0].outputs
        return (
            part.entries // outputs
            if outputs and part.entries % outputs == 0
            else _count(part.rows)
        )

    def blocks(self, name: str) -> tuple[BlockFact, ...] | None:
        """The rows of queries, keys and values in a fused matrix; None where they were lost on the
        way.
        """
        attention = self._places.get(name)
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
        """Whether another matrix takes what comes out of it, gated or through a nonlinearity."""
        return any(source.number in self._taken for source in self._sources_of(name))

    @cached_property
    def _taken(self) -> frozenset[int]:
        """Sources that some matrix takes."""
        matrices = [source for source in self.trace.sources if source.kind == "matrix"]
        return frozenset(number for one in matrices for number in (*one.inputs, *one.through))

    def feeds(self, name: str, other: str) -> bool:
        """Whether a matrix depends on another."""
        bits = 0
        for source in self._sources_of(name):
            bits |= source.bit
        return any(source.depends & bits for source in self._sources_of(other))

    def begins_stream(self, name: str) -> bool:
        """Whether its output is where a residual stream begins: a projection of the embedding."""
        return name not in self.ends and any(
            source.number in self._summed for source in self._sources_of(name)
        )

    @cached_property
    def _summed(self) -> frozenset[int]:
        return frozenset(number for total in self.trace.sums for number in total)

    def groups(self, name: str) -> int:
        return next((use.groups for use in self.uses(name, "convolution")), 1)

    def changes_output(self, name: str) -> bool:
        return self.trace.effective(name)


def _before(source: ValueSource) -> float:
    """The constant on the one thing that a matrix takes: T5 scales what its readout takes."""
    return next(iter(source.inputs.values())) if len(source.inputs) == 1 else 1.0


def _count(rows: Rows | None) -> int | None:
    """How often each row number occurs, where all occur equally often."""
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
