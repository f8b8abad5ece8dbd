"""The parts that are measured: a matrix, the rows of one role in a fused matrix, an embedding
table, a vector.
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
    """Part of a parameter with its own role, and the norms that theory predicts."""

    name: str
    role: Role
    kind: Kind
    layer: int | None
    n_out: int
    n_in: int
    repetitions: int
    multiplier: float
    """Factor that the forward pass applies to the stored numbers; norms include it."""
    hooked: float
    """The share of it that a plan's hook applies to the module's output; the rest is a constant of
    the model.
    """
    wanted: float
    """The initial norm that theory asks for: σ(√n_in + √n_out), or σ√n for a row of a table."""
    predicted_start: float
    """The same with the σ of the plan in use."""
    predicted_step: float
    """Theory's estimate of the norm of a step under the plan in use, up to a constant."""
    out_axis: int
    slices: Slices = ()
    kernel: bool = False

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]

    def of(self, tensor: Tensor) -> Tensor:
        """The part as (…, n_out, n_in), like a linear layer; as (n_in, n_out) for a table. Without
        the multiplier.
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
        """The outputs of this part, along the axis that holds the parameter's outputs."""
        if not self.slices:
            return tensor
        pieces = [tensor.narrow(axis, start, stop - start) for start, stop in self.slices]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=axis)


@dataclass(frozen=True)
class Base:
    """Base values, which the factors of a plan multiply."""

    lr: float
    std: float


def parts_of(facts: ModelFacts, plan: Plan, ideal: Plan, base: Base) -> list[CheckedPart]:
    """Every part of a model under `plan`; `ideal` gives the initial norms that theory asks for."""
    return [
        part
        for name, fact in facts.parameters.items()
        for part in _parts(fact, plan.parameters[name], ideal.parameters[name], plan.rule, base)
    ]


def _parts(
    fact: ParameterFact, planned: PlannedParameter, ideal: PlannedParameter, rule: Rule, base: Base
) -> Iterator[CheckedPart]:
    kind = role_row(fact.role).kind
    pieces: list[tuple[Role, Slices]] = [(block.role, block.slices) for block in fact.blocks]
    for role, slices in pieces or [(fact.role, ())]:
        n_out = sum(stop - start for start, stop in slices) or fact.fan_out
        own, reference = _Values.of(planned, role), _Values.of(ideal, role)
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
    """The index of the block, at the star of the template."""
    if "*" not in fact.template:
        return None
    return int(fact.name[fact.template.index("*") :].partition(".")[0])


@dataclass(frozen=True)
class _Values:
    """The values of a plan for a parameter, or for the rows of one role in it."""

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
        # With an optimizer of whole matrices, rows have their own rate; otherwise the matrix's.
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
    """Norm of independent entries with standard deviation 1."""
    one = sympy.Integer(1)
    if kind == "table":  # a one-hot input selects one row: the expected norm over inputs
        return float(estimates.expected(one, sympy.Integer(n_out)))
    return float(estimates.bai_yin(one, sympy.Integer(n_out), sympy.Integer(n_in)))


def _step(
    fact: ParameterFact, role: Role, planned: PlannedParameter, values: _Values, rule: Rule
) -> float:
    """Theory's estimate of the norm of a step on multiplier × parameter, at base rate 1, with the
    plan's numbers.

    The gradient with respect to that product is the unit's own, times the branch's factor for
    parameters inside a branch; with respect to the stored numbers it is larger by the multiplier.
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
    """Norm of a step at rate 1, cached because many layers are alike."""
    core = unit.branch if isinstance(unit, Residual) else unit
    known = {formulas.symbol(name): value for name, value in numbers}
    n_out, n_in, gradient = (
        sympy.sympify(size).subs(known) for size in (*core.shape(), core.gradient_norm())
    )
    sizes = StepSizes(n_out, n_in, rms=sympy.Float(rms), gradient=gradient * gradient_scale)
    step = float(optimizer_named(optimizer).step(sizes))
    # For a vector, the root mean square.
    return step / math.sqrt(n_out) if isinstance(core, Vector) else step


def _unit(fact: ParameterFact, role: Role) -> tuple[Unit, dict[str, int]]:
    in_block = fact.depth is not None
    if fact.role != "fused_qkv" or role == "fused_qkv":
        return unit_for(fact.role, in_block=in_block, output=fact.output), dimensions(fact)
    return getattr(fused_unit(in_block=in_block), role[0]), fused_dimensions(fact)
