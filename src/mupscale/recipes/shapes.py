"""The sizes of a model that a recipe speaks of, whatever its architecture."""

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from mupscale.reading import ModelFacts, ParameterFact, Reading, read
from mupscale.reading.structure import bare, class_of

TABLES = ("embedding", "position")
_POSITIONS = (
    "max_position_embeddings", "n_positions", "context", "n_ctx", "block_size", "max_seq_len", "max_seq_length",
    "max_sequence_length", "max_target_positions",
)  # fmt: skip
"""Keys by which configs say how long a sequence may be."""


@dataclass(frozen=True)
class ModelShape:
    """What was read of a model. Parameters are counted as the paper does: with the readout, without
    the tables.
    """

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
    "Whether the feed-forward part multiplies two projections."
    parameters: int
    "Without tables of tokens and positions; a tied table is the readout."
    active_parameters: int
    "Of those, what a token passes: fewer where there are experts."
    positions: int | None = None
    "The longest sequence that its config speaks of."
    learned_positions: int | None = None
    """The longest sequence that it has position embeddings for; None where positions are not
    learned.
    """

    @property
    def base_dimensions(self) -> dict[str, int]:
        """As `mupscale.plan` takes a base."""
        sizes = {"width": self.width, "depth": self.depth, "r": self.r, "inner": self.inner, "d_ff": self.d_ff,
                 "head_dim": self.head_dim}  # fmt: skip
        return {name: value for name, value in sizes.items() if value is not None}


def shape_of(model: nn.Module, reading: Reading | None = None) -> ModelShape:
    """Read a model; the meta device will do.

    >>> from mupscale.targets import resolve
    >>> shape = shape_of(resolve("gpt:kvr_3").model)
    >>> shape.width, shape.r, shape.d_ff, shape.parameters
    (768, 4, 3072, 81997056)
    """
    facts = read(model, reading=reading)
    positions, learned = _positions(model), _learned_positions(facts)
    counted = [fact for fact in facts.parameters.values() if _counts(fact, facts)]
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
        positions=_least(positions, learned),
        learned_positions=learned and _least(positions, learned),
    )


def _positions(model: nn.Module) -> int | None:
    config: Any = getattr(bare(model), "config", None)
    config = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    found = [getattr(config, name, None) for name in _POSITIONS]
    return next(
        (one for one in found if isinstance(one, int) and not isinstance(one, bool) and one > 0),
        None,
    )


def _learned_positions(facts: ModelFacts) -> int | None:
    """Rows of the shortest table of positions. Some models keep a few more than their config says,
    for padding.
    """
    return min(
        (fact.fan_in for fact in facts.parameters.values() if fact.role == "position"), default=None
    )


def _least(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _counts(fact: ParameterFact, facts: ModelFacts) -> bool:
    return fact.role not in TABLES or (fact.role == "embedding" and facts.tied_readout)


def _fan_in(facts: ModelFacts, role: str) -> int | None:
    return next((fact.fan_in for fact in facts.parameters.values() if fact.role == role), None)


def _gated(facts: ModelFacts, d_ff: int | None) -> bool:
    """A gated part projects to twice as many units as it projects back from, in one matrix or in
    two.
    """
    units = {
        f.template: f.fan_out
        for f in facts.parameters.values()
        if f.role in ("mlp_in", "expert_in")
    }
    return d_ff is not None and any(
        unit == 2 * d_ff for unit in (sum(units.values()), *units.values())
    )
