"""What is measured by itself: a matrix, the rows of one role in a fused matrix, a table of
embeddings, a vector.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import sympy
import torch
from torch import Tensor

from mupscale.planning import Plan
from mupscale.planning.units import dimensions, fused_dimensions, fused_unit, unit_for
from mupscale.planning.values import PlannedParameter, RowBlock, Slices
from mupscale.reading import Kind, ModelFacts, ParameterFact, Role, role_row
from mupscale.theory import (
    Residual,
    Rule,
    StepSizes,
    Unit,
    Vector,
    estimates,
    formulas,
    optimizer_named,
)


@dataclass(frozen=True)
class CheckedPart:
    """A piece of a parameter that has a role of its own, and what theory says of its norms."""

    name: str
    role: Role
    kind: Kind
    layer: int | None
    n_out: int
    n_in: int
    repetitions: int
    multiplier: float
    """What the forward pass puts on the stored numbers; norms are of the product."""
    hooked: float
    """The part of it that a plan's hook puts on the module's own output; the rest is a constant of
    the model.
    """
    wanted: float
    """The initial norm that theory asks for, with its own σ: σ(√n_in + √n_out); σ√n of a table's
    row.
    """
    predicted_start: float
    """The same with the σ of the plan in use."""
    predicted_step: float
    """The norm of a step under the plan in use, as theory estimates it, up to a constant."""
    out_axis: int
    slices: Slices = ()
    kernel: bool = False

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]

    def of(self, tensor: Tensor) -> Tensor:
        """(…, n_out, n_in): this part of a parameter, in the order of a linear layer, without the
        multiplier.

        Of a table it is (n_in, n_out): its rows.
        """
        if self.kind == "vector":
            return tensor
        if self.kind == "table":
            return tensor.movedim(self.out_axis, -1).reshape(-1, self.n_out)
        if self.kernel:  # a convolution is a matrix of outputs × (inputs × places)
            return tensor.movedim(self.out_axis, 0).flatten(1)
        rows = self.outputs(tensor, self.out_axis)
        return rows.mT if self.out_axis == tensor.ndim - 1 else rows

    def outputs(self, tensor: Tensor, axis: int) -> Tensor:
        """Of an axis that holds the parameter's outputs, those of this part."""
        if not self.slices:
            return tensor
        pieces = [tensor.narrow(axis, start, stop - start) for start, stop in self.slices]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=axis)


@dataclass(frozen=True)
class Base:
    """What the factors of a plan are multiplied by."""

    lr: float
    std: float


def parts_of(facts: ModelFacts, plan: Plan, right: Plan, base: Base) -> list[CheckedPart]:
    """Every part of a model under `plan`, with the initial sizes of `right` as the wanted ones."""
    return [
        part
        for name, fact in facts.parameters.items()
        for part in _parts(fact, plan.parameters[name], right.parameters[name], plan.rule, base)
    ]


def _parts(
    fact: ParameterFact, planned: PlannedParameter, right: PlannedParameter, rule: Rule, base: Base
) -> Iterator[CheckedPart]:
    kind = role_row(fact.role).kind
    pieces: list[tuple[Role, Slices]] = [(block.role, block.slices) for block in fact.blocks]
    for role, slices in pieces or [(fact.role, ())]:
        n_out = sum(stop - start for start, stop in slices) or fact.fan_out
        own, reference = _Values.of(planned, role), _Values.of(right, role)
        sizes = n_out, 1 if kind == "table" else fact.fan_in
        yield CheckedPart(
            name=fact.name,
            role=role,
            kind=kind,
            layer=_layer(fact),
            n_out=n_out,
            n_in=fact.fan_in,
            repetitions=fact.repetitions if role in ("key", "value") else 1,
            multiplier=own.multiplier * fact.forward_multiplier,
            hooked=own.multiplier,
            wanted=_start(kind, reference, fact, base, *sizes),
            predicted_start=_start(kind, own, fact, base, *sizes),
            predicted_step=_step(fact, role, planned, own, rule) * base.lr,
            out_axis=fact.out_axis,
            slices=slices,
            kernel=fact.kernel,
        )


