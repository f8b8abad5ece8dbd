"""`resolve`: from a name to a model on the meta device."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from os.path import exists
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mupscale.errors import OptionError, UnknownNameError
from mupscale.models import GPT, configuration
from mupscale.reading import Reading
from mupscale.targets import functions
from mupscale.targets.huggingface import build, config_of_file, config_of_type, is_config
from mupscale.targets.naming import config_path, local_config, own_function, reading_beside
from mupscale.targets.settings import split_settings
from mupscale.targets.shapes import SHAPES, nearest_shape, shape_name

FORMS = ("gpt:NAME", "hf:TYPE", "hf:PATH/config.json", "module:function")


@dataclass(frozen=True)
class Target:
    """A model by name, on the meta device: its shapes and code, without weights."""

    name: str
    model: nn.Module
    config: Any = None
    """Its Hugging Face config, if it has one."""
    reading: Reading = field(default_factory=Reading)
    """What `mupscale.toml` beside the model says about it."""


def resolve(name: str) -> Target:
    """The model with this name.

    A well-known shape (`llama-3-8b`), the reference GPT (`gpt:kvr_4`), a type of transformers
    (`hf:qwen3`), a local config (`hf:PATH`, or any path to a .json), or your own function that
    returns a model or a config (`package.module:function`). Settings can follow:
    `hf:llama,hidden_size=1024`. Nothing is downloaded, and code that comes with weights is not run.

    >>> target = resolve("hf:gpt2,n_layer=2")
    >>> target.config.n_layer, target.model.device.type
    (2, 'meta')
    """
    name = name.strip()
    return dataclasses.replace(_resolved(name), reading=reading_beside(name))


def _resolved(name: str) -> Target:
    config = local_config(name)
    if config is not None:
        return _of_config(name, _local(config, name))
    head, settings = split_settings(name)
    if head.startswith("hf:"):
        return _of_config(name, config_of_type(head.removeprefix("hf:").strip(), settings, name))
    if head.startswith("gpt:"):
        return _reference(name, head.removeprefix("gpt:"), settings)
    shape = shape_name(head)
    if shape:
        wanted = {**SHAPES[shape].settings, **settings}
        return _of_config(name, config_of_type(SHAPES[shape].model_type, wanted, name))
    if own_function(name):
        return _returned(name, functions.call(head, settings))
    raise UnknownNameError("target", head, [*SHAPES, *FORMS])


def _reference(name: str, configured: str, settings: Mapping[str, Any]) -> Target:
    """The reference GPT in a named configuration, with these settings."""
    shape = configuration(configured).model
    known = [field.name for field in dataclasses.fields(shape)]
    for key in settings:
        if key not in known:
            raise UnknownNameError(f"setting of {name}", key, known)
    with torch.device("meta"):
        model = GPT(dataclasses.replace(shape, **settings))
    return Target(name, model)


def _local(rest: str, name: str) -> Any:
    head = config_path(rest)
    near = nearest_shape(head)
    if near and not exists(head):
        raise OptionError(
            f"{name}: there is no file {head}, and nothing is downloaded. Did you mean {near!r}, "
            "whose dimensions are known here? Otherwise pass a local config.json "
            "(hf:path/to/config.json) or a type (hf:llama)."
        )
    return config_of_file(Path(head), {} if head == rest else split_settings(rest)[1], name)


def _of_config(name: str, config: Any) -> Target:
    return Target(name, build(config, where=name), config)


def _returned(name: str, value: object) -> Target:
    """The result of a user's function, as a target."""
    if is_config(value):
        return _of_config(name, value)
    if not isinstance(value, nn.Module):
        raise OptionError(
            f"{name} returned a value of type {type(value).__name__}. "
            "It must return an nn.Module or a Hugging Face config."
        )
    for key, parameter in value.named_parameters():
        if not parameter.is_meta:
            raise OptionError(
                f"{name} returned a model with weights on the {parameter.device.type} ({key}). "
                "Build it inside of the function, without naming a device, so that it is made on "
                "the meta device."
            )
    config = getattr(value, "config", None)
    return Target(name, value, config if is_config(config) else None)
