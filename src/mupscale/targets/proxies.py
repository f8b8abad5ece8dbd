"""`proxy`: the thin, shallow copy of a model on which its hyperparameters are tuned."""

from typing import Any

from torch import nn

from mupscale.errors import DimensionError, OptionError
from mupscale.reading.structure import bare
from mupscale.targets.huggingface import create, is_config, takes_head_dim
from mupscale.targets.keys import FIXED_HEAD_DIM, is_positive, listed
from mupscale.targets.layers import with_depth
from mupscale.targets.widths import steps, with_width

_PARTS = ("text_config", "decoder", "generator")
"""Where composite configs keep that of their language model."""
_TRIES = 16
"""Widths that are tried in each direction, for a message to propose one that works."""


def proxy(config: Any, *, width: int | None = None, depth: int | None = None) -> Any:
    """The config of a copy with another width, depth, or both; None keeps what there is. `config`
    is not changed.

    Kept: head_dim, r = heads / kv_heads, the ratio of feed-forward to width (expert sizes and the
    ranks of low-rank attention too), vocabulary, experts, every kind of layer. Heads are rounded to
    a multiple of r, sizes to one of 8. Multi-query attention whose head_dim is width / heads keeps
    its one key/value head instead of r. State-space heads keep their size. Of a model with an
    encoder and a decoder, both get the depth. A model with a `config` may be given in place of
    that.

    >>> from transformers import LlamaConfig
    >>> small = proxy(LlamaConfig(num_key_value_heads=8, intermediate_size=14336), width=512, depth=8)
    >>> small.num_attention_heads, small.num_key_value_heads, small.head_dim, small.intermediate_size
    (4, 1, 128, 1792)
    """
    if width is None and depth is None:
        raise OptionError(
            "proxy: neither width nor depth is given. Give at least one, as width=512."
        )
    _check("width", width)
    _check("depth", depth)
    config = _config(config)
    try:
        return _copy(config, width, depth)
    except (DimensionError, OptionError) as error:
        fitting = _fitting(config, width, depth) if width is not None else []
        if not fitting:
            raise
        raise type(error)(f"{error} Choose a width that fits: {listed(fitting)}.") from error


def _copy(config: Any, width: int | None, depth: int | None) -> Any:
    cls, where, values = type(config), _describe(config, width, depth), config.to_dict()
    if width is not None:
        fixed = any(key in values for key in FIXED_HEAD_DIM) or takes_head_dim(cls)
        values = with_width(values, width, fixed=fixed)
    if depth is not None:
        values = with_depth(lambda values: create(cls, values, where).to_dict(), values, depth)
    return create(cls, values, where)


def _fitting(config: Any, width: int, depth: int | None) -> list[int]:
    """The nearest width below and above that works: each was tried."""
    for step in steps(config.to_dict()):
        below = range(width // step * step, 0, -step)[:_TRIES]
        above = [width // step * step + k * step for k in range(1, _TRIES + 1)]
        found = [
            next((one for one in near if _works(config, one, depth)), None)
            for near in (below, above)
        ]
        if any(found):
            return [one for one in found if one is not None]
    return []


def _works(config: Any, width: int, depth: int | None) -> bool:
    try:
        _copy(config, width, depth)
    except (DimensionError, OptionError):
        return False
    return True


def _check(name: str, value: object) -> None:
    if value is not None and not is_positive(value):
        raise DimensionError(
            f"proxy: {name}={value!r} is not a positive whole number. Choose at least 1."
        )


def _config(given: Any) -> Any:
    config: Any = getattr(bare(given), "config", None) if isinstance(given, nn.Module) else given
    if not is_config(config):
        raise OptionError(
            f"proxy: {type(given).__name__} is neither a Hugging Face config nor a model that has "
            "one. "
            "Build the smaller model yourself, with the same head_dim and r."
        )
    text = config.get_text_config(decoder=True)
    if type(text) is not type(
        config
    ):  # of an encoder and a decoder in one flat config, it is a copy of the config
        name = next(
            (name for name in _PARTS if getattr(config, name, None) is text),
            "get_text_config(decoder=True)",
        )
        raise OptionError(
            f"proxy: {type(config).__name__} holds the configs of several models. Pass the part "
            "that you mean: "
            f"config.{name}."
        )
    return config


def _describe(config: Any, width: int | None, depth: int | None) -> str:
    wanted = [
        f"{name}={value}"
        for name, value in (("width", width), ("depth", depth))
        if value is not None
    ]
    return f"proxy of {type(config).__name__} at {', '.join(wanted)}"
