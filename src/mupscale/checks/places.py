"""Where the maps of a network begin and end: attention, feed-forward part, block and residual
stream.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from mupscale.checks.tracing import NormTrace, rms
from mupscale.reading import ModelFacts, ParameterFact, Role

_FIRST: Mapping[str, tuple[Role, ...]] = {
    "attention": ("query", "fused_qkv", "key", "low_rank_down"),
    "mlp": ("mlp_in", "expert_in"),
}
_LAST: Mapping[str, tuple[Role, ...]] = {
    "attention": ("attention_output",),
    "mlp": ("mlp_out", "expert_out", "branch_output"),
}


@dataclass
class _Maps:
    """The modules at which a block's attentions (or feed-forward parts) begin and end."""

    inputs: list[str] = field(default_factory=list[str])
    outputs: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    open: bool = False

    def note(self, fact: ParameterFact, kind: str) -> None:
        owner = fact.name.rpartition(".")[0]
        if fact.role in _FIRST[kind]:
            self.inputs += [] if self.open else [owner]
            self.open = True
        if fact.role in _LAST[kind]:
            self.outputs.append((fact.normed_by or owner, fact.forward_multiplier))
            self.open = False

    @property
    def ends(self) -> list[tuple[str, str, float]]:
        """One map per pair, as for self-attention and cross-attention; otherwise one from the first
        input to the last output.
        """
        if len(self.inputs) == len(self.outputs):
            return [(first, *last) for first, last in zip(self.inputs, self.outputs, strict=True)]
        return [(self.inputs[0], *self.outputs[-1])] if self.inputs and self.outputs else []


@dataclass(frozen=True)
class Places:
    """The paths of modules at which the maps of each block begin and end."""

    ends: Mapping[str, Sequence[tuple[str, str, float]]]
    """For attention and MLP, block by block: the first module, the last one, and a constant factor
    on its output.
    """
    blocks: Sequence[str]
    norms: Sequence[str] = ()
    """For blocks that are lists of layers, which are never called as one module: the norms that
    take the stream, block by block and before the readout.
    """

    @staticmethod
    def of(facts: ModelFacts, modules: Mapping[str, nn.Module]) -> "Places":
        blocks: dict[str, dict[str, _Maps]] = {}
        for name, fact in facts.parameters.items():
            if "*" not in fact.template:
                continue
            inside = fact.template.index("*")
            block = name[:inside] + name[inside:].partition(".")[0]
            found = blocks.setdefault(block, {kind: _Maps() for kind in _FIRST})
            for kind, maps in found.items():
                maps.note(fact, kind)
        ends = {
            kind: [end for found in blocks.values() for end in found[kind].ends] for kind in _FIRST
        }
        # A numbered module without the end of a branch is not a block but, say, a table per layer.
        real = [
            block for block, found in blocks.items() if any(maps.outputs for maps in found.values())
        ]
        listed = [
            block for block in real if isinstance(modules.get(block), nn.ModuleList | nn.ModuleDict)
        ]
        norms = _norms_on_stream(facts, listed) if listed and len(listed) == len(real) else []
        return Places(ends, [] if listed else [block for block in real if block in modules], norms)

    @property
    def paths(self) -> list[str]:
        of_maps = [path for ends in self.ends.values() for end in ends for path in end[:2]]
        return [*of_maps, *self.blocks, *self.norms]

    def measured(self, trace: NormTrace) -> dict[str, list[float]]:
        """‖φ(x)‖/‖x‖ of each map, block by block, and the norm of the residual stream before,
        between and after the blocks.
        """
        found: dict[str, list[float]] = {}
        for kind, ends in self.ends.items():
            seen = [end for end in ends if end[0] in trace.inputs and end[1] in trace.outputs]
            ratios = [
                rms(trace.outputs[out]) * factor / rms(trace.inputs[first])
                for first, out, factor in seen
            ]
            found |= {kind: ratios} if ratios else {}
        seen = [block for block in self.blocks if block in trace.inputs and block in trace.outputs]
        if seen and len(seen) == len(self.blocks):
            found["block"] = [
                rms(trace.outputs[block]) / rms(trace.inputs[block]) for block in seen
            ]
            found["stream"] = _streams(trace, seen)
        elif self.norms and all(norm in trace.inputs for norm in self.norms):
            stream = [rms(trace.inputs[norm]) for norm in self.norms]
            found["block"] = [after / before for before, after in itertools.pairwise(stream)]
            found["stream"] = stream
        return found


def _norms_on_stream(facts: ModelFacts, blocks: Sequence[str]) -> list[str]:
    """The first norm of each block and the final one, or nothing if one of them is missing."""
    facts_of_gains = (fact for fact in facts.parameters.values() if fact.role == "gain")
    gains = [fact.name for fact in facts_of_gains if fact.fan_out == facts.width]
    first = [next((n for n in gains if n.startswith(f"{block}.")), None) for block in blocks]
    if facts.final_norm is None or None in first:
        return []
    return [*(name.rpartition(".")[0] for name in first if name is not None), facts.final_norm]


def _streams(trace: NormTrace, blocks: Sequence[str]) -> list[float]:
    """The norm of the stream before, between and after the blocks.

    A second stack, such as a decoder, begins with its own stream. Its norms are rescaled to follow
    those of the first stack, so that the last number over the first is the growth of both. Blocks
    that run several times count with their last output.
    """
    course: list[float] = []
    for _, stack in itertools.groupby(blocks, lambda block: block.rpartition(".")[0]):
        own = list(stack)
        sizes = [
            rms(trace.inputs[own[0]]),
            *(rms(trace.outputs[one]) for one in own[:-1]),
            rms(trace.last[own[-1]]),
        ]
        scale = course[-1] / sizes[0] if course else 1.0
        course = [*course[:-1], *(size * scale for size in sizes)]
    return course
