"""How many query heads share each key/value head, and which rows of a fused matrix are which."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mupscale.errors import UnreadableModelError
from mupscale.reading.config import ConfigFacts
from mupscale.reading.facts import BlockFact, ParameterFact
from mupscale.reading.measuring import Measured
from mupscale.reading.structure import Entry
from mupscale.reading.verdicts import CONFIRMED
from mupscale.reading.vocabulary import Layout, fused_layout


@dataclass(frozen=True)
class Sharing:
    """What the config, the forward pass and the shapes show about shared key/value heads."""

    config: ConfigFacts
    measured: Measured | None
    failed: str | None
    """Why no forward pass could be followed."""
    found: Sequence[Entry]

    def with_repetitions(
        self, fact: ParameterFact, facts: Mapping[str, ParameterFact]
    ) -> ParameterFact:
        """The fact with its repetitions: by forward pass and rows, confirmed by the config."""
        if fact.role == "fused_qkv":
            return self._fused(fact)
        return self._key_or_value(fact, facts) if fact.role in ("key", "value") else fact

    def _seen(self, fact: ParameterFact) -> int | None:
        return None if self.measured is None else self.measured.repetitions(fact.name)

    def _config_heads(self, seen: int | None) -> tuple[int, int, int] | None:
        """Heads, key/value heads and head_dim of the config, if it has them."""
        heads, head_dim = self.config.heads, self.config.head_dim
        kv_heads = self.config.kv_heads or (heads // seen if heads and seen else heads)
        return (heads, kv_heads, head_dim) if heads and kv_heads and head_dim else None

    def _key_or_value(
        self, fact: ParameterFact, facts: Mapping[str, ParameterFact]
    ) -> ParameterFact:
        seen = self._seen(fact)
        known = self._config_heads(seen)
        if known is not None:
            heads, kv_heads, head_dim = known
            if fact.role == "key" and fact.fan_out != kv_heads * head_dim:
                raise UnreadableModelError(
                    f"{fact.name} has {fact.fan_out} outputs, but the config says {kv_heads} "
                    f"key/value heads of {head_dim}, that is {kv_heads * head_dim}. Fix the "
                    "config, or pass a role for this parameter."
                )
            return replace(fact, repetitions=self._agreed(fact, heads // kv_heads, seen))
        owner = fact.name.rsplit(".", 2)[0]
        queries = [f.fan_out for f in facts.values() if f.role == "query"
                   and f.name.rsplit(".", 2)[0] == owner]  # fmt: skip
        if seen is not None:
            inner = queries[0] if queries else fact.fan_out * seen
            return replace(fact, repetitions=seen, inner=inner)
        if not queries or queries[0] % fact.fan_out:
            rows = (
                f"{queries[0]} query outputs, not a multiple" if queries else "no query beside it"
            )
            raise UnreadableModelError(
                f"{fact.name} has {fact.fan_out} outputs and {rows}: the number of query heads per "
                "key/value head is unclear. Give the model a config with num_attention_heads, "
                "num_key_value_heads and head_dim."
            )
        return replace(fact, repetitions=queries[0] // fact.fan_out, inner=queries[0])

    def _agreed(self, fact: ParameterFact, named: int, seen: int | None) -> int:
        if seen is not None and seen != named:
            raise UnreadableModelError(
                f"{fact.name}: the config says that {named} query heads share a key/value head, "
                f"but a forward pass shows {seen}. Fix the config."
            )
        return named

    def _fused(self, fact: ParameterFact) -> ParameterFact:
        shared = self._seen(fact)
        known = self._config_heads(shared)
        if known is not None:
            heads, kv_heads, head_dim = known
            rows = (heads + 2 * kv_heads) * head_dim
            if fact.fan_out != rows:
                raise UnreadableModelError(
                    f"{fact.name} has {fact.fan_out} outputs, but the config has {heads} + "
                    f"2·{kv_heads} heads of {head_dim}, that is {rows}. Fix the config, or pass a "
                    "role for this parameter."
                )
            shared = self._agreed(fact, heads // kv_heads, shared)
        if shared is None:
            raise UnreadableModelError(
                f"{fact.name} holds queries, keys and values. There is no config with heads, and a "
                "forward pass does not show how they are shared"
                f"{f' ({self.failed})' if self.failed else ''}. Split the matrix, or give the "
                "model a config with num_attention_heads, num_key_value_heads and head_dim."
            )
        blocks = None if self.measured is None else self.measured.blocks(fact.name)
        if blocks is not None and sum(block.outputs for block in blocks) == fact.fan_out:
            return replace(fact, repetitions=shared, blocks=blocks)
        entry = next(entry for entry in self.found if entry.name == fact.name)
        layout = fused_layout(type(entry.parent), entry.path.rpartition(".")[2], shared)
        blocks = _blocks(*known, layout) if known and layout else ()
        evidence = fact.evidence
        if evidence.startswith(CONFIRMED):
            evidence = "name; the order of its rows by the class"
        return replace(fact, repetitions=shared, blocks=blocks, evidence=evidence)


def _blocks(heads: int, kv_heads: int, head_dim: int, layout: Layout) -> tuple[BlockFact, ...]:
    """The rows of q, k and v."""
    if layout == "one after the other":
        groups, r, shared = 1, heads, kv_heads
    else:
        groups, r, shared = kv_heads, heads // kv_heads, 1
    size = r + 2 * shared  # heads per group: its queries, keys and values
    ends = {"query": (0, r), "key": (r, r + shared), "value": (r + shared, size)}

    def rows(first: int, last: int) -> tuple[tuple[int, int], ...]:
        starts = [group * size for group in range(groups)]
        return tuple(((s + first) * head_dim, (s + last) * head_dim) for s in starts)

    return tuple(BlockFact(role, rows(*ends[role])) for role in ("query", "key", "value"))
