"""`plan`: from a model and its base to a `Plan`."""

from collections.abc import Collection, Mapping, Sequence
from typing import get_args

import torch
from torch import nn

from mupscale.errors import OptionError, UnknownNameError
from mupscale.planning.assignment import Assignment, Choices
from mupscale.planning.base import Base, base_facts
from mupscale.planning.plan import Plan
from mupscale.planning.values import Multipliers, PlannedParameter
from mupscale.reading import Inputs, ModelFacts, Reading, read
from mupscale.reading.structure import bare, bare_name, class_of
from mupscale.theory import DECAYS, Decay, Optimizer, Rule, optimizer_named, rule_named


def plan(
    model: nn.Module,
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
    """What each parameter of a model gets, relative to the values tuned on `base`. The model is not changed.

    model        any nn.Module, also on the meta device
    base         the model that was tuned (meta will do), its Hugging Face config, or {"width": 512, "depth": 8}
    optimizer    adamw, adam, sgd, momentum, lion, muon, …; or its class, torch.optim.AdamW
    rule         sp, mup, complete-p, gqa-mup, the rule.json of a calibration, or a Rule
    decay        lr_coupled, independent or l2; what torch's optimizer does, unless said
    reference_r  read key/value sharing against this r instead of the base's; 1 gives the paper's absolute factor
    multipliers  "fold" them into the weights where that is exact, or "hook" them into the forward pass
    roles        what a parameter is, by pattern, where it is not understood: {"*.mixer.in_proj.weight": "hidden"}
    ignore       keys of the config that look like multipliers and do not change with width or depth
    inputs       arguments of the forward pass, for a model that does not take tokens alone
    reading      roles, ignore and inputs as one value, which a plan keeps
    """
    reading = (reading or Reading()) | Reading(roles or {}, tuple(ignore), inputs)
    chosen = _known(optimizer)
    rule = rule_named(rule) if isinstance(rule, str) else rule
    if decay is not None and decay not in DECAYS:
        raise UnknownNameError("decay", decay, DECAYS)
    if multipliers not in get_args(Multipliers):
        raise UnknownNameError("choice for multipliers", multipliers, get_args(Multipliers))

    def facts_of_base(other: nn.Module, like: ModelFacts | None = None) -> ModelFacts:
        return read(other, reading=reading.fitting(_names(other)), like=like)

    if isinstance(base, nn.Module) and base is not model:
        # The base is small and often has weights, so it can be followed where the model itself cannot, and the reverse.
        low = facts_of_base(base) if _can_lead(base) else None
        facts = read(model, reading=reading, like=low)
        low = low or facts_of_base(base, facts)
    else:
        facts = read(model, reading=reading)
        low = facts if base is model else base_facts(model, facts, base, facts_of_base)
    choices = Choices(chosen, rule, decay or chosen.decay, reference_r, multipliers)
    assignment = Assignment(facts, low, choices)
    parameters = assignment.parameters()
    return Plan(
        model=class_of(model).__name__,
        optimizer=chosen.name,
        rule=rule,
        decay=choices.decay,
        target=_dimensions(facts),
        base=_dimensions(low),
        multipliers=multipliers,
        parameters=parameters,
        hooks=tuple(assignment.hooks),
        final_norm=facts.final_gain.rpartition(".")[0] if facts.final_gain else None,
        reference_r=reference_r,
        warnings=tuple(_warnings(facts, low, choices, parameters)),
        reading=reading,
    )


def _can_lead(base: nn.Module) -> bool:
    """Whether a base is small and has weights, so that it runs on the CPU if it does not on the meta device."""
    return not any(parameter.is_meta for parameter in base.parameters())


def _known(optimizer: object) -> Optimizer:
    """A plan keeps the name of its optimizer, so the name must say all of it."""
    known = optimizer_named(optimizer.name if isinstance(optimizer, Optimizer) else optimizer)
    if isinstance(optimizer, Optimizer) and optimizer != known:
        raise OptionError(
            f"this optimizer is called {optimizer.name!r}, and is not the {optimizer.name} that plans know. Give it a "
            "name of its own, and derive its factors with mupscale.derive(unit, optimizer)."
        )
    return known


def _names(base: nn.Module) -> list[str]:
    return [bare_name(name) for name, _ in bare(base).named_parameters()]


def _dimensions(facts: ModelFacts) -> dict[str, int]:
    numbers = {"width": facts.width, "depth": facts.depth, "heads": facts.heads, "kv_heads": facts.kv_heads,
               "head_dim": facts.head_dim, "r": _repetitions(facts)}  # fmt: skip
    return {name: value for name, value in numbers.items() if value is not None}


def _repetitions(facts: ModelFacts) -> int:
    return max((f.repetitions for f in facts.parameters.values()), default=1)


def _few(templates: Sequence[str]) -> str:
    names = list(dict.fromkeys(templates))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _warnings(
    facts: ModelFacts, base: ModelFacts, choices: Choices, parameters: Mapping[str, PlannedParameter]
) -> list[str]:
    found: list[str] = []
    r, base_r = _repetitions(facts), _repetitions(base)
    if facts.kv_heads and facts.kv_heads == base.kv_heads and facts.width != base.width and r != base_r:
        found.append(
            f"the number of key/value heads stays at {facts.kv_heads} while the width grows {base.width} → "
            f"{facts.width}, so r grows with it ({base_r} → {r}). Transfer across r is the least tested part of the "
            "rule: a base with the same r is safer."
        )
    elif r != base_r:
        why = (
            f"{choices.rule.name} gives keys and values no rate of their own"
            if choices.rule.kv_factor == "hidden"
            else "the rates of keys and values rest on "
            + ("what was measured on another model" if choices.rule.because else "a young rule")
        )
        found.append(f"r differs ({base_r} → {r}): {why}. A base with the same r is safer.")
    if (
        facts.head_dim
        and base.head_dim
        and facts.head_dim != base.head_dim
        and "attention_multiplier" not in facts.settings
    ):
        found.append(
            f"head_dim differs ({base.head_dim} → {facts.head_dim}) and attention scores are divided by √head_dim: "
            "their size changes with training at another rate. Keep head_dim, or scale scores by 1/head_dim."
        )
    if facts.tied_readout:
        found.append(
            "the readout is tied to the embedding: they share one rate, and the readout's factor is in the final norm"
            + ("." if facts.final_gain and facts.followed else " or, here, in a hook.")
        )
    left: dict[str, list[str]] = {}
    for p in parameters.values():
        if p.kept or (not p.drawn and p.start is None):
            left.setdefault(p.kept or "no constant", []).append(p.template)
    for why, templates in left.items():
        found.append(f"initialize_ leaves {_few(templates)} as the model made them ({why}).")
    if not facts.followed:
        found.append(
            f"no forward pass could be followed ({facts.not_followed}): every role rests on names and shapes alone. "
            "Pass inputs=(…) or inputs={…}, or check the plan with a coordinate check."
        )
    if (
        facts.depth != base.depth
        and choices.rule.depth != "none"
        and any(f.post_norm for f in facts.parameters.values())
    ):
        found.append(
            f"the residual stream is normalized after each sum (post-LN), and the depth differs ({base.depth} → "
            f"{facts.depth}): what {choices.rule.depth} on the branches does there is not derived. Keep the depth of "
            "the base, or check with a coordinate check over depth."
        )
    if (choices.decay == "l2") != (choices.optimizer.decay == "l2"):
        found.append(
            f"the plan is for {choices.decay} decay; torch's {choices.optimizer} decays by {choices.optimizer.decay}."
        )
    beyond = dict.fromkeys(p.role for p in parameters.values() if p.standing == "extrapolated")
    if beyond:
        found.append(f"{', '.join(beyond)}: extrapolated beyond the paper. Check them with a coordinate check.")
    return found
