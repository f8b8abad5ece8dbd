"""What a reader of a plan should know besides its numbers: the plan's warnings."""

from collections.abc import Iterator, Mapping, Sequence

from mupscale.planning.assignment import PlanChoices
from mupscale.planning.values import PlannedParameter
from mupscale.reading import ModelFacts


def cautions(
    facts: ModelFacts,
    base: ModelFacts,
    choices: PlanChoices,
    parameters: Mapping[str, PlannedParameter],
) -> Iterator[str]:
    """Those that apply to this plan. What holds for every plan is in the documentation."""
    yield from _of_sharing(facts, base, choices)
    yield from _of_reading(facts)
    yield from _of_starts(parameters)
    if facts.depth != base.depth:
        yield from _of_depth(facts, base, choices)
    if (choices.decay == "l2") != (choices.optimizer.decay == "l2"):
        yield f"the plan is for {choices.decay} decay; torch's {choices.optimizer} decays by {choices.optimizer.decay}."
    beyond = dict.fromkeys(p.role for p in parameters.values() if p.standing == "extrapolated")
    if beyond:
        yield f"{', '.join(beyond)}: extrapolated beyond the paper. Check them with a coordinate check."


def _of_sharing(facts: ModelFacts, base: ModelFacts, choices: PlanChoices) -> Iterator[str]:
    r, base_r = facts.repetitions, base.repetitions
    if (
        facts.kv_heads
        and facts.kv_heads == base.kv_heads
        and facts.width != base.width
        and r != base_r
    ):
        yield (
            f"the number of key/value heads stays at {facts.kv_heads} while the width grows "
            f"{base.width} → "
            f"{facts.width}, so r grows with it ({base_r} → {r}). Transfer across r is the least "
            "tested part of the "
            "rule: a base with the same r is safer."
        )
    elif r != base_r:
        measured = "what was measured on another model" if choices.rule.evidence else "a young rule"
        none = choices.rule.kv_factor == "hidden"
        why = (
            f"{choices.rule.name} gives keys and values no rate of their own"
            if none
            else f"the rates of keys and values rest on {measured}"
        )
        yield f"r differs ({base_r} → {r}): {why}. A base with the same r is safer."
    other_heads = facts.head_dim and base.head_dim and facts.head_dim != base.head_dim
    if other_heads and "attention_multiplier" not in facts.settings:
        yield (
            f"head_dim differs ({base.head_dim} → {facts.head_dim}) and attention scores are "
            "divided by √head_dim: "
            "their size changes with training at another rate. Keep head_dim, or scale scores by "
            "1/head_dim."
        )


def _of_reading(facts: ModelFacts) -> Iterator[str]:
    if facts.tied_readout:
        yield (
            "the readout is tied to the embedding: they share one rate, and the readout's factor "
            "is in the final norm"
            + ("." if facts.final_gain and facts.followed else " or, here, in a hook.")
        )
    if not facts.followed:
        yield (
            f"no forward pass could be followed ({facts.not_followed}): every role rests on names "
            "and shapes alone. "
            "Pass inputs=(…) or inputs={…}, or check the plan with a coordinate check."
        )


def _of_starts(parameters: Mapping[str, PlannedParameter]) -> Iterator[str]:
    left: dict[str, list[str]] = {}
    for p in parameters.values():
        if p.kept or (not p.drawn and p.start is None):
            left.setdefault(p.kept or "no constant", []).append(p.template)
    for why, templates in left.items():
        yield f"initialize_ leaves {_few(templates)} as the model made them ({why})."


def _of_depth(facts: ModelFacts, base: ModelFacts, choices: PlanChoices) -> Iterator[str]:
    differs = f"the depth differs ({base.depth} → {facts.depth})"
    every = facts.parameters.values()
    if choices.rule.depth != "none" and any(fact.post_norm for fact in every):
        yield (
            f"the residual stream is normalized after each sum (post-LN), and {differs}: what "
            f"{choices.rule.depth} on "
            "the branches does there is not derived. Keep the depth of the base, or check over "
            "depth."
        )
    by_layer = [
        f.template
        for f in every
        if f.role == "gain" and f.shape == (facts.depth,) and facts.depth > 1
    ]
    if by_layer:
        yield (
            f"{_few(by_layer)}: one number for each layer, and {differs}. No rule here says how "
            "they must change with "
            "depth. Keep the depth of the base, or check over depth."
        )


def _few(templates: Sequence[str]) -> str:
    names = list(dict.fromkeys(templates))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
