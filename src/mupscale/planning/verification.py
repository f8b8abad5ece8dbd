"""Whether an optimizer follows a plan, also after `load_state_dict`."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from mupscale.errors import PlanMismatchError
from mupscale.planning import fingerprint
from mupscale.planning.groups import PerRole, takes_no_eps, value_of
from mupscale.planning.values import PlannedParameter
from mupscale.theory import Decay, name_of_class

TOLERANCE = 1e-6
"""Relative: room for rounding in float32, far below any change that matters to training."""
_ADAMS = {"adam", "adamw"}
"""The same steps; they differ in how they decay."""
_SHOWN = 8
"""Templates that a message about weights lists."""


@dataclass(frozen=True)
class Verified:
    """What was compared with the plan and agrees, and what could not be compared."""

    checked: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What may be right, but is not covered by the plan's rules."""

    def __str__(self) -> str:
        skipped = f"; not checked: {'; '.join(self.skipped)}" if self.skipped else ""
        return f"as planned: {', '.join(self.checked)}{skipped}"


@dataclass(frozen=True)
class Weights:
    """A model's tensors, and what its weights are compared with."""

    tensors: Mapping[str, Tensor]
    std: PerRole | None
    padding: Mapping[str, int]
    drawn: bool | None
    """Whether to check the weights; None checks them if the optimizer has not stepped."""


def verify(
    parameters: Mapping[str, PlannedParameter],
    optimizer: Optimizer,
    base: Mapping[str, Any],
    decay: Decay,
    weights: Weights | None = None,
) -> Verified:
    """Raise if the optimizer's class, the values of a group or the weights differ from the plan.

    Base values that are None are inferred from the median group.
    """
    optimizer = unwrapped(optimizer)
    names = None if weights is None else {id(t): name for name, t in weights.tensors.items()}
    groups = [
        _Group.of(group, number, parameters, names)
        for number, group in enumerate(optimizer.param_groups)
    ]
    problems = [*_other_class(optimizer, groups, decay), *_other_betas(groups, base.get("betas"))]
    for field in ("lr", "weight_decay", "eps"):
        problems += _deviations(field, groups, base.get(field), decay)
    problems += _off_schedule(groups)
    if problems:
        raise PlanMismatchError(
            "the optimizer does not follow the plan:\n" + "\n".join(f"  {p}" for p in problems)
        )
    unknown = [g for g in groups if g.members and name_of_class(optimizer, g.options) is None]
    checked = ["betas", "lr", "weight_decay", "eps", "schedule"]
    skipped = ["class, since it is not known"] if unknown else []
    reason = "no model was given" if weights is None else _why_not_weights(optimizer, weights)
    if weights is None or reason:
        skipped.append(f"weights, since {reason}")
    else:
        _check_weights(parameters, weights)
        checked.append("weights")
    warnings = [
        f"the optimizer has {option}=True, for which the plan's rules were not derived."
        for option in ("amsgrad", "maximize")
        if any(group.options.get(option) for group in groups)
    ]
    if unknown:
        planned = " and ".join(unknown[0].optimizers)
        warnings.append(
            f"mupscale does not know {_class(optimizer)}: it could not check whether it steps like "
            f"{planned}."
        )
    else:
        checked.insert(0, "class")
    return Verified(tuple(checked), tuple(skipped), tuple(warnings))


def unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer inside a wrapper of accelerate or Lightning."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _class(optimizer: Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _other_class(optimizer: Optimizer, groups: Sequence["_Group"], decay: Decay) -> Iterator[str]:
    """A class that steps or decays differently. An unknown class only gives a warning."""
    momentum = {"momentum": "sgd with momentum", "sgd": "sgd without momentum"}
    for group in groups:
        actual, planned = name_of_class(optimizer, group.options), group.optimizers
        if actual is None or not planned:
            continue
        if {actual, *planned} <= _ADAMS:
            yield from _other_decay(actual, group, decay, _class(optimizer))
        elif planned != [actual]:
            kind = momentum.get(actual, actual)
            plan = f"the plan is for {' and '.join(planned)}"
            yield f"{group.name}: {_class(optimizer)} is {kind}; {plan}"


def _other_decay(actual: str, group: "_Group", decay: Decay, cls: str) -> Iterator[str]:
    in_gradient = actual == "adam"
    if in_gradient == (decay == "l2") or not float(group.options.get("weight_decay", 0.0)):
        return
    how, other = (
        ("adds decay to the gradient (l2)", "AdamW")
        if in_gradient
        else ("decays apart from the gradient (lr_coupled)", "Adam")
    )
    fix = f"Use torch.optim.{other}, or plan(…, optimizer={actual!r})"
    yield f"{group.name}: {cls} {how}; the plan is for {decay} decay. {fix}"


