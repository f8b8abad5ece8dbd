"""The base: the small model that was tuned. It may be a model, a config, or plain dimensions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from mupscale.errors import DimensionError, OptionError, UnknownNameError, UnreadableModelError
from mupscale.reading import ModelFacts, ParameterFact, role_row

Base = nn.Module | ModelFacts | Mapping[str, int] | Any
"""A model (also on the meta device), what was read of one, a Hugging Face config, or {"width": 512,
"depth": 8}.
"""

DIMENSIONS = ("width", "depth", "r", "inner", "d_ff", "head_dim")


def base_facts(
    facts: ModelFacts, base: Base, read: Callable[[nn.Module], ModelFacts]
) -> ModelFacts:
    """What is known of the base. `read` reads a model with the user's own settings."""
    if isinstance(base, ModelFacts):
        return base
    if isinstance(base, nn.Module):
        return read(base)
    if isinstance(base, Mapping):
        return at_dimensions(facts, base)
    if hasattr(base, "model_type") and hasattr(base, "to_dict"):
        return read(_from_config(facts.architecture, base))
    raise OptionError(
        f"base={base!r} is not a base. Give the model that was tuned (also on the meta device), "
        "its Hugging Face "
        'config, or dimensions such as {"width": 512, "depth": 8}.'
    )


def _from_config(kind: type[nn.Module], config: Any) -> nn.Module:
    try:
        with torch.device("meta"):
            return kind(config)
    except Exception as error:  # whatever a model raises for a config that is not its own
        raise OptionError(
            f"{kind.__name__} cannot be built from the base's {type(config).__name__}: {error}"
        ) from error


def at_dimensions(facts: ModelFacts, dimensions: Mapping[str, int]) -> ModelFacts:
    """The same model at other dimensions: those left out are its own, and every fan keeps its ratio
    to the width.

    `inner` is heads × head_dim and `d_ff` the width of the feed-forward part. Heads are as large as
    the model's unless `head_dim` is given: a base with small heads may be narrower than one head of
    the model.
    """
    asked = {name: _whole(name, value) for name, value in dimensions.items()}
    width, depth = asked.get("width", facts.width), asked.get("depth", facts.depth)
    if (width, depth) != (facts.width, facts.depth):
        _refuse_constants(facts)
    ratio = Fraction(width, facts.width)
    ratios = {
        "inner": _ratio(facts, asked, "inner", ("attention_output",), ratio),
        "d_ff": _ratio(facts, asked, "d_ff", ("mlp_out", "expert_out"), ratio),
        "width": ratio,
    }
    r = asked.get("r")
    head_dim = asked.get("head_dim", facts.head_dim)
    heads = _heads(facts, asked.get("head_dim"), ratios["inner"])
    shared = r or facts.repetitions
    if heads and heads % shared:
        raise DimensionError(
            f"base: {heads} heads of {head_dim} cannot be shared by r={shared}. Choose another "
            "width, or give a "
            "base model: mupscale.proxy(config, width=…) makes one."
        )
    parameters = {
        name: _resized(fact, ratios, width, depth if fact.depth == facts.depth else fact.depth, r)
        for name, fact in facts.parameters.items()
    }
    kv_heads = heads // shared if heads else None
    return replace(
        facts, parameters=parameters, width=width, depth=depth, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        sketched=True,
    )  # fmt: skip


def _heads(facts: ModelFacts, head_dim: int | None, inner: Fraction) -> int | None:
    """How many heads the base has: all of one size, the model's unless said."""
    if head_dim is None:
        return facts.heads and _scaled("the number of heads", facts.heads, inner)
    if facts.heads is None or facts.head_dim is None:
        return None  # a model without a config: no factor rests on the number of heads
    total = facts.heads * facts.head_dim * inner
    heads = total / head_dim
    if heads.denominator != 1:
        raise DimensionError(
            f"base: heads × head_dim is {float(total):g}, which is no multiple of "
            f"head_dim={head_dim}. Choose another "
            "head_dim, or give inner."
        )
    return int(heads)


def _whole(name: str, value: object) -> int:
    if name not in DIMENSIONS:
        raise UnknownNameError("dimension of the base", name, DIMENSIONS)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DimensionError(f"base: {name}={value!r} is not a positive whole number.")
    return value


def _refuse_constants(facts: ModelFacts) -> None:
    """A constant that may depend on width or depth is not known at other dimensions."""
    with_constant = [
        fact.name for fact in facts.parameters.values() if fact.forward_multiplier != 1
    ]
    if with_constant or facts.readout_multiplier != 1:
        where = with_constant[0] if with_constant else "the logits"
        constant = (
            facts.parameters[where].forward_multiplier
            if with_constant
            else facts.readout_multiplier
        )
        raise UnreadableModelError(
            f"the model's forward pass multiplies {where} by {constant:.6g}, which may be another "
            "number in the base. "
            "Give a base model instead of plain dimensions, built as this one at the size that was "
            "tuned; for a model "
            "of transformers, mupscale.proxy(model.config, width=…, depth=…) gives its config."
        )


