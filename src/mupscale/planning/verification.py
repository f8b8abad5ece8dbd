"""Whether an optimizer still has the values of a plan: after `load_state_dict`, say, or a change by hand."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from mupscale.errors import PlanMismatchError
from mupscale.planning.groups import PerRole, takes_no_eps, value_of
from mupscale.planning.values import PlannedParameter
from mupscale.theory import Decay

_TOLERANCE = 1e-6


def verify(
    parameters: Mapping[str, PlannedParameter],
    optimizer: Optimizer,
    base: Mapping[str, PerRole | None],
    decay: Decay,
    names: Mapping[int, str] | None = None,
) -> None:
    """Raise if a group has other values than the plan gives it, or does not follow the schedule of the others.

    The base values are those given, or else what the middle group implies. `names` are those of the model's tensors,
    by identity.
    """
    groups = [_Group.of(group, number, parameters, names) for number, group in enumerate(optimizer.param_groups)]
    problems: list[str] = []
    for field in ("lr", "weight_decay", "eps"):
        problems += _deviations(field, groups, base.get(field), decay)
    problems += _off_schedule(groups)
    if problems:
        raise PlanMismatchError("the optimizer does not follow the plan:\n" + "\n".join(f"  {p}" for p in problems))


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
            names = [tensors.get(id(tensor), "a tensor that the model has not") for tensor in options["params"]]
        if names is None:
            raise PlanMismatchError(f"{name} does not say which parameters it holds. Make it with plan.param_groups.")
        unknown = [other for other in names if other not in parameters]
        if unknown:
            raise PlanMismatchError(f"{name} holds {unknown[0]}, which is not in the plan.")
        return _Group(name, options, [parameters[other] for other in names])

    @property
    def initial_lr(self) -> float:
        return float(self.options.get("initial_lr", self.options["lr"]))

    def actual(self, field: str, decay: Decay) -> float:
        if field == "lr":
            return self.initial_lr
        value = float(self.options[field])
        return value * self.initial_lr if field == "weight_decay" and decay == "independent" else value

    def has(self, field: str) -> bool:
        return bool(self.members) and (field != "eps" or not takes_no_eps(self.members[0])) and field in self.options


def _deviations(field: str, groups: Sequence[_Group], given: PerRole | None, decay: Decay) -> Iterator[str]:
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
    at = [float(group.options["lr"]) / group.initial_lr if group.initial_lr else 0.0 for group in groups]
    common = statistics.median_low(at)
    for group, share in zip(groups, at, strict=True):
        if abs(share - common) > _TOLERANCE * max(abs(common), abs(share)):
            yield f"{group.name}: lr is at {share:.4g} of its start, the others are at {common:.4g}"