def _other_betas(groups: Sequence["_Group"], given: Sequence[float] | None) -> Iterator[str]:
    with_betas = [
        (group, tuple(float(beta) for beta in group.options["betas"]))
        for group in groups
        if "betas" in group.options
    ]
    if not with_betas:
        return
    if given is None:
        expected = statistics.median_low(betas for _, betas in with_betas)
        source = f"the others have {expected}"
    else:
        expected = tuple(float(beta) for beta in given)
        source = f"{expected} was given"
    for group, betas in with_betas:
        if betas != expected:
            yield f"{group.name}: betas are {betas}, {source}"


def _why_not_weights(optimizer: Optimizer, weights: Weights) -> str | None:
    """Why weights are not checked: training changes them."""
    if weights.drawn is not None:
        return None if weights.drawn else "drawn=False"
    if any(tensor.is_meta for tensor in weights.tensors.values()):
        return "the model is on the meta device"
    if optimizer.state:
        return "the optimizer has already stepped"
    if all(name_of_class(optimizer, group) in ("sgd", None) for group in optimizer.param_groups):
        kind = type(optimizer).__name__
        return f"{kind} has no state that shows whether it has stepped (drawn=True checks them)"
    return None


def _check_weights(parameters: Mapping[str, PlannedParameter], weights: Weights) -> None:
    lines = fingerprint.unplanned_weights(parameters, weights.tensors, weights.std, weights.padding)
    if lines:
        more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        by_role = (
            " If you drew them with one std per role, pass the same std to verify."
            if weights.std is None
            else ""
        )
        raise PlanMismatchError(
            "the weights were not drawn by the plan:\n"
            + "".join(f"  {line}\n" for line in [*lines[:_SHOWN], *more])
            + f"Call plan.initialize_(model, …) before training.{by_role} If you loaded them, "
            "pass drawn=False."
        )


@dataclass(frozen=True)
class _Group:
    name: str
    options: Mapping[str, Any]
    members: Sequence[PlannedParameter]

    @staticmethod
    def of(
        options: Mapping[str, Any],
        number: int,
        parameters: Mapping[str, PlannedParameter],
        tensors: Mapping[int, str] | None,
    ) -> "_Group":
        name = f"group {number} ({options.get('name', 'without a name')})"
        names = options.get("param_names")
        if tensors is not None:
            names = [tensors.get(id(t), "a tensor unknown to the model") for t in options["params"]]
        if names is None:
            raise PlanMismatchError(f"{name} has no param_names. Make it with plan.param_groups.")
        for member in names:
            if member not in parameters:
                raise PlanMismatchError(f"{name} holds {member}, which is not in the plan.")
        return _Group(name, options, [parameters[member] for member in names])

    @property
    def optimizers(self) -> list[str]:
        """The optimizers that the plan has for its members."""
        return list(dict.fromkeys(member.optimizer for member in self.members))

    @property
    def initial_lr(self) -> float:
        return float(self.options.get("initial_lr", self.options["lr"]))

    def actual(self, field: str, decay: Decay) -> float:
        if field == "lr":
            return self.initial_lr
        value = float(self.options[field])
        independent = field == "weight_decay" and decay == "independent"
        return value * self.initial_lr if independent else value

    def has(self, field: str) -> bool:
        if not self.members or field not in self.options:
            return False
        return field != "eps" or not takes_no_eps(self.members[0])


def _deviations(
    field: str, groups: Sequence[_Group], given: PerRole | None, decay: Decay
) -> Iterator[str]:
    present = [group for group in groups if group.has(field)]
    implied = [g.actual(field, decay) / f for g in present if (f := getattr(g.members[0], field))]
    if not implied:
        return
    common = statistics.median_low(implied)
    for group in present:
        actual = group.actual(field, decay)
        for member in {getattr(p, field): p for p in reversed(group.members)}.values():
            base = common if given is None else value_of(given, member.role)
            expected = base * getattr(member, field)
            if _differ(actual, expected):
                plan = f"the plan has {expected:.6g} for {member.template}"
                yield f"{group.name}: {field} is {actual:.6g}, {plan}"


def _differ(actual: float, expected: float) -> bool:
    return abs(actual - expected) > TOLERANCE * max(abs(expected), abs(actual))


def _off_schedule(groups: Sequence[_Group]) -> Iterator[str]:
    shares = [float(g.options["lr"]) / g.initial_lr if g.initial_lr else 0.0 for g in groups]
    common = statistics.median_low(shares)
    for group, share in zip(groups, shares, strict=True):
        if _differ(share, common):
            yield f"{group.name}: lr is at {share:.4g} of its start, the others are at {common:.4g}"
