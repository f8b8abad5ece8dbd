"""The base, the small model that was tuned: a model, a config, or plain dimensions."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from mupscale.errors import DimensionError, OptionError, UnknownNameError, UnreadableModelError
from mupscale.reading import ModelFacts, ParameterFact, role_row

Base = nn.Module | ModelFacts | Mapping[str, int] | Any
"""A model (also on the meta device), its facts, a Hugging Face config, or dimensions."""

DIMENSIONS = ("width", "depth", "r", "inner", "d_ff", "head_dim")


def base_facts(
    facts: ModelFacts, base: Base, read: Callable[[nn.Module], ModelFacts]
) -> ModelFacts:
    """The facts of the base. `read` reads a model with the user's settings."""
    if isinstance(base, ModelFacts):
        return base
    if isinstance(base, nn.Module):
        return read(base)
    if isinstance(base, Mapping):
        return at_dimensions(facts, base)
    if hasattr(base, "model_type") and hasattr(base, "to_dict"):
        return read(_from_config(facts.architecture, base))
    raise OptionError(
        f"base={base!r} is not a base. Pass the model that you tuned (also on the meta device), "
        'its Hugging Face config, or dimensions such as {"width": 512, "depth": 8}.'
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
    """The same model at other dimensions: those left out are its own.

    Every fan keeps its ratio to the width. `inner` is heads × head_dim, `d_ff` the width of the
    feed-forward part. Without `head_dim`, the heads keep their size: a base with small heads may be
    narrower than one head of the model.
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
            "width, or pass a base model: mupscale.proxy(config, width=…) makes one."
        )
    parameters = {
        name: _resized(fact, ratios, width, depth if fact.depth == facts.depth else fact.depth, r)
        for name, fact in facts.parameters.items()
    }
    return replace(
        facts,
        parameters=parameters,
        width=width,
        depth=depth,
        heads=heads,
        kv_heads=heads // shared if heads else None,
        head_dim=head_dim,
        sketched=True,
    )


def _heads(facts: ModelFacts, head_dim: int | None, inner: Fraction) -> int | None:
    """The number of heads of the base; `head_dim` defaults to the model's."""
    if head_dim is None:
        return facts.heads and _scaled("the number of heads", facts.heads, inner)
    if facts.heads is None or facts.head_dim is None:
        return None  # a model without a config: no factor depends on the number of heads
    total = facts.heads * facts.head_dim * inner
    heads = total / head_dim
    if heads.denominator != 1:
        raise DimensionError(
            f"base: heads × head_dim is {float(total):g}, not a multiple of head_dim={head_dim}. "
            "Choose another head_dim, or pass inner."
        )
    return int(heads)


def _whole(name: str, value: object) -> int:
    if name not in DIMENSIONS:
        raise UnknownNameError("dimension of the base", name, DIMENSIONS)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DimensionError(f"base: {name}={value!r} is not a positive whole number.")
    return value


def _refuse_constants(facts: ModelFacts) -> None:
    """A constant that may depend on width or depth has an unknown value at other dimensions."""
    constants = {fact.name: fact.forward_multiplier for fact in facts.parameters.values()}
    constants["the logits"] = facts.readout_multiplier
    for where, constant in constants.items():
        if constant != 1:
            raise UnreadableModelError(
                f"the model's forward pass multiplies {where} by {constant:.6g}, which may differ "
                "in the base. Pass a base model instead of dimensions, built like this one at the "
                "size that you tuned; for a model of transformers, "
                "mupscale.proxy(model.config, width=…, depth=…) gives its config."
            )


def _ratio(
    facts: ModelFacts, asked: Mapping[str, int], name: str, roles: tuple[str, ...], width: Fraction
) -> Fraction:
    if name not in asked:
        return width
    fans = {fact.role: fact.fan_in for fact in facts.parameters.values()}
    own = next((fans[role] for role in roles if role in fans), None)
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
            "Choose another width, or pass a base model: mupscale.proxy(config, width=…) makes one."
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
    fan_out, fan_in = (
        _scaled(f"the {what} of {fact.name}", fan, ratios[grows]) if grows else fan
        for what, fan, grows in (
            ("outputs", fact.fan_out, grows_out),
            ("inputs", fact.fan_in, grows_in),
        )
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
    """The counterpart of each parameter in the base: by name at equal depth, else by template."""
    by_template: dict[str, list[ParameterFact]] = {}
    for fact in base.parameters.values():
        by_template.setdefault(fact.template, []).append(fact)
    lost = {fact.template for fact in facts.parameters.values() if fact.template not in by_template}
    if lost:
        raise UnreadableModelError(
            f"the base has no parameter like {few(sorted(lost))}. It must have the same "
            "architecture."
        )
    return {
        name: _counterpart(fact, base.parameters.get(name), by_template[fact.template])
        for name, fact in facts.parameters.items()
    }


def few(names: Iterable[str]) -> str:
    """The first four names, and how many more there are."""
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - 4} more" if len(distinct) > 4 else ""
    return ", ".join(distinct[:4]) + more


def with_fixed_norms(facts: ModelFacts, base: ModelFacts) -> tuple[ModelFacts, ModelFacts]:
    """Decide for both models which gains and biases grow with the width, by their lengths.

    One with an entry per layer is longer for another reason.
    """
    if facts.width == base.width or base.sketched:
        return facts, base
    other = {fact.template: fact for fact in base.parameters.values()}
    fixed: dict[str, bool] = {}
    for fact in facts.parameters.values():
        like = other.get(fact.template)
        if fact.role == "gain" and like is not None:
            per_layer = (fact.shape, like.shape) == ((facts.depth,), (base.depth,))
            fixed[_module(fact.template)] = fact.shape == like.shape or per_layer

    def agreed(model: ModelFacts) -> ModelFacts:
        parameters = {
            name: replace(fact, fixed=fixed[module])
            if fact.role in ("gain", "bias") and (module := _module(fact.template)) in fixed
            else fact
            for name, fact in model.parameters.items()
        }
        return replace(model, parameters=parameters)

    return agreed(facts), agreed(base)


def _module(template: str) -> str:
    """The module of a parameter; a gain outside any module (resid_lambdas) is its own."""
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
            f"{fact.template} has several shapes in the base, so {fact.name} has no counterpart at "
            "another depth. Use a base with the same number of layers."
        )
    other = same_name if same_depth else alike[0]
    assert other is not None
    if other.role != fact.role:
        raise UnreadableModelError(
            f"{fact.name} is {fact.role} here and {other.role} in the base. Pass roles={{…}}."
        )
    return other
