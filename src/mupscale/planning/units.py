"""What a parameter is to the theory: its unit in symbols, and the numbers to put in."""

from fractions import Fraction
from functools import cache

from mupscale.reading import ParameterFact, Role, role_row
from mupscale.theory import (
    Dense,
    Embedding,
    Expert,
    Fused,
    KeyValue,
    Readout,
    Residual,
    Router,
    Unit,
    Vector,
)


@cache
def unit_for(role: Role, *, in_block: bool, output: bool = False) -> Unit:
    """The unit of a role. A matrix that fuses q, k and v is dense here: `fused_unit` tells its rows
    apart.

    >>> print(unit_for("key", in_block=True))
    Residual(KeyValue(n, r, inner=inner), L, output=False)
    """
    unit = role_row(role).unit
    return Residual(unit, "L", output=output) if in_block else unit


@cache
def fused_unit(*, in_block: bool) -> Fused:
    """Q, K and V in one matrix."""

    def placed(unit: Unit) -> Unit:
        return Residual(unit, "L", output=False) if in_block else unit

    shared = placed(KeyValue("n", "r", "inner"))
    return Fused(placed(Dense("inner", "n")), shared, shared)


def dimensions(fact: ParameterFact) -> dict[str, int]:
    """The numbers for the symbols of a fact's unit.

    The embedding width n is the gradient's scale; a matrix's own fans are n_out and n_in. Units
    that have n alone (embeddings, readouts, keys and values) mean their own fan by it; a vector
    that does not grow has n = 1.
    """
    numbers = _own_dimensions(fact)
    return numbers | ({"L": fact.depth} if fact.depth is not None else {})


def _own_dimensions(fact: ParameterFact) -> dict[str, int]:
    match role_row(fact.role).unit:
        case Embedding():
            return {"n": fact.fan_out}
        case Readout() | Router():
            return {"n": fact.fan_in}
        case KeyValue():
            return {
                "n": fact.fan_in,
                "r": fact.repetitions,
                "inner": fact.fan_out * fact.repetitions,
            }
        case Vector():
            return {"n": 1 if fact.fixed else fact.width}
        case Expert():
            share = Fraction(fact.active).limit_denominator(1 << 16)
            return _fans(fact) | {"active": share.numerator, "experts": share.denominator}
        case _:
            return _fans(fact)


def fused_dimensions(fact: ParameterFact) -> dict[str, int]:
    """The numbers for `fused_unit`."""
    inner = fact.fan_out * fact.repetitions // (fact.repetitions + 2)
    numbers = {"n": fact.fan_in, "r": fact.repetitions, "inner": inner}
    return numbers | ({"L": fact.depth} if fact.depth is not None else {})


def _fans(fact: ParameterFact) -> dict[str, int]:
    return {"n_out": fact.fan_out, "n_in": fact.fan_in, "n": fact.width}
