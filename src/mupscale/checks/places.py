"""Where the maps of a network begin and end: attention, feed-forward part, block, and the residual stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from mupscale.checks.tracing import Trace, rms
from mupscale.reading import ModelFacts, Role

_FIRST: Mapping[str, tuple[Role, ...]] = {
    "attention": ("query", "fused_qkv", "key", "low_rank_down"),
    "mlp": ("mlp_in", "expert_in"),
}
_LAST: Mapping[str, tuple[Role, ...]] = {
    "attention": ("attention_output",),
    "mlp": ("mlp_out", "expert_out", "branch_output"),
}


@dataclass(frozen=True)
class Places:
    """Where the maps of each block begin and end: the paths of modules whose input and output are looked at."""

    ends: Mapping[str, Sequence[tuple[str, str, float]]]
    """For attention and MLP, block by block: what takes the input, what gives the output, a constant on that."""
    blocks: Sequence[str]

    @staticmethod
    def of(facts: ModelFacts, modules: Mapping[str, nn.Module]) -> "Places":
        blocks: dict[str, dict[str, Any]] = {}
        for name, fact in facts.parameters.items():
            if "*" not in fact.template:
                continue
            inside = fact.template.index("*")
            block = name[:inside] + name[inside:].partition(".")[0]
            found = blocks.setdefault(block, {})
            owner = name.rpartition(".")[0]
            for kind in ("attention", "mlp"):
                if fact.role in _FIRST[kind]:
                    found.setdefault(f"{kind} in", owner)
                if fact.role in _LAST[kind]:
                    found[f"{kind} out"] = (fact.normed_by or owner, fact.forward_multiplier)
        ends = {
            kind: [
                (block[f"{kind} in"], *block[f"{kind} out"])
                for block in blocks.values()
                if f"{kind} in" in block and f"{kind} out" in block
            ]
            for kind in ("attention", "mlp")
        }
        return Places(ends, [block for block in blocks if block in modules])

    @property
    def paths(self) -> list[str]:
        return [path for ends in self.ends.values() for end in ends for path in end[:2]] + list(self.blocks)

    def measured(self, trace: Trace) -> dict[str, list[float]]:
        """‖φ(x)‖/‖x‖ of each map, block by block, and the residual stream before, between and after the blocks."""
        found: dict[str, list[float]] = {}
        for kind, ends in self.ends.items():
            seen = [end for end in ends if end[0] in trace.inputs and end[1] in trace.outputs]
            ratios = [rms(trace.outputs[out]) * factor / rms(trace.inputs[first]) for first, out, factor in seen]
            found |= {kind: ratios} if ratios else {}
        seen = [block for block in self.blocks if block in trace.inputs and block in trace.outputs]
        if seen and len(seen) == len(self.blocks):
            found["block"] = [rms(trace.outputs[block]) / rms(trace.inputs[block]) for block in seen]
            found["stream"] = [rms(trace.inputs[seen[0]]), *(rms(trace.outputs[block]) for block in seen)]
        return found
