"""The keys of a config that carry a model's dimensions, under their many names, and what can be
wrong with them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mupscale.errors import DimensionError
from mupscale.reading.config import HEAD_DIM, HEADS, KV_HEADS, WIDTH

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
STACKS = (
    "encoder_layers",
    "decoder_layers",
    "num_encoder_layers",
    "num_decoder_layers",
    "num_layers",
)
"""Of a model that has an encoder and a decoder: how many layers each has."""
STACK_HEADS = ("encoder_attention_heads", "decoder_attention_heads")
STATE_HEADS = ("mamba_n_heads", "n_mamba_heads", "mamba_num_heads")
"""Heads of a state-space layer; together they are as wide as a multiple of the model."""
FIXED_HEAD_DIM = (*HEAD_DIM, "qk_nope_head_dim", "v_head_dim", "kv_channels", "dim_head")
"""Keys by which a config says how large a head is, whatever the width."""

_PER_WIDTH = re.compile(
    r"(?:\w+_)?intermediate_size(?:_mlp)?|n_inner|(?:\w+_)?ffn_dim|(?:\w+_)?ffn_hidden_size|dim_ff|dff|d_ff|"
    r"(?:\w+_)?lora_rank|word_embed_proj_dim|mamba_d_ssm|attention_hidden_size"
)
_POSITIVE = (*WIDTH, *HEADS, *KV_HEADS, *HEAD_DIM, *LAYERS, "vocab_size")


def grows_with_width(key: str) -> bool:
    """Whether a size is a multiple of the width: feed-forward and expert layers, ranks of low-rank
    attention.

    >>> [k for k in ("moe_intermediate_size", "kv_lora_rank", "intermediate_multiple_size") if grows_with_width(k)]
    ['moe_intermediate_size', 'kv_lora_rank']
    """
    return bool(_PER_WIDTH.fullmatch(key))


def key_among(values: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these names under which the config has a positive whole number.

    >>> key_among({"n_embd": 768, "n_inner": None}, WIDTH), key_among({"n_inner": None}, WIDTH)
    ('n_embd', None)
    """
    return next((name for name in names if is_positive(values.get(name))), None)


def is_positive(value: object) -> bool:
    """Whether a value is a whole number of at least one; True is not.

    >>> is_positive(1), is_positive(0), is_positive(2.0), is_positive(True)
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def check_positive(values: Mapping[str, Any], where: str) -> None:
    """Refuse a dimension that is a number and not a positive whole one, before a config class
    divides by it.
    """
    for key in _POSITIVE:
        value = values.get(key)
        if isinstance(value, int | float) and not is_positive(value):
            raise DimensionError(
                f"{where}: {key}={value} is not a positive whole number. Choose at least 1."
            )


def check_sharing(values: Mapping[str, Any], where: str) -> None:
    """Refuse query heads that cannot share the key/value heads evenly."""
    heads, kv_heads = key_among(values, HEADS), key_among(values, KV_HEADS)
    if heads and kv_heads and values[heads] % values[kv_heads]:
        raise DimensionError(
            f"{where}: {heads}={values[heads]} is not a multiple of {kv_heads}={values[kv_heads]}. "
            f"Choose a divisor of {values[heads]}{_divisors(values[heads])}."
        )


def listed(numbers: Iterable[int]) -> str:
    """Numbers as a sentence has them.

    >>> listed([1, 2, 4])
    '1, 2 or 4'
    """
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last


def _divisors(n: int) -> str:
    return f": {listed(k for k in range(1, n + 1) if n % k == 0)}" if n <= 4096 else ""
