"""What a plan gives, taken from what a user would use of it: its groups, its hooks and the weights that it sets."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import nn

import mupscale as mu
from tests.foreign.formulas import Numbers

STD = 0.02


def numbers_of(plan: mu.Plan, model: nn.Module) -> dict[str, Numbers]:
    """For each trained parameter its factors, with what a hook multiplies by counted as part of the weight."""
    plan.attach_(model)
    found: dict[str, Numbers] = {}
    for group in plan.param_groups(model, lr=1.0, weight_decay=1.0, eps=1.0):
        for name in group["param_names"]:
            own = plan.parameters[name]
            std = own.init_std if own.drawn else None
            numbers = Numbers(group["lr"], group["weight_decay"], group["eps"], std)
            found[name] = numbers.times(own.multiplier)
    return found


def expected_for(names: list[str], table: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """By the first pattern that matches. A parameter without one, and a pattern without a parameter, are mistakes."""
    chosen: dict[str, str] = {}
    for name in names:
        pattern = next((pattern for pattern in table if fnmatchcase(name, pattern)), None)
        assert pattern is not None, f"the table of expected numbers has nothing for {name}"
        chosen[name] = pattern
    idle = set(table) - set(chosen.values())
    assert not idle, f"the table of expected numbers has patterns that match nothing: {sorted(idle)}"
    return {name: table[pattern] for name, pattern in chosen.items()}


def differences(found: Mapping[str, Numbers], wanted: Mapping[str, Numbers]) -> list[str]:
    """One line for each number that is not what it must be."""
    wrong: list[str] = []
    for name, want in wanted.items():
        got = found.get(name)
        if got is None:
            wrong.append(f"{name} is not trained")
            continue
        for what in ("std", "lr", "decay", "eps"):
            one, other = getattr(got, what), getattr(want, what)
            if other is None or one is None:
                continue
            if abs(one - other) > 1e-9 * max(abs(one), abs(other)):
                wrong.append(f"{name}: {what} {one:.6g}, must be {other:.6g}")
    return wrong + [f"{name} is trained, and must not be" for name in found if name not in wanted]


def gain_of(norm: nn.Module, width: int) -> float:
    """What a norm multiplies by, measured: the size of what comes out for an input of size 1."""
    x = torch.randn(64, width, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        y = norm.double()(x - x.mean(-1, keepdim=True))
    return float(y.square().mean().sqrt())
