"""What a model's config says: dimensions under their many names, and constants of the forward pass.

An unknown constant is an error: ignoring it would give a wrong plan that looks right.
"""

import inspect
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from mupscale.errors import UnknownNameError, UnreadableModelError

HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads",
    "decoder_attention_heads",
)  # fmt: skip
KV_HEADS = (
    "num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "kv_n_heads", "n_query_groups"
)  # fmt: skip
WIDTH = ("hidden_size", "n_embd", "d_model", "dim", "model_dim", "embed_dim")
HEAD_DIM = ("head_dim", "d_kv", "attention_head_dim")
_EXPERTS = (
    "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"
)  # fmt: skip
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k", "top_k_experts")

# Keys that look like multipliers but do not matter to a plan: rotary settings, losses, constants of
# routing that do not depend on width, caps, shapes, and initialization that a plan replaces.
_HARMLESS = re.compile(
    r"rope|rotary|loss|_coef|router|route|softcap|dropout|swiglu|limit|_multiple|multiple_of|scaling_type|"
    r"routed_scaling|init|num_multimodal|multimodal|scale_attn_weights|multi_query|multi_head|rescale_every|ffn_dim_mult|"
    r"timescale|floor_scale|attn_scale|attention_scaling_type|norm_eps|time_step|log_scaling"
)
_SUSPECT = re.compile(r"scale|scaling|mult")


@dataclass(frozen=True)
class ConfigFacts:
    """Dimensions and constants; None or empty if the config does not have them."""

    width: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    experts: int | None = None
    active_experts: int | None = None
    embedding_multiplier: float = 1.0
    readout_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    settings: Mapping[str, float] = field(default_factory=dict[str, float])


def config_facts(model: nn.Module, ignore: Collection[str] = ()) -> ConfigFacts:
    """What the model's `config` says, if it has one; `ignore` names constants to skip."""
    config: Any = getattr(model, "config", None)
    if config is None:
        return ConfigFacts()
    config = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    values = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    values = {key: value for key, value in values.items() if not key.startswith("_")}
    unknown = [key for key in ignore if key not in values]
    if unknown:
        raise UnknownNameError("key of the config to ignore", unknown[0], values)
    heads = _whole(values, HEADS)
    kv_heads = _whole(values, KV_HEADS)
    if values.get("multi_query") and not values.get("new_decoder_architecture"):
        kv_heads = 1
    width = _whole(values, WIDTH)
    head_dim = _whole(values, HEAD_DIM) or (width // heads if width and heads else None)
    experts, active = _whole(values, _EXPERTS), _whole(values, _ACTIVE)
    experts = experts and experts + (_whole(values, ("zero_expert_num",)) or 0)
    counted = {key: value for key, value in values.items() if key not in ignore}
    constants = _multipliers(model, config, counted)
    return ConfigFacts(width, heads, kv_heads, head_dim, experts, active, **constants)


def _whole(values: Mapping[str, Any], names: Sequence[str]) -> int | None:
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _multipliers(model: nn.Module, config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The known constants. An unknown one that is a number other than 0 and 1 raises an error."""
    constants: dict[str, Any] = {"settings": {}}
    for key, value in values.items():
        if not _SUSPECT.search(key) or _HARMLESS.search(key) or not _matters(value):
            continue
        if key in ("embedding_multiplier", "embedding_scale"):
            constants["embedding_multiplier"] = float(value)
        elif key == "scale_emb":
            continue  # its embedding module carries it as embed_scale, which is read there
        elif key in ("logit_scale", "lm_head_multiplier"):
            constants["readout_multiplier"] = float(value)
        elif key == "logits_scaling":
            constants["readout_multiplier"] = _by_source(model, key, float(value))
        elif key == "residual_multiplier":
            constants["residual_multiplier"] = float(value)
        elif key == "scale_depth":
            layers = getattr(config, "num_hidden_layers", None) or 1
            constants["residual_multiplier"] = float(value) / math.sqrt(layers)
        elif key in ("attention_multiplier", "scale_embedding", "attention_value_scale"):
            constants["settings"][key] = float(value)
        else:
            raise UnreadableModelError(
                f"{type(model).__name__}: the config sets {key}={value}, which looks like an "
                "unknown constant of the forward pass. If it does not change with width or depth, "
                f"pass ignore=[{key!r}]."
            )
    if "dim_model_base" in values and getattr(config, "logits_scaling", None):
        constants["readout_multiplier"] = 1 / float(config.logits_scaling)
    return constants


def _matters(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value not in (0, 1)


def _by_source(model: nn.Module, key: str, value: float) -> float:
    """The factor on the logits: some models multiply, others divide, so search their code."""
    source = inspect.getsource(type(model))
    if re.search(rf"/ self\.config\.{key}\b", source):
        return 1 / value
    if re.search(rf"\* self\.config\.{key}\b", source):
        return value
    raise UnreadableModelError(
        f"{type(model).__name__}: its config sets {key}={value}, but its code does not show "
        "whether the logits are multiplied or divided by that. If it does not change with width, "
        f"pass ignore=[{key!r}]."
    )
