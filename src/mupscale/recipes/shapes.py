"""The sizes of a model that a recipe speaks of, whatever its architecture."""

import math
from dataclasses import dataclass

from torch import nn

from mupscale.reading import ModelFacts, ParameterFact, Reading, read
from mupscale.reading.structure import class_of

TABLES = ("embedding", "position")


@dataclass(frozen=True)
class ModelShape:
    """What was read of a model. Parameters are counted as the paper does: with the readout, without the tables."""

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
    )


def _counts(fact: ParameterFact, facts: ModelFacts) -> bool:
    return fact.role not in TABLES or (fact.role == "embedding" and facts.tied_readout)


def _fan_in(facts: ModelFacts, role: str) -> int | None:
    return next((fact.fan_in for fact in facts.parameters.values() if fact.role == role), None)


def _gated(facts: ModelFacts, d_ff: int | None) -> bool:
    """A gated part projects to twice as many units as it projects back from, in one matrix or in two."""
    units = {f.template: f.fan_out for f in facts.parameters.values() if f.role in ("mlp_in", "expert_in")}
    return d_ff is not None and any(unit == 2 * d_ff for unit in (sum(units.values()), *units.values()))
