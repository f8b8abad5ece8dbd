"""The keys of a config that hold a model's dimensions, and checks of their values."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mupscale.errors import DimensionError
from mupscale.models.gpt import divisors
from mupscale.reading.config import HEAD_DIM, HEADS, KV_HEADS, WIDTH

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
STACKS = (
    "encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers", "num_layers"
)  # fmt: skip
"""The numbers of layers of an encoder and a decoder."""
STACK_HEADS = ("encoder_attention_heads", "decoder_attention_heads")
STATE_HEADS = ("mamba_n_heads", "n_mamba_heads", "mamba_num_heads")
"""Heads of a state-space layer: their total size is a multiple of the width."""
FIXED_HEAD_DIM = (*HEAD_DIM, "qk_nope_head_dim", "v_head_dim", "kv_channels", "dim_head")
"""Keys that set the size of a head, independent of the width."""

_PER_WIDTH = re.compile(
    r"(?:\w+_)?intermediate_size(?:_mlp)?|n_inner|(?:\w+_)?ffn_dim|(?:\w+_)?ffn_hidden_size|dim_ff"
    r"|dff|d_ff|(?:\w+_)?lora_rank|word_embed_proj_dim|mamba_d_ssm|attention_hidden_size"
)
_POSITIVE = (*WIDTH, *HEADS, *KV_HEADS, *HEAD_DIM, *LAYERS, "vocab_size")


def grows_with_width(key: str) -> bool:
    """Whether a size is a multiple of the width: feed-forward and expert layers, ranks of low-rank
    attention.

    >>> grows_with_width("moe_intermediate_size"), grows_with_width("intermediate_multiple_size")
    (True, False)
    """
    return bool(_PER_WIDTH.fullmatch(key))


def key_among(values: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these names with a positive integer in the config.

    >>> key_among({"n_embd": 768, "n_inner": None}, WIDTH), key_among({"n_inner": None}, WIDTH)
    ('n_embd', None)
    """
    return next((name for name in names if is_positive(values.get(name))), None)


def is_positive(value: object) -> bool:
    """Whether a value is an integer of at least 1; True is not.

    >>> is_positive(1), is_positive(0), is_positive(2.0), is_positive(True)
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def check_positive(values: Mapping[str, Any], where: str) -> None:
    """Raise for a dimension that is not positive, before a config class divides by it."""
    for key in _POSITIVE:
        value = values.get(key)
        if isinstance(value, int | float) and not is_positive(value):
            raise DimensionError(
                f"{where}: {key}={value} is not a positive whole number. Choose at least 1."
            )


def check_sharing(values: Mapping[str, Any], where: str) -> None:
    """Raise if the query heads cannot share the key/value heads evenly."""
    heads, kv_heads = key_among(values, HEADS), key_among(values, KV_HEADS)
    if heads and kv_heads and values[heads] % values[kv_heads]:
        n = values[heads]
        raise DimensionError(
            f"{where}: {heads}={n} is not a multiple of {kv_heads}={values[kv_heads]}. Choose a "
            f"divisor of {n}{f': {divisors(n)}' if n <= 4096 else ''}."
        )
