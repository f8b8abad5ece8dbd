"""`Family`: a model by name in which one dimension varies, built with weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.models import GPT
from mupscale.models.gpt import divisors
from mupscale.reading import Reading
from mupscale.reading.config import HEADS, KV_HEADS
from mupscale.targets import functions
from mupscale.targets.huggingface import build, create, is_config
from mupscale.targets.keys import is_positive, key_among
from mupscale.targets.naming import own_function, reading_beside
from mupscale.targets.proxies import proxy
from mupscale.targets.resolving import resolve
from mupscale.targets.settings import split_settings

VARIED = ("n_kv_heads", "r", "width", "depth")


@dataclass(frozen=True)
class Family:
    """A function of one dimension: family(n_kv_heads=4), or r, width or depth. `name` is the name
    of any target.

    A new width keeps head_dim, r (query heads per key/value head) and the ratio of the feed-forward
    part. Your own function is called with the dimension as an argument, which can have any name.

    >>> model = Family("gpt:cpu_64_r2")(width=128)
    >>> model.config.n_heads, model.config.n_kv_heads
    (8, 4)
    """

    name: str
    device: str = field(default="cpu", repr=False)
    """Where models are first built. Not in the repr, which records keep."""

    @property
    def reading(self) -> Reading:
        """What `mupscale.toml` beside the model says about it."""
        return reading_beside(self.name)

    def __call__(self, **change: int) -> nn.Module:
        function = own_function(self.name)
        if function is not None:
            return self._own(function, split_settings(self.name)[1], change)
        ((dimension, value),) = change.items()
        if dimension not in VARIED:
            raise UnknownNameError("dimension to vary", dimension, VARIED)
        if not is_positive(value):
            raise DimensionError(
                f"{dimension}={value!r} is not a positive whole number. Choose at least 1."
            )
        target = resolve(self.name)
        if target.config is None:
            shape: Any = target.model.config
            if dimension == "r":
                _check_divides(value, "n_heads", shape.n_heads)
            with torch.device(self.device):
                return GPT(shape.resized(**change))
        config = self._changed(target.config, dimension, value)
        return build(config, where=self.name, device=self.device)

    def _own(self, head: str, settings: Mapping[str, Any], change: Mapping[str, int]) -> nn.Module:
        model = functions.call(head, {**settings, **change}, device=self.device)
        if is_config(model):
            return build(model, where=self.name, device=self.device)
        if not isinstance(model, nn.Module):
            raise OptionError(
                f"{self.name} returned a value of type {type(model).__name__}. It must return a "
                "model."
            )
        return model

    def _changed(self, config: Any, dimension: str, value: int) -> Any:
        if dimension in ("width", "depth"):
            return proxy(config, **{dimension: value})
        values = config.to_dict()
        heads, kv_heads = key_among(values, HEADS), key_among(values, KV_HEADS)
        if heads is None or kv_heads is None:
            raise OptionError(
                f"{self.name}: {type(config).__name__} has no number of key/value heads of its "
                "own. Vary the width or the depth, or choose a model with grouped-query attention."
            )
        if dimension == "r":
            _check_divides(value, heads, values[heads])
            value = values[heads] // value
        return create(type(config), {**values, kv_heads: value}, self.name)


def _check_divides(r: int, key: str, heads: int) -> None:
    if heads % r:
        raise DimensionError(f"r={r} does not divide {key}={heads}. Choose {divisors(heads)}.")