def _layer(fact: ParameterFact) -> int | None:
    """The index of the block, by what the template has a star for."""
    if "*" not in fact.template:
        return None
    return int(fact.name[fact.template.index("*") :].partition(".")[0])


@dataclass(frozen=True)
class _Values:
    """What a plan gives to a parameter, or to the rows of a role in it."""

    init_std: float
    multiplier: float
    lr: float
    start: float | None

    @staticmethod
    def of(planned: PlannedParameter, role: Role) -> "_Values":
        rows = [block for block in planned.rows if block.role == role]
        if not rows:
            start = None if planned.start is None else planned.start + planned.offset
            return _Values(planned.init_std, planned.multiplier, planned.lr, start)
        block: RowBlock = rows[0]
        # An optimizer of whole matrices steps the rows at a rate of their own; else they share the
        # matrix's.
        lr = planned.lr if block.multiplier != 1 else block.lr
        return _Values(block.init_std, block.multiplier * planned.multiplier, lr, None)


def _start(
    kind: Kind, values: _Values, fact: ParameterFact, base: Base, n_out: int, n_in: int
) -> float:
    multiplier = values.multiplier * fact.forward_multiplier
    if kind == "vector":
        return abs(values.start or 0.0) * multiplier
    return base.std * values.init_std * multiplier * _norm_of_noise(kind, n_out, n_in)


@cache
def _norm_of_noise(kind: Kind, n_out: int, n_in: int) -> float:
    """Of independent entries with standard deviation 1."""
    one = sympy.Integer(1)
    if kind == "table":  # a one-hot input meets one row: the expected norm over such inputs
        return float(estimates.expected(one, sympy.Integer(n_out)))
    return float(estimates.bai_yin(one, sympy.Integer(n_out), sympy.Integer(n_in)))


def _step(
    fact: ParameterFact, role: Role, planned: PlannedParameter, values: _Values, rule: Rule
) -> float:
    """Norm of a step of base rate 1 on multiplier × parameter: `theory`'s estimate with the plan's
    numbers put in.

    The gradient with respect to that product is the unit's own, times the branch's factor for what
    stands inside of the branch; with respect to the stored numbers it is larger by the multiplier.
    """
    inside = fact.depth is not None and not planned.output
    multiplier = values.multiplier * fact.forward_multiplier
    unit, numbers = _unit(fact, role)
    beta = float(rule.beta(sympy.Integer(fact.depth or 1))) if inside else 1.0
    norm = _step_norm(
        planned.optimizer, unit, tuple(numbers.items()), values.init_std, multiplier * beta
    )
    return norm * values.lr * multiplier


@cache
def _step_norm(
    optimizer: str,
    unit: Unit,
    numbers: tuple[tuple[str, int], ...],
    rms: float,
    gradient_scale: float,
) -> float:
    """Norm of a step of unit rate: layers that are alike ask for it again and again."""
    core = unit.branch if isinstance(unit, Residual) else unit
    known = {formulas.symbol(name): value for name, value in numbers}
    n_out, n_in, gradient = (
        sympy.sympify(size).subs(known) for size in (*core.shape(), core.gradient_norm())
    )
    sizes = StepSizes(n_out, n_in, rms=sympy.Float(rms), gradient=gradient * gradient_scale)
    step = float(optimizer_named(optimizer).step(sizes))
    return (
        step / math.sqrt(n_out) if isinstance(core, Vector) else step
    )  # of a vector, the root mean square


def _unit(fact: ParameterFact, role: Role) -> tuple[Unit, dict[str, int]]:
    in_block = fact.depth is not None
    if fact.role != "fused_qkv" or role == "fused_qkv":
        return unit_for(fact.role, in_block=in_block, output=fact.output), dimensions(fact)
    return getattr(fused_unit(in_block=in_block), role[0]), fused_dimensions(fact)