def _ratio(
    facts: ModelFacts, asked: Mapping[str, int], name: str, roles: tuple[str, ...], width: Fraction
) -> Fraction:  # fmt: skip
    if name not in asked:
        return width
    found = {fact.role: fact.fan_in for fact in facts.parameters.values()}
    own = next((found[role] for role in roles if role in found), None)
    if own is None:
        raise DimensionError(
            f"base: {name}={asked[name]}, but the model has no parameter with the role {roles[0]}."
        )
    return Fraction(asked[name], own)


def _scaled(what: str, value: int, ratio: Fraction) -> int:
    scaled = value * ratio
    if scaled.denominator != 1:
        raise DimensionError(
            f"base: {what} would be {float(scaled):g} instead of {value}, which is not whole. "
            "Choose another width, or "
            "give a base model: mupscale.proxy(config, width=…) makes one."
        )
    return int(scaled)


def _resized(
    fact: ParameterFact,
    ratios: Mapping[str, Fraction],
    width: int,
    depth: int | None,
    r: int | None,
) -> ParameterFact:
    r = fact.repetitions if r is None else r
    row = role_row(fact.role)
    grows_out, grows_in = row.grows
    fan_out = (
        _scaled(f"the outputs of {fact.name}", fact.fan_out, ratios[grows_out])
        if grows_out
        else fact.fan_out
    )
    fan_in = (
        _scaled(f"the inputs of {fact.name}", fact.fan_in, ratios[grows_in])
        if grows_in
        else fact.fan_in
    )
    if fact.role in ("key", "value"):
        fan_out = _scaled(f"the outputs of {fact.name}", fan_out, Fraction(fact.repetitions, r))
    if fact.role == "fused_qkv":
        inner = Fraction(fan_out * fact.repetitions, fact.repetitions + 2)
        fan_out = int(inner + 2 * inner / r)
    shared = r if row.shared else fact.repetitions
    return replace(
        fact, fan_out=fan_out, fan_in=fan_in, width=width, depth=depth, repetitions=shared
    )


def matched(facts: ModelFacts, base: ModelFacts) -> dict[str, ParameterFact]:
    """For each parameter its counterpart in the base: by name at the same depth, by template
    otherwise.
    """
    by_template: dict[str, list[ParameterFact]] = {}
    for fact in base.parameters.values():
        by_template.setdefault(fact.template, []).append(fact)
    lost = {fact.template for fact in facts.parameters.values() if fact.template not in by_template}
    if lost:
        few = ", ".join(sorted(lost)[:4]) + (", …" if len(lost) > 4 else "")
        raise UnreadableModelError(
            f"the base has no parameter like {few}. It must be of the same architecture."
        )
    return {
        name: _counterpart(fact, base.parameters.get(name), by_template[fact.template])
        for name, fact in facts.parameters.items()
    }


def with_fixed_norms(facts: ModelFacts, base: ModelFacts) -> tuple[ModelFacts, ModelFacts]:
    """Both models with one answer to whether a norm's gain and bias grow with the width: by
    comparing their lengths.

    One with an entry for each layer is longer for another reason.
    """
    if facts.width == base.width or base.sketched:
        return facts, base
    other = {fact.template: fact for fact in base.parameters.values()}
    fixed: dict[str, bool] = {}
    for fact in facts.parameters.values():
        like = other.get(fact.template)
        if fact.role == "gain" and like is not None:
            for_each_layer = (fact.shape, like.shape) == ((facts.depth,), (base.depth,))
            fixed[_module(fact.template)] = fact.shape == like.shape or for_each_layer

    def agreed(one: ModelFacts) -> ModelFacts:
        parameters = {
            name: replace(fact, fixed=fixed[module])
            if fact.role in ("gain", "bias") and (module := _module(fact.template)) in fixed
            else fact
            for name, fact in one.parameters.items()
        }
        return replace(one, parameters=parameters)

    return agreed(facts), agreed(base)


def _module(template: str) -> str:
    """The module of a parameter; a gain that stands by itself (resid_lambdas) is its own."""
    return template.rpartition(".")[0] or template


def _counterpart(
    fact: ParameterFact, same_name: ParameterFact | None, alike: list[ParameterFact]
) -> ParameterFact:
    candidates = {
        (other.role, other.fan_in, other.fan_out, other.repetitions): other for other in alike
    }
    same_depth = same_name is not None and same_name.depth == fact.depth
    if len(candidates) > 1 and not same_depth:
        raise UnreadableModelError(
            f"{fact.template} has several shapes in the base, so that {fact.name} has no "
            "counterpart at another depth. "
            "Give a base with the same number of layers."
        )
    other = same_name if same_depth else alike[0]
    assert other is not None
    if other.role != fact.role:
        raise UnreadableModelError(
            f"{fact.name} is {fact.role} here and {other.role} in the base. Give `roles`."
        )
    return other
