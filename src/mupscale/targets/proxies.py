"""`proxy`: a thin, shallow copy of a model, for tuning its hyperparameters."""

from typing import Any

from torch import nn

from mupscale.errors import DimensionError, OptionError
from mupscale.reading.structure import bare
from mupscale.targets.huggingface import create, is_config, takes_head_dim
from mupscale.targets.keys import FIXED_HEAD_DIM, is_positive
from mupscale.targets.layers import with_depth
from mupscale.targets.widths import steps, with_width

_PARTS = ("text_config", "decoder", "generator")
"""Where composite configs keep the config of their language model."""
_TRIES = 16
"""Widths to try in each direction, so that a message can propose one that works."""


def proxy(config: Any, *, width: int | None = None, depth: int | None = None) -> Any:
    """The config of a copy with another width, depth, or both (default: unchanged). `config` itself
    is not changed; you can also pass a model that has one.

    The copy keeps head_dim, r = heads / kv_heads, the ratio of feed-forward to width (also of
    expert sizes and of the ranks of low-rank attention), vocabulary, experts and every kind of
    layer. Heads are rounded to a multiple of r, sizes to a multiple of 8. Multi-query attention
    with head_dim = width / heads keeps its one key/value head instead of r. State-space heads keep
    their size. The encoder and the decoder of a model both get the depth.

    >>> from transformers import LlamaConfig
    >>> config = LlamaConfig(num_key_value_heads=8, intermediate_size=14336)
    >>> small = proxy(config, width=512, depth=8)
    >>> small.num_attention_heads, small.num_key_value_heads, small.intermediate_size
    (4, 1, 1792)
    """
    if width is None and depth is None:
        raise OptionError(
            "proxy: neither width nor depth is given. Give at least one, such as width=512."
        )
    for name, value in (("width", width), ("depth", depth)):
        if value is not None and not is_positive(value):
            raise DimensionError(
                f"proxy: {name}={value!r} is not a positive whole number. Choose at least 1."
            )
    config = _config(config)
    try:
        return _copy(config, width, depth)
    except (DimensionError, OptionError) as error:
        fitting = _fitting(config, width, depth) if width is not None else []
        if not fitting:
            raise
        choice = " or ".join(map(str, fitting))
        raise type(error)(f"{error} Choose a width that fits: {choice}.") from error


def _copy(config: Any, width: int | None, depth: int | None) -> Any:
    cls, where, values = type(config), _describe(config, width, depth), config.to_dict()
    if width is not None:
        fixed = any(key in values for key in FIXED_HEAD_DIM) or takes_head_dim(cls)
        values = with_width(values, width, fixed=fixed)
    if depth is not None:
        values = with_depth(lambda v: create(cls, v, where).to_dict(), values, depth)
    return create(cls, values, where)


def _fitting(config: Any, width: int, depth: int | None) -> list[int]:
    """The nearest widths below and above that work."""
    for step in steps(config.to_dict()):
        below = range(width // step * step, 0, -step)[:_TRIES]
        above = [width // step * step + k * step for k in range(1, _TRIES + 1)]
        nearest = [
            next((n for n in near if _works(config, n, depth)), 0) for near in (below, above)
        ]
        if any(nearest):
            return [n for n in nearest if n]
    return []


def _works(config: Any, width: int, depth: int | None) -> bool:
    try:
        _copy(config, width, depth)
    except (DimensionError, OptionError):
        return False
    return True


def _config(given: Any) -> Any:
    config: Any = getattr(bare(given), "config", None) if isinstance(given, nn.Module) else given
    if not is_config(config):
        raise OptionError(
            f"proxy: {type(given).__name__} is neither a Hugging Face config nor a model that has "
            "one. Build the smaller model yourself, with the same head_dim and r."
        )
    text = config.get_text_config(decoder=True)
    # For an encoder and a decoder in one flat config, `text` is a copy of the config.
    if type(text) is not type(config):
        name = next(
            (name for name in _PARTS if getattr(config, name, None) is text),
            "get_text_config(decoder=True)",
        )
        raise OptionError(
            f"proxy: {type(config).__name__} holds the configs of several models. Pass the part "
            f"that you mean: config.{name}."
        )
    return config


def _describe(config: Any, width: int | None, depth: int | None) -> str:
    sizes = {"width": width, "depth": depth}
    changed = [f"{name}={value}" for name, value in sizes.items() if value is not None]
    return f"proxy of {type(config).__name__} at {', '.join(changed)}"
