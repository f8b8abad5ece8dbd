"""`plan`: from a model and its base to a `Plan`."""

from collections.abc import Collection, Mapping
from typing import get_args

import torch
from torch import nn

from mupscale.errors import OptionError, UnknownNameError
from mupscale.planning.assignment import ParameterAssignment, PlanChoices
from mupscale.planning.base import Base, base_facts
from mupscale.planning.cautions import cautions
from mupscale.planning.plan import Plan
from mupscale.planning.values import Multipliers
from mupscale.reading import Inputs, ModelFacts, Reading, read, read_with_base
from mupscale.reading.structure import bare, bare_name
from mupscale.theory import DECAYS, Decay, Optimizer, Rule, optimizer_named, rule_named


def plan(
    model: nn.Module | ModelFacts,
    *,
    base: Base,
    optimizer: str | Optimizer | type[torch.optim.Optimizer] | torch.optim.Optimizer = "adamw",
    rule: str | Rule = "gqa-mup",
    decay: Decay | None = None,
    reference_r: int | None = None,
    multipliers: Multipliers = "fold",
    reading: Reading | None = None,
    roles: Mapping[str, str] | None = None,
    ignore: Collection[str] = (),
    inputs: Inputs | None = None,
) -> Plan:
    """Plan what each parameter of a model gets, relative to values tuned on `base`.

    The model does not change.

    Parameters
    ----------
    model
        Any nn.Module, also on the meta device, or its facts.
    base
        The model that you tuned (also on the meta device), its Hugging Face config, or dimensions:
        {"width": 512, "depth": 8}.
    optimizer
        adamw, adam, sgd, momentum, lion, muon, …, or a class such as torch.optim.AdamW.
    rule
        sp, mup, complete-p, gqa-mup, the rule.json of a calibration, or a Rule.
    decay
        lr_coupled, independent or l2 (default: what torch's optimizer does).
    reference_r
        Compare r, the query heads per key/value head, with this value instead of the base's r.
        1 gives the paper's absolute factor.
    multipliers
        "fold" moves factors of the forward pass into the weights where that is exact; "hook" keeps
        them in the forward pass.
    roles
        Roles by pattern, for parameters that mupscale cannot identify:
        {"*.mixer.in_proj.weight": "hidden"}.
    ignore
        Keys of the config that look like multipliers but do not change with width or depth.
    inputs
        Arguments of the forward pass, for a model that needs more than tokens.
    reading
        roles, ignore and inputs as one value, which the plan keeps.
    """
    reading = (reading or Reading()) | Reading(roles or {}, tuple(ignore), inputs)
    chosen = _known(optimizer)
    rule = rule_named(rule) if isinstance(rule, str) else rule
    if decay is not None and decay not in DECAYS:
        raise UnknownNameError("decay", decay, DECAYS)
    if multipliers not in get_args(Multipliers):
        raise UnknownNameError("choice for multipliers", multipliers, get_args(Multipliers))
    facts, tuned = _facts(model, base, reading)
    choices = PlanChoices(chosen, rule, decay or chosen.decay, reference_r, multipliers)
    assignment = ParameterAssignment(facts, tuned, choices)
    parameters = assignment.parameters()
    return Plan(
        model=facts.architecture.__name__,
        optimizer=chosen.name,
        rule=rule,
        decay=choices.decay,
        target=_dimensions(facts),
        base=_dimensions(tuned),
        multipliers=multipliers,
        parameters=parameters,
        hooks=tuple(assignment.hooks),
        final_norm=facts.final_gain.rpartition(".")[0] if facts.final_gain else None,
        reference_r=reference_r,
        warnings=tuple(cautions(facts, tuned, choices, parameters)),
        reading=reading,
    )


def _facts(
    model: nn.Module | ModelFacts, base: Base, reading: Reading
) -> tuple[ModelFacts, ModelFacts]:
    """The facts of a model and of its base; facts passed in are not read again."""
    if isinstance(model, nn.Module) and isinstance(base, nn.Module) and base is not model:
        return read_with_base(model, base, reading=reading)
    facts = model if isinstance(model, ModelFacts) else read(model, reading=reading)
    if base is model:
        return facts, facts

    def read_base(other: nn.Module) -> ModelFacts:
        names = [bare_name(name) for name, _ in bare(other).named_parameters()]
        return read(other, reading=reading.fitting(names), like=facts)

    return facts, base_facts(facts, base, read_base)


def _known(optimizer: object) -> Optimizer:
    """A plan stores only the name of its optimizer, so the name must identify it."""
    known = optimizer_named(optimizer.name if isinstance(optimizer, Optimizer) else optimizer)
    if isinstance(optimizer, Optimizer) and optimizer != known:
        raise OptionError(
            f"this optimizer has the name {optimizer.name!r} but differs from the built-in "
            f"{optimizer.name}. Give it another name, and derive its factors with "
            "mupscale.derive(unit, optimizer)."
        )
    return known


def _dimensions(facts: ModelFacts) -> dict[str, int]:
    names = ("width", "depth", "heads", "kv_heads", "head_dim")
    sizes = {name: getattr(facts, name) for name in names} | {"r": facts.repetitions}
    return {name: value for name, value in sizes.items() if value is not None}
