"""Parameter groups for an optimizer."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from mupscale.errors import NotExactError, OptionError, UnknownNameError
from mupscale.planning.values import PlannedParameter
from mupscale.reading import ROLES
from mupscale.theory import Decay, optimizer_named

Number = float | Tensor
PerRole = Number | Mapping[str, Number]
"""One base value for all roles, or one per role with a "default" for the others; a tensor with one
number counts as a number.
"""


def value_of(value: PerRole, role: str) -> float:
    """The base value of a role.

    >>> value_of({"default": 0.01, "embedding": 0.04}, "embedding")
    0.04
    """
    if isinstance(value, Mapping):
        value = value.get(role, value.get("default", math.nan))
    number = plain_number(value)
    return math.nan if number is None else number


def plain_number(value: object) -> float | None:
    """The float in a number of Python or numpy, or in a tensor with one number; else None.

    >>> import torch
    >>> plain_number(torch.tensor(0.5)), plain_number(3), plain_number(True), plain_number("0.5")
    (0.5, 3.0, None, None)
    """
    if isinstance(value, Tensor):
        real = not value.is_complex() and value.dtype != torch.bool
        single = value.numel() == 1 and not value.is_meta and real
        return float(value.detach().item()) if single else None
    if isinstance(value, bool):
        return None
    return float(value) if isinstance(value, Real) else None


def check_per_role(what: str, value: PerRole, roles: Iterable[str]) -> None:
    """Require numbers ≥ 0 for roles that the model has, and a default for those left out."""
    values: Mapping[str, Any] = value if isinstance(value, Mapping) else {"default": value}
    present = set(roles)
    for role, number in values.items():
        if role != "default" and role not in ROLES:
            raise UnknownNameError(f"role in {what}", role, ["default", *ROLES])
        if role != "default" and role not in present:
            known = ", ".join(sorted(present))
            raise OptionError(f"{what}: no parameter has the role {role}. Roles: {known}.")
        plain = plain_number(number)
        if plain is None or not math.isfinite(plain) or plain < 0:
            raise OptionError(f"{what}: {number!r} for {role} must be a finite number ≥ 0.")
    missing = ", ".join(sorted(present - set(values)))
    if "default" not in values and missing:
        example = f'{what}={{"default": …, …}}'
        raise OptionError(f'{what} has no value for {missing}. Add a "default": {example}.')


@dataclass(frozen=True)
class BaseValues:
    """The values tuned on the base."""

    lr: PerRole
    weight_decay: PerRole
    eps: PerRole | None
    decay: Decay

    def check(self, parameters: Sequence[PlannedParameter]) -> None:
        for what in ("lr", "weight_decay", "eps"):
            value = getattr(self, what)
            if value is not None:
                check_per_role(what, value, [p.role for p in parameters])
        if isinstance(self.weight_decay, Mapping):
            for role in sorted({p.role for p in parameters if p.weight_decay == 0}):
                if self.weight_decay.get(role):
                    raise OptionError(
                        f"weight_decay names {role}, which the rules do not decay. Leave it out."
                    )
        without = next((p.optimizer for p in parameters if takes_no_eps(p)), None)
        if self.eps is not None and without:
            raise OptionError(f"eps={self.eps}: {without} takes no such epsilon. Leave it out.")

    def of(self, parameter: PlannedParameter) -> dict[str, float]:
        """Rate, decay and epsilon in numbers."""
        lr = value_of(self.lr, parameter.role) * parameter.lr
        decay = value_of(self.weight_decay, parameter.role) * parameter.weight_decay
        if self.decay == "independent" and decay:
            if lr == 0:
                raise OptionError(
                    "lr=0: independent decay is passed to torch as decay / lr. Use a tiny lr."
                )
            decay /= lr
        values = {"lr": lr, "weight_decay": decay}
        default = optimizer_named(parameter.optimizer).eps
        if default is None:
            return values
        eps = default if self.eps is None else self.eps
        return values | {"eps": value_of(eps, parameter.role) * parameter.eps}


def takes_no_eps(parameter: PlannedParameter) -> bool:
    """Lion and SGD have no epsilon; torch's Adafactor takes a pair with another meaning."""
    return optimizer_named(parameter.optimizer).eps is None


def make_groups(
    parameters: Sequence[PlannedParameter],
    tensors: Mapping[str, Tensor],
    base: BaseValues,
    *,
    split_rows: bool,
    extra: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """One group per set of distinct values, in the order of the model."""
    base.check(parameters)
    merged: dict[Any, list[PlannedParameter]] = {}
    for parameter in parameters:
        if tensors[parameter.name].requires_grad:
            layout = _layout(parameter) if split_rows else _plain(parameter)
            merged.setdefault((*base.of(parameter).items(), *layout.items()), []).append(parameter)
    # A group is named for its roles, and for its first parameter if another has the same roles.
    roles = ["+".join(dict.fromkeys(p.role for p in group)) for group in merged.values()]
    return [
        {
            "params": [tensors[p.name] for p in group],
            "param_names": [p.name for p in group],
            "name": name if roles.count(name) == 1 else f"{name} ({group[0].template})",
            "initial_lr": base.of(group[0])["lr"],
            **dict(key),
            **extra,
        }
        for name, (key, group) in zip(roles, merged.items(), strict=True)
    ]


def _layout(parameter: PlannedParameter) -> dict[str, Any]:
    """How `mupscale.optim.Muon` must step a tensor that holds several matrices."""
    optimizer = optimizer_named(parameter.optimizer)
    if not optimizer.whole_matrix:
        return {}
    _refuse_kernel(parameter)
    settings = dict(optimizer.settings)  # how Muon scales its steps: the rates depend on it
    decay = parameter.weight_decay
    blocks = tuple(
        (block.slices, block.lr / parameter.lr, block.weight_decay / decay if decay else 1.0)
        for block in parameter.rows
    )
    return settings | {"out_axis": parameter.out_axis, "blocks": blocks or None}


def _refuse_kernel(parameter: PlannedParameter) -> None:
    if parameter.kernel:
        raise NotExactError(
            f"{parameter.name} is the kernel of a convolution, {parameter.shape}, which "
            f"{parameter.optimizer} would treat as a stack of matrices. Train models with "
            "convolutions with adamw."
        )


def _plain(parameter: PlannedParameter) -> dict[str, Any]:
    """Settings for torch's own optimizers; an error where stepping the whole tensor is wrong."""
    optimizer = optimizer_named(parameter.optimizer)
    if not optimizer.whole_matrix:
        return {}
    _refuse_kernel(parameter)
    problem = (
        "fuses q, k and v, which need different rates"
        if len({block.lr for block in parameter.rows}) > 1
        else "stacks several matrices"
        if len(parameter.shape) > 2
        else "is stored transposed"
        if parameter.out_axis == 1
        else "must be stepped by √(n_out/n_in)"
        if parameter.optimizer == "muon-spectral"
        else ""
    )
    if problem:
        raise NotExactError(
            f"{parameter.name} {problem}, which torch.optim.Muon does not support. Use "
            "mupscale.optim.Muon, with plan.param_groups(…, split_rows=True)."
        )
    return dict(optimizer.settings)
