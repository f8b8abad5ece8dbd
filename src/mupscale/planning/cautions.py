"""What a reader of a plan should know in addition to its numbers: the plan's warnings."""

from collections.abc import Iterator, Mapping

from mupscale.planning.assignment import PlanChoices
from mupscale.planning.base import few
from mupscale.planning.values import PlannedParameter
from mupscale.reading import ModelFacts


def cautions(
    facts: ModelFacts,
    base: ModelFacts,
    choices: PlanChoices,
    parameters: Mapping[str, PlannedParameter],
) -> Iterator[str]:
    """The warnings of this plan. What holds for every plan is in the documentation."""
    yield from _of_sharing(facts, base, choices)
    yield from _of_reading(facts)
    yield from _of_starts(parameters)
    if facts.depth != base.depth:
        yield from _of_depth(facts, base, choices)
    optimizer = choices.optimizer
    if (choices.decay == "l2") != (optimizer.decay == "l2"):
        torchs = f"torch's {optimizer} decays by {optimizer.decay}"
        yield f"the plan is for {choices.decay} decay; {torchs}."
    beyond = dict.fromkeys(p.role for p in parameters.values() if p.standing == "extrapolated")
    if beyond:
        yield f"{', '.join(beyond)}: extrapolated beyond the paper. Run a coordinate check."


def _of_sharing(facts: ModelFacts, base: ModelFacts, choices: PlanChoices) -> Iterator[str]:
    r, base_r = facts.repetitions, base.repetitions
    same_kv_heads = facts.kv_heads and facts.kv_heads == base.kv_heads
    if same_kv_heads and facts.width != base.width and r != base_r:
        yield (
            f"the number of key/value heads stays at {facts.kv_heads} while the width grows "
            f"({base.width} → {facts.width}), so r, the query heads per key/value head, grows with "
            f"it ({base_r} → {r}). Transfer across r is the least tested part of the rule: a base "
            "with the same r is safer."
        )
    elif r != base_r:
        measured = "a measurement on another model" if choices.rule.evidence else "a young rule"
        why = {
            "hidden": f"{choices.rule.name} gives keys and values no rate of their own",
            "rms": f"{choices.rule.name} treats keys and values as any matrix of their shape",
        }.get(choices.rule.kv_factor, f"the rates of keys and values rest on {measured}")
        yield f"r differs ({base_r} → {r}): {why}. A base with the same r is safer."
    other_heads = facts.head_dim and base.head_dim and facts.head_dim != base.head_dim
    if other_heads and "attention_multiplier" not in facts.settings:
        yield (
            f"head_dim differs ({base.head_dim} → {facts.head_dim}) and attention scores are "
            "divided by √head_dim: their size changes with training at another rate. Keep "
            "head_dim, or scale scores by 1/head_dim."
        )


def _of_reading(facts: ModelFacts) -> Iterator[str]:
    if facts.tied_readout:
        place = "the final norm" if facts.final_gain and facts.followed else "a hook"
        yield (
            "the readout is tied to the embedding: they share one rate, and the readout's factor "
            f"is in {place}."
        )
    if not facts.followed:
        yield (
            f"no forward pass could be followed ({facts.not_followed}): every role rests on names "
            "and shapes only. Pass inputs=(…) or inputs={…}, or run a coordinate check."
        )


def _of_starts(parameters: Mapping[str, PlannedParameter]) -> Iterator[str]:
    kept: dict[str, list[str]] = {}
    for p in parameters.values():
        if p.kept or (not p.drawn and p.start is None):
            kept.setdefault(p.kept or "no constant", []).append(p.template)
    for why, templates in kept.items():
        yield f"initialize_ leaves {few(templates)} as the model made them ({why})."


def _of_depth(facts: ModelFacts, base: ModelFacts, choices: PlanChoices) -> Iterator[str]:
    differs = f"the depth differs ({base.depth} → {facts.depth})"
    advice = "Keep the depth of the base, or run a coordinate check over depth."
    every = facts.parameters.values()
    if choices.rule.depth != "none" and any(fact.post_norm for fact in every):
        yield (
            f"the residual stream is normalized after each sum (post-LN), and {differs}: the "
            f"effect of {choices.rule.depth} on the branches is not derived for that. {advice}"
        )
    gains = [fact for fact in every if fact.role == "gain" and facts.depth > 1]
    by_layer = [fact.template for fact in gains if fact.shape == (facts.depth,)]
    if by_layer:
        yield (
            f"{few(by_layer)}: one number per layer, and {differs}. No rule covers how they "
            f"change with depth. {advice}"
        )
