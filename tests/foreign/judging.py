"""What a plan gives, taken from what a user would use of it: its groups, its hooks and the weights
that it sets.
"""

import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

import mupscale as mu
from tests.foreign.cases import Case
from tests.foreign.formulas import Numbers, shared
from tests.foreign.packages import HEAD

STD = 0.02


def planned(case: Case, model: nn.Module, base: nn.Module, **settings: str) -> mu.Plan:
    """A plan with the case's roles, which are as few as will do."""
    return mu.plan(model, base=base, inputs=case.inputs, roles=case.roles, **settings)


def faults(case: Case, target: Mapping[str, int], base: Mapping[str, int]) -> list[str]:
    """Everything about a plan that is not as the case's table says."""
    model, small = case.model(**target), case.model(**base)
    plan = planned(case, model, small)
    wanted = without_hooked(case, plan, wanted_numbers(case, model, target, base))
    found = differences(numbers_of(plan, model), wanted)
    found += rows_at_fault(case, plan, target, base)
    found += [
        f"{hook.module}: its {hook.where} is multiplied by {hook.factor:.6g}, must be left alone"
        for hook in plan.hooks
        if not hook.rows and not case.tied
    ]
    before = {name: tensor.detach().clone() for name, tensor in tensors_of(model)}
    plan.initialize_(model, std=STD, seed=0)
    return found + list(starts_at_fault(case, plan, before, dict(tensors_of(model)), wanted))


def count_numbers(case: Case, target: Mapping[str, int], base: Mapping[str, int]) -> int:
    """How many numbers `faults` compares: factors of each parameter, and what it starts as."""
    wanted = wanted_numbers(case, case.model(**target), target, base).values()
    return sum(4 if numbers.std is None else 5 for numbers in wanted)


def wanted_numbers(
    case: Case, model: nn.Module, target: Mapping[str, int], base: Mapping[str, int]
) -> dict[str, Numbers]:
    """The table's numbers for each trained parameter. Fused matrices have those of their
    queries.
    """
    n, L = target["width"] / base["width"], target["depth"] / base["depth"]
    r, base_r = (1, 1) if case.fused else (repetitions(target), repetitions(base))
    names = [name for name, tensor in model.named_parameters() if tensor.requires_grad]
    return expected_for(names, case.expected(n, L, r, base_r))


def without_hooked(case: Case, plan: mu.Plan, wanted: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """What is left for the final norm of a tied readout where a hook in front of the readout
    multiplies already.
    """
    factor = math.prod(hook.factor for hook in plan.hooks if case.tied and hook.where == "input")
    return {
        name: one.times(1 / factor) if case.tied and fnmatchcase(name, case.tied) else one
        for name, one in wanted.items()
    }


def repetitions(sizes: Mapping[str, int]) -> int:
    heads = sizes["width"] // HEAD
    return heads // sizes.get("n_kv_heads", heads)


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def rows_at_fault(
    case: Case, plan: mu.Plan, target: Mapping[str, int], base: Mapping[str, int]
) -> list[str]:
    """Whether the rows of keys and values in a fused matrix, and no others, have the rates of
    shared heads.
    """
    if not case.fused:
        return []
    r, base_r = repetitions(target), repetitions(base)
    factor = shared(1, r, base_r).lr
    by_group = "interleaved" in case.settings or case.name == "torchtitan"
    wrong: list[str] = []
    for name in [name for name in plan.parameters if fnmatchcase(name, case.fused)]:
        rows = row_factors(plan, name)
        for row, got in enumerate(rows):
            head = row // HEAD
            is_shared = head % (r + 2) >= r if by_group else head >= target["width"] // HEAD
            want = factor if is_shared else 1.0
            if abs(got - want) > 1e-9:
                wrong.append(
                    f"{name}: row {row} has {got:.6g} times the rate of queries, must be {want:.6g}"
                )
                break
    return wrong


def row_factors(plan: mu.Plan, name: str) -> list[float]:
    """What the hooks of a plan multiply each row of a matrix by."""
    rows = [1.0] * plan.parameters[name].shape[0]
    for hook in plan.hooks:
        if hook.module == name.rpartition(".")[0]:
            for slices, factor in hook.rows:
                for start, stop in slices:
                    rows[start:stop] = [factor] * (stop - start)
    return rows


def starts_at_fault(
    case: Case,
    plan: mu.Plan,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    wanted: Mapping[str, Numbers],
) -> Iterator[str]:
    """Whether random matrices are drawn anew with their size, and all else is what the model made
    of it.
    """
    for name, now in after.items():
        then = before[name]
        numbers = wanted.get(name)
        if numbers is None:
            if not torch.equal(now, then):
                yield f"{name} is frozen or a buffer, and was changed"
            continue
        hooked = plan.parameters[name].multiplier
        constant = bool((then == then.flatten()[0]).all())
        if numbers.std is None:
            offset = (
                case.offset if constant and not name.endswith("bias") and not then.any() else 0.0
            )
            want = (then + offset) * numbers.moved - offset if constant else torch.zeros_like(then)
            if not torch.allclose((now + offset) * hooked - offset, want, rtol=1e-5, atol=1e-12):
                start, right = float(now.mean()), float(want.mean())
                yield f"{name} starts at {start:.6g}, must start at {right:.6g}"
        elif constant:
            if not torch.equal(now, then):
                yield f"{name} was {float(then.mean()):.6g} everywhere, and was drawn"
        elif not fnmatchcase(name, case.fused):  # whose rows differ
            got, want = float(now.std()) * hooked, numbers.std * STD
            if abs(got / want - 1) > 6 / math.sqrt(2 * now.numel()):
                yield f"{name} starts with std {got:.6g}, must be {want:.6g}"


def numbers_of(plan: mu.Plan, model: nn.Module) -> dict[str, Numbers]:
    """For each trained parameter its factors, with what a hook multiplies by counted as part of the
    weight.
    """
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
    """By the first pattern that matches. A parameter without one, and a pattern without a
    parameter, are mistakes.
    """
    chosen: dict[str, str] = {}
    for name in names:
        pattern = next((pattern for pattern in table if fnmatchcase(name, pattern)), None)
        assert pattern is not None, f"the table of expected numbers has nothing for {name}"
        chosen[name] = pattern
    idle = set(table) - set(chosen.values())
    assert not idle, (
        f"the table of expected numbers has patterns that match nothing: {sorted(idle)}"
    )
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
