"""`proxy`: the thin, shallow copy of a model on which its hyperparameters are tuned."""

from typing import Any

from torch import nn

from mupscale.errors import DimensionError, OptionError
from mupscale.reading.structure import bare
from mupscale.targets.huggingface import create, is_config, takes_head_dim
from mupscale.targets.keys import FIXED_HEAD_DIM, is_positive
from mupscale.targets.layers import with_depth
from mupscale.targets.widths import natural_step, with_width


def proxy(config: Any, *, width: int | None = None, depth: int | None = None) -> Any:
    """The config of a copy with another width, depth, or both; None keeps what there is. `config` is not changed.

    Kept: head_dim, r = heads / kv_heads, the ratio of feed-forward to width (expert sizes and the ranks of low-rank
    attention too), vocabulary, experts, every kind of layer. Heads are rounded to a multiple of r, sizes to one of 8.
    Multi-query attention whose head_dim is width / heads keeps its one key/value head instead of r. A model with a
    `config` may be given in place of that.

    >>> from transformers import LlamaConfig
    >>> small = proxy(LlamaConfig(num_key_value_heads=8, intermediate_size=14336), width=512, depth=8)
    >>> small.num_attention_heads, small.num_key_value_heads, small.head_dim, small.intermediate_size
    (4, 1, 128, 1792)
    """
    if width is None and depth is None:
        raise OptionError("proxy: neither width nor depth is given. Give at least one, as width=512.")
    _check("width", width)
    _check("depth", depth)
    config = _config(config)
    cls, where = type(config), _describe(config, width, depth)
    values = config.to_dict()
    step = natural_step(values)
    if width is not None:
        fixed = any(key in values for key in FIXED_HEAD_DIM) or takes_head_dim(cls)
        values = with_width(values, width, fixed=fixed)
    if depth is not None:
        values = with_depth(lambda values: create(cls, values, where).to_dict(), values, depth)
    try:
        return create(cls, values, where)
    except OptionError as error:
        raise OptionError(f"{error} Multiples of {step} are widths that fit." if step else str(error)) from error


def _check(name: str, value: object) -> None:
    if value is not None and not is_positive(value):
        raise DimensionError(f"proxy: {name}={value!r} is not a positive whole number. Choose at least 1.")


def _config(given: Any) -> Any:
    config: Any = getattr(bare(given), "config", None) if isinstance(given, nn.Module) else given
    if not is_config(config):
        raise OptionError(
            f"proxy: {type(given).__name__} is neither a Hugging Face config nor a model that has one. "
            "Build the smaller model yourself, with the same head_dim and r."
        )
    if config.get_text_config(decoder=True) is not config:
        raise OptionError(
            f"proxy: {type(config).__name__} describes more than a language model. Pass its text part: "
            "config.get_text_config()."
        )
    return config


def _describe(config: Any, width: int | None, depth: int | None) -> str:
    wanted = [f"{name}={value}" for name, value in (("width", width), ("depth", depth)) if value is not None]
    return f"proxy of {type(config).__name__} at {', '.join(wanted)}"
