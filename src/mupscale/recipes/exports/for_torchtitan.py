"""torchtitan 0.3: a config module; its optimizer groups are regular expressions."""

import re
from collections.abc import Mapping

from mupscale.recipes.exports.code import call, docstring, optimizer_class, refuse_inexact
from mupscale.recipes.exports.names import LLAMA_LIKE, llama_like
from mupscale.recipes.exports.schedules import exported_schedule
from mupscale.recipes.recipe import Recipe
from mupscale.recipes.rows import RecipeRow
from mupscale.targets.shapes import shape_name

REGISTERED = {
    "llama-3-8b": ("llama3", "llama3_8b"),
    "llama-3-70b": ("llama3", "llama3_70b"),
    "llama-3-405b": ("llama3", "llama3_405b"),
    "qwen3-32b": ("qwen3", "qwen3_32b"),
}
"""Shapes with a config in torchtitan."""

_USE = (
    "A config for torchtitan 0.3.0. Save it as recipe.py in the folder where you start torchtitan, "
    "and add --module recipe --config recipe. Set training.local_batch_size to what fits a device.",
    "Queries, keys and values are separate matrices here (fuse_qkv=False), since they may need "
    "different rates. As always in torchtitan, the decay ends one step after the last. Clipping "
    "is off because multipliers are folded into the weights. Not for pipeline parallelism: "
    "torchtitan refuses a pattern without a parameter in some stage.",
)

_NOT_CLIPPED = (
    "NOT EXPRESSED: the recipe clips gradients by their norm in the base's units. torchtitan would "
    "measure the norm of folded weights, so clipping is off here."
)

_IMPORTS = """
import math
from functools import partial
from typing import Any

from torch import nn
from torchtitan.components.optimizer import (
    LRSchedulersContainer,
    OptimizersContainer,
    ParamGroupConfig,
)
from torchtitan.models.common.attention import QKVLinear
from torchtitan.models.common.linear import Linear
{config}from torchtitan.trainer import Trainer
"""

_HELPERS = '''
def group(pattern: str, **values: float) -> ParamGroupConfig:
    """The parameters that match a regular expression, and their values."""
    kwargs = {**values, "betas": BETAS}
    return ParamGroupConfig(pattern=pattern, optimizer_name="{optimizer}", optimizer_kwargs=kwargs)


def drawn(std: float) -> dict[str, Any]:
    """Normal weights."""
    return {"weight": partial(nn.init.normal_, std=std)}


def set_to(value: float) -> dict[str, Any]:
    """Gains of a norm."""
    return {"weight": partial(nn.init.constant_, val=value)}
'''

_APPLIED = '''
def applied(config: Trainer.Config) -> Trainer.Config:
    """The config with the recipe's initialization, optimizer, schedule and length."""
    model = config.model_spec.model
    if (model.dim, len(model.layers)) != ({width}, {depth}):
        raise ValueError(f"{model.dim} x {len(model.layers)}: the recipe is for {width} x {depth}.")
    model.tok_embeddings.param_init = {embed_tokens}
    model.norm.param_init = {norm}
    model.lm_head.param_init = {lm_head}
    query, key_value = {q_proj}, {k_proj}
    for layer in model.layers:
        attention, feed_forward = layer.attention, layer.feed_forward
        attention.qkv_linear = QKVLinear.Config(
            head_dim={head_dim},
            wq=Linear.Config(in_features={width}, out_features={inner}, param_init=query),
            wkv=Linear.Config(in_features={width}, out_features={kv}, param_init=key_value),
        )
        attention.wo.param_init = {o_proj}
{qk_norm}        feed_forward.w1.param_init = {gate_proj}
        feed_forward.w3.param_init = {up_proj}
        feed_forward.w2.param_init = {down_proj}
        layer.attention_norm.param_init = {input_layernorm}
        layer.ffn_norm.param_init = {post_attention_layernorm}
    config.optimizer = OptimizersContainer.Config(param_groups=PARAM_GROUPS)
{schedule}
    config.training.steps = {steps}
    config.training.seq_len = {sequence}
    config.training.global_batch_size = {batch}
    config.training.max_norm = math.inf
    return config
'''

_RECIPE = '''
def recipe() -> Trainer.Config:
    """The config that --config recipe selects."""
    return applied({config}())
'''


def export(recipe: Recipe) -> str:
    """A config module, with a `recipe` function if torchtitan has a config of this shape."""
    refuse_inexact(recipe, "torchtitan")
    rows = llama_like(recipe, "torchtitan")
    known = REGISTERED.get(shape_name(recipe.target) or "")
    use = [*_USE, *([_NOT_CLIPPED] if recipe.training.clip else [])]
    config = ""
    if known:
        config = f"from torchtitan.models.{known[0]}.config_registry import {known[1]}\n"
    else:
        use.append("torchtitan has no config of this shape: pass your own to `applied`.")
    imports = _IMPORTS.replace("{config}", config).strip()
    parts = [
        "\n\n".join([docstring(recipe, use), imports, f"BETAS = {recipe.betas!r}"]),
        _HELPERS.replace("{optimizer}", optimizer_class(recipe)),
        _groups(recipe),
        _applied(recipe, rows),
        *([_RECIPE.replace("{config}", known[1])] if known else []),
    ]
    return "\n\n\n".join(part.strip() for part in parts) + "\n"


def _groups(recipe: Recipe) -> str:
    """One group per set of values. Patterns match the end of a name, after any wrapper's prefix."""
    merged: dict[tuple[float | None, ...], list[str]] = {}
    for row in recipe.rows:
        name = LLAMA_LIKE[row.pattern].torchtitan.removesuffix(".weight")
        merged.setdefault((row.lr, row.weight_decay, row.eps), []).append(re.escape(name))
    lines: list[str] = []
    for (lr, decay, eps), names in merged.items():
        pattern = rf"(^|\.)({'|'.join(names)})\.weight$"
        values = (f"lr={lr!r}", f"weight_decay={decay!r}", f"eps={eps!r}")
        lines += call("group", f'r"{pattern}"', *values)
    return "\n".join(["PARAM_GROUPS = [", *lines, "]"])


def _applied(recipe: Recipe, rows: Mapping[str, RecipeRow]) -> str:
    shape, length = recipe.shape, recipe.length
    assert shape.inner is not None
    starts = {
        name: f"drawn({row.std!r})" if row.std is not None else f"set_to({row.start!r})"
        for name, row in rows.items()
    }
    assert starts["k_proj"] == starts["v_proj"]  # torchtitan builds both from one config
    norm = (
        f"        attention.qk_norm.param_init = {starts['q_norm']}\n" if "q_norm" in starts else ""
    )
    values: dict[str, object] = {
        **starts,
        "qk_norm": norm,
        "width": shape.width,
        "depth": shape.depth,
        "head_dim": shape.head_dim,
        "inner": shape.inner,
        "kv": shape.inner // shape.r,
        "schedule": _schedule(recipe),
        "steps": length.steps,
        "sequence": length.sequence,
        "batch": length.batch_sequences,
    }
    text = _APPLIED
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _schedule(recipe: Recipe) -> str:
    """A decay_ratio becomes steps in torchtitan as in `mupscale.training.schedule`."""
    share = recipe.training.decay_share
    given = [f"warmup_steps={recipe.length.warmup}"]
    given += [] if share is None else [f"decay_ratio={share!r}"]
    given += [f'decay_type="{exported_schedule(recipe).torchtitan}"']
    given += [f"min_lr_factor={recipe.training.floor!r}"]
    lines = call("config.lr_scheduler = LRSchedulersContainer.Config", *given)
    return "\n".join(lines).removesuffix(",")
