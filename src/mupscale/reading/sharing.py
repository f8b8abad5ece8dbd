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
    """What the config, the forward pass and the shapes say of shared key/value heads."""

    config: ConfigFacts
    measured: Measured | None
    failed: str | None
    """Why no forward pass could be followed."""
    found: Sequence[Entry]

    def with_repetitions(
        self, fact: ParameterFact, facts: Mapping[str, ParameterFact]
    ) -> ParameterFact:
        """A fact with the repetitions of keys and values: by the forward pass and by the rows,
        which the config must confirm.
        """
        if fact.role == "fused_qkv":
            return self._fused(fact)
        if fact.role not in ("key", "value"):
            return fact
        seen = None if self.measured is None else self.measured.repetitions(fact.name)
        heads, head_dim = self.config.heads, self.config.head_dim
        kv_heads = self.config.kv_heads or (heads // seen if heads and seen else heads)
        if heads and kv_heads and head_dim:
            if fact.role == "key" and fact.fan_out != kv_heads * head_dim:
                raise UnreadableModelError(
                    f"{fact.name} has {fact.fan_out} outputs, but the config says {kv_heads} "
                    "key/value heads of "
                    f"{head_dim}, that is {kv_heads * head_dim}. Fix the config, or pass a role "
                    "for this parameter."
                )
            self._same_sharing(fact, heads // kv_heads, seen)
            return replace(fact, repetitions=heads // kv_heads)
        query = self._query_beside(fact, facts)
        if seen is not None:
            return replace(
                fact, repetitions=seen, inner=query.fan_out if query else fact.fan_out * seen
            )
        if query is None or query.fan_out % fact.fan_out:
            rows = (
                "no query beside it"
                if query is None
                else f"{query.fan_out} query outputs, not a multiple"
            )
            raise UnreadableModelError(
                f"{fact.name} has {fact.fan_out} outputs and {rows}: repetitions are unclear."
            )
        return replace(fact, repetitions=query.fan_out // fact.fan_out, inner=query.fan_out)

    def _query_beside(
        self, fact: ParameterFact, facts: Mapping[str, ParameterFact]
    ) -> ParameterFact | None:
        path = fact.name.rsplit(".", 2)[0]
        return next(
            (f for f in facts.values() if f.role == "query" and f.name.rsplit(".", 2)[0] == path),
            None,
        )

    def _same_sharing(self, fact: ParameterFact, named: int, seen: int | None) -> None:
        if seen is not None and seen != named:
            raise UnreadableModelError(
                f"{fact.name}: the config says that {named} query heads share a key/value head, "
                "and a forward pass "
                f"shows {seen}. Fix the config."
            )

    def _fused(self, fact: ParameterFact) -> ParameterFact:
        heads, head_dim = self.config.heads, self.config.head_dim
        seen = None if self.measured is None else self.measured.blocks(fact.name)
        shared = None if self.measured is None else self.measured.repetitions(fact.name)
        kv_heads = self.config.kv_heads or (heads // shared if heads and shared else heads)
        if heads and kv_heads and head_dim:
            rows = (heads + 2 * kv_heads) * head_dim
            if fact.fan_out != rows:
                raise UnreadableModelError(
                    f"{fact.name} has {fact.fan_out} outputs, but the config has {heads} + "
                    f"2·{kv_heads} heads of "
                    f"{head_dim}, that is {rows}. Fix the config, or pass a role for this "
                    "parameter."
                )
            self._same_sharing(fact, heads // kv_heads, shared)
            shared = heads // kv_heads
        elif shared is None:
            raise UnreadableModelError(
                f"{fact.name} holds queries, keys and values. There is no config with heads, and a "
                "forward pass does "
                f"not show how they are shared{f' ({self.failed})' if self.failed else ''}. Split "
                "the matrix, or give "
                "the model a config with num_attention_heads, num_key_value_heads and head_dim."
            )
        if seen is not None and sum(block.outputs for block in seen) == fact.fan_out:
            return replace(fact, repetitions=shared, blocks=seen)
        entry = next(entry for entry in self.found if entry.name == fact.name)
        layout = fused_layout(type(entry.parent), entry.path.rpartition(".")[2], shared)
        known = layout is not None and heads and kv_heads and head_dim
        blocks = (
            _blocks(heads or 0, kv_heads or 0, head_dim or 0, layout) if known and layout else ()
        )
        evidence = (
            fact.evidence
            if not fact.evidence.startswith(CONFIRMED)
            else "name; the order of its rows by the class"
        )
        return replace(fact, repetitions=shared, blocks=blocks, evidence=evidence)


def _blocks(heads: int, kv_heads: int, head_dim: int, layout: Layout) -> tuple[BlockFact, ...]:
    """The rows of q, k and v."""
    if layout == "one after the other":
        ends = [0, heads, heads + kv_heads, heads + 2 * kv_heads]
        slices = [((ends[i] * head_dim, ends[i + 1] * head_dim),) for i in range(3)]
    else:
        r = heads // kv_heads
        starts = [group * (r + 2) * head_dim for group in range(kv_heads)]
        parts = [(0, r), (r, r + 1), (r + 1, r + 2)]
        slices = [
            tuple((s + first * head_dim, s + last * head_dim) for s in starts)
            for first, last in parts
        ]
    return tuple(
        BlockFact(role, rows) for role, rows in zip(("query", "key", "value"), slices, strict=True)
    )
