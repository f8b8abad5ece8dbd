"""What a parameter is to the theory: its unit in symbols, and the numbers to put in."""

from dataclasses import replace
from fractions import Fraction
from functools import cache, lru_cache

from mupscale.errors import NotDerivedError
from mupscale.reading import ParameterFact, Role, role_row
from mupscale.theory import (
    Decay,
    Dense,
    Embedding,
    Expert,
    Fused,
    KeyValue,
    LowRank,
    Readout,
    Residual,
    Router,
    Rule,
    Scaling,
    Unit,
    Vector,
    derive,
)


@cache
def unit_for(role: Role, *, in_block: bool, output: bool = False) -> Unit:
    """The unit of a role. A matrix that fuses q, k and v is dense here: `fused_unit` has its rows.

    >>> print(unit_for("key", in_block=True))
    Residual(KeyValue(n, r, inner=inner), L, output=False)
    """
    unit = role_row(role).unit
    return Residual(unit, "L", output=output) if in_block else unit


@cache
def fused_unit(*, in_block: bool) -> Fused:
    """Q, K and V in one matrix."""
    query = Dense("inner", "n")
    key, value = unit_for("key", in_block=in_block), unit_for("value", in_block=in_block)
    return Fused(Residual(query, "L", output=False) if in_block else query, key, value)


@lru_cache(maxsize=512)
def scaling_for(unit: Unit, optimizer: str, rule: Rule, decay: Decay) -> Scaling:
    """The derivation for a unit, made once: to plan, to print the plan and for the next plan."""
    core = unit.branch if isinstance(unit, Residual) else unit
    if rule.kv_part == "both" and isinstance(core, KeyValue) and core.part:
        # Keys and values share one derivation unless the rule treats them differently.
        core = replace(core, part=None)
        alike = replace(unit, branch=core) if isinstance(unit, Residual) else core
        return scaling_for(alike, optimizer, rule, decay)
    return derive(unit, optimizer, rule=rule, decay=decay)


def dimensions(fact: ParameterFact) -> dict[str, int]:
    """The numbers for the symbols of a fact's unit.

    The embedding width n is the gradient's scale; a matrix's own fans are n_out and n_in. Units
    that have n alone (embeddings, readouts, keys and values) mean their own fan by it; a vector
    whose length is fixed has n = 1.
    """
    return _own_dimensions(fact) | _depth(fact)


def _own_dimensions(fact: ParameterFact) -> dict[str, int]:
    fans = {"n_out": fact.fan_out, "n_in": fact.fan_in, "n": fact.width}
    match role_row(fact.role).unit:
        case Embedding():
            return {"n": fact.fan_out}
        case Readout() | Router():
            return {"n": fact.fan_in}
        case KeyValue():
            inner = fact.fan_out * fact.repetitions
            return {"n": fact.fan_in, "r": fact.repetitions, "inner": inner}
        case Vector():
            return {"n": 1 if fact.fixed else fact.width}
        case Expert():
            share = Fraction(fact.active).limit_denominator(1 << 16)
            return fans | {"active": share.numerator, "experts": share.denominator}
        case Dense() | LowRank():
            return fans
        case unit:
            raise NotDerivedError(
                f"no dimensions are known for {unit}, the unit of the role {fact.role}. Add it to "
                "mupscale.planning.units."
            )


def fused_dimensions(fact: ParameterFact) -> dict[str, int]:
    """The numbers for `fused_unit`."""
    inner = fact.fan_out * fact.repetitions // (fact.repetitions + 2)
    return {"n": fact.fan_in, "r": fact.repetitions, "inner": inner} | _depth(fact)


def _depth(fact: ParameterFact) -> dict[str, int]:
    return {} if fact.depth is None else {"L": fact.depth}
