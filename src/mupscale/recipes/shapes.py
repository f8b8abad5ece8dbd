"""The sizes of a model, whatever its architecture."""

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from mupscale.planning.base import DIMENSIONS
from mupscale.reading import TABLES, ModelFacts, Reading, read
from mupscale.reading.structure import bare, class_of

_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "context",
    "n_ctx",
    "block_size",
    "max_seq_len",
    "max_seq_length",
    "max_sequence_length",
    "max_target_positions",
)
"""Config keys for the longest sequence."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes read from a model. As in the paper, parameters include the readout, not embeddings."""

    architecture: str
    width: int
    depth: int
    r: int
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    inner: int | None
    d_ff: int | None
    vocabulary: int | None
    gated: bool
    "Whether the feed-forward block multiplies two projections."
    parameters: int
    "Without token and position embeddings; a tied embedding counts as the readout."
    active_parameters: int
    "Those that one token uses: fewer with experts."
    positions: int | None = None
    "The longest sequence according to the config."
    learned_positions: int | None = None
    "Rows of the position embedding; None where positions are not learned."

    @property
    def base_dimensions(self) -> dict[str, int]:
        """A base for `mupscale.plan`."""
        sizes = {name: getattr(self, name) for name in DIMENSIONS}
        return {name: value for name, value in sizes.items() if value is not None}


def shape_of(model: nn.Module, reading: Reading | None = None) -> ModelShape:
    """Read a model, also on the meta device.

    >>> from mupscale.targets import resolve
    >>> shape = shape_of(resolve("gpt:kvr_3").model)
    >>> shape.width, shape.r, shape.d_ff, shape.parameters
    (768, 4, 3072, 81997056)
    """
    facts = read(model, reading=reading)
    # Rows of the shortest position table. Some models keep a few extra rows for padding.
    rows = [fact.fan_in for fact in facts.parameters.values() if fact.role == "position"]
    positions = min((number for number in (_positions(model), *rows) if number), default=None)
    counted = [
        fact
        for fact in facts.parameters.values()
        if fact.role not in TABLES or (fact.role == "embedding" and facts.tied_readout)
    ]
    tables = [fact for fact in facts.parameters.values() if fact.role == "embedding"]
    d_ff = _fan_in(facts, "mlp_out") or _fan_in(facts, "expert_out")
    return ModelShape(
        architecture=class_of(model).__name__,
        width=facts.width,
        depth=facts.depth,
        r=max((fact.repetitions for fact in facts.parameters.values()), default=1),
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        inner=_fan_in(facts, "attention_output"),
        d_ff=d_ff,
        vocabulary=tables[0].fan_in if tables else None,
        gated=_gated(facts, d_ff),
        parameters=sum(math.prod(fact.shape) for fact in counted),
        active_parameters=round(sum(math.prod(fact.shape) * fact.active for fact in counted)),
        positions=positions,
        learned_positions=positions if rows else None,
    )


def _positions(model: nn.Module) -> int | None:
    config: Any = getattr(bare(model), "config", None)
    config = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    values = [getattr(config, name, None) for name in _POSITIONS]
    return next((value for value in values if type(value) is int and value > 0), None)


def _fan_in(facts: ModelFacts, role: str) -> int | None:
    return next((fact.fan_in for fact in facts.parameters.values() if fact.role == role), None)


def _gated(facts: ModelFacts, d_ff: int | None) -> bool:
    """A gated block projects up to twice the units it projects down from, in one matrix or two."""
    units = {
        f.template: f.fan_out
        for f in facts.parameters.values()
        if f.role in ("mlp_in", "expert_in")
    }
    return d_ff is not None and any(
        unit == 2 * d_ff for unit in (sum(units.values()), *units.values())
    )
