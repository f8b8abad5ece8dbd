"""Whether an optimizer is the one that a plan was made for, and still has its values: after
`load_state_dict`, say.
"""

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

_TOLERANCE = 1e-6
_ADAMS = {"adam", "adamw"}
"""The same steps; they differ in how they decay."""


@dataclass(frozen=True)
class Verified:
    """What was compared with the plan and found right, and what could not be compared."""

    checked: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    "What may be right, but that the plan's rules do not cover."

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
    "Whether to look at the weights; None: where the optimizer has not stepped."


def verify(
    parameters: Mapping[str, PlannedParameter],
    optimizer: Optimizer,
    base: Mapping[str, Any],
    decay: Decay,
    weights: Weights | None = None,
) -> Verified:
    """Raise if the optimizer is of another class, a group has other values than the plan gives it,
    or the weights were not drawn by the plan.

    The base values are those given, or else what the middle group implies.
    """
    optimizer = unwrapped(optimizer)
    names = (
        None if weights is None else {id(tensor): name for name, tensor in weights.tensors.items()}
    )
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
    doubts, unknown = tuple(_doubts(optimizer, groups)), _unknown_class(optimizer, groups)
    checked = [*([] if unknown else ["class"]), "betas", "lr", "weight_decay", "eps", "schedule"]
    skipped = ["class, since it is not known"] if unknown else []
    reason = "no model was given" if weights is None else _why_not_weights(optimizer, weights)
    if weights is None or reason:
        skipped.append(f"weights, since {reason}")
    else:
        _check_weights(parameters, weights)
        checked.append("weights")
    return Verified(tuple(checked), tuple(skipped), doubts)


def unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer inside of a wrapper, as accelerate and Lightning have them."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _other_class(optimizer: Optimizer, groups: Sequence["_Group"], decay: Decay) -> Iterator[str]:
    """A class that steps or decays differently; one that is not known is no problem but a doubt."""
    for group in groups:
        actual, planned = name_of_class(optimizer, group.options), group.optimizers
        if actual is None or not planned:
            continue
        if {actual, *planned} <= _ADAMS:
            yield from _other_decay(actual, group, decay, _class(optimizer))
        elif planned != [actual]:
            yield f"{group.name}: {_class(optimizer)} {_how(actual)}; the plan is for {' and '.join(planned)}"


def _doubts(optimizer: Optimizer, groups: Sequence["_Group"]) -> Iterator[str]:
    for option in ("amsgrad", "maximize"):
        if any(group.options.get(option) for group in groups):
            yield f"the optimizer has {option}=True, for which the plan's rules were not derived."
    unknown = _unknown_class(optimizer, groups)
    if unknown:
        planned = " and ".join(unknown[0].optimizers)
        yield f"mupscale does not know {_class(optimizer)}: whether it steps as {planned} does was not checked."


def _unknown_class(optimizer: Optimizer, groups: Sequence["_Group"]) -> list["_Group"]:
    return [
        group
        for group in groups
        if group.members and name_of_class(optimizer, group.options) is None
    ]


def _class(optimizer: Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _other_decay(actual: str, group: "_Group", decay: Decay, cls: str) -> Iterator[str]:
    inside, planned_inside = actual == "adam", decay == "l2"
    if inside == planned_inside or not float(group.options.get("weight_decay", 0.0)):
        return
    how = (
        "adds decay to the gradient (l2)"
        if inside
        else "decays apart from the gradient (lr_coupled)"
    )
    other = "torch.optim.AdamW" if inside else "torch.optim.Adam"
    yield f"{group.name}: {cls} {how}; the plan is for {decay} decay. Use {other}, or plan(…, optimizer={actual!r})"


def _how(actual: str) -> str:
    more = {"momentum": " with momentum", "sgd": " without momentum"}
    return f"is sgd{more[actual]}" if actual in more else f"is {actual}"


def _other_betas(groups: Sequence["_Group"], given: Sequence[float] | None) -> Iterator[str]:
    held = [
        (group, [float(beta) for beta in group.options["betas"]])
        for group in groups
        if "betas" in group.options
    ]
    if not held:
        return
    common = sorted(betas for _, betas in held)[(len(held) - 1) // 2]
    expected = common if given is None else [float(beta) for beta in given]
    for group, betas in held:
        if betas != expected:
            others = (
                f"the others have {tuple(common)}"
                if given is None
                else f"{tuple(expected)} was given"
            )
            yield f"{group.name}: betas are {tuple(betas)}, {others}"


def _why_not_weights(optimizer: Optimizer, weights: Weights) -> str | None:
    """Why weights are not looked at: training changes them."""
    if weights.drawn is not None:
        return None if weights.drawn else "drawn=False"
    if any(tensor.is_meta for tensor in weights.tensors.values()):
        return "the model is on the meta device"
    if optimizer.state:
        return "the optimizer has stepped already"
    if all(name_of_class(optimizer, group) in ("sgd", None) for group in optimizer.param_groups):
        return f"{type(optimizer).__name__} keeps no state that says whether it has stepped (drawn=True checks them)"
    return None


def _check_weights(parameters: Mapping[str, PlannedParameter], weights: Weights) -> None:
    found = fingerprint.unplanned_weights(parameters, weights.tensors, weights.std, weights.padding)
    if found:
        more = [f"  and {len(found) - 8} more"] if len(found) > 8 else []
        by_role = (
            " If you drew them with a std by role, give verify the same std."
            if weights.std is None
            else ""
        )
        raise PlanMismatchError(
            "the weights are not drawn by the plan:\n"
            + "\n".join([*(f"  {line}" for line in found[:8]), *more])
            + f"\nCall plan.initialize_(model, …) before training.{by_role} If you loaded them, "
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
            names = [
                tensors.get(id(tensor), "a tensor that the model does not have")
                for tensor in options["params"]
            ]
        if names is None:
            raise PlanMismatchError(
                f"{name} does not say which parameters it holds. Make it with plan.param_groups."
            )
        unknown = [other for other in names if other not in parameters]
        if unknown:
            raise PlanMismatchError(f"{name} holds {unknown[0]}, which is not in the plan.")
        return _Group(name, options, [parameters[other] for other in names])

    @property
    def optimizers(self) -> list[str]:
        """Those that the plan has for its members."""
        return list(dict.fromkeys(member.optimizer for member in self.members))

    @property
    def initial_lr(self) -> float:
        return float(self.options.get("initial_lr", self.options["lr"]))

    def actual(self, field: str, decay: Decay) -> float:
        if field == "lr":
            return self.initial_lr
        value = float(self.options[field])
        return (
            value * self.initial_lr if field == "weight_decay" and decay == "independent" else value
        )

    def has(self, field: str) -> bool:
        return (
            bool(self.members)
            and (field != "eps" or not takes_no_eps(self.members[0]))
            and field in self.options
        )


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
            if abs(actual - expected) > _TOLERANCE * max(abs(expected), abs(actual)):
                yield f"{group.name}: {field} is {actual:.6g}, the plan has {expected:.6g} for {member.template}"


def _off_schedule(groups: Sequence[_Group]) -> Iterator[str]:
    at = [
        float(group.options["lr"]) / group.initial_lr if group.initial_lr else 0.0
        for group in groups
    ]
    common = statistics.median_low(at)
    for group, share in zip(groups, at, strict=True):
        if abs(share - common) > _TOLERANCE * max(abs(common), abs(share)):
            yield f"{group.name}: lr is at {share:.4g} of its start, the others are at {common:.4g}"
