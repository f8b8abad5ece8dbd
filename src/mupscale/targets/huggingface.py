"""Hugging Face configs and models: the only file that imports transformers.

A config comes from a type and settings, or from a local `config.json`. A model is built on the meta
device. Nothing is downloaded, and no code from outside of transformers runs.
"""

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Container, Mapping
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mupscale.errors import MissingExtraError, OptionError, UnknownNameError
from mupscale.targets.keys import LAYERS, check_positive, check_sharing, key_among
from mupscale.targets.layers import with_depth
from mupscale.targets.reasons import reason

_COMMON = (
    "llama", "qwen3", "qwen3_moe", "mistral", "mixtral", "gemma3_text", "gpt_oss", "deepseek_v3",
    "gpt2",
)  # fmt: skip


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error
    return transformers


def causal_types() -> Mapping[str, str]:
    """The class of every causal language model by its type.

    >>> causal_types()["llama"]
    'LlamaForCausalLM'
    """
    _transformers()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def is_config(value: object) -> bool:
    """Whether this is a Hugging Face config. Without transformers imported, nothing is."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(value, transformers.PreTrainedConfig)


def config_of_type(model_type: str, settings: Mapping[str, Any], where: str) -> Any:
    """The default config of a type with these settings; unknown settings raise an error."""
    cls = _config_class(model_type, where)
    settings = _known(cls, settings, ())
    return _confirmed(create(cls, _with_rope(settings), where), settings, where)


def config_of_file(path: Path, settings: Mapping[str, Any], where: str) -> Any:
    """The config in a `config.json`, or in a folder that holds one, with these settings on top."""
    path, values = _read_config(path)
    cls = _config_class(_type_in(values, path), str(path))
    settings = _known(cls, settings, values)
    depth = key_among(settings, LAYERS)
    if depth:
        values = with_depth(lambda v: create(cls, v, where).to_dict(), values, settings[depth])
    return _confirmed(create(cls, _with_rope({**values, **settings}), where), settings, where)


def _read_config(path: Path) -> tuple[Path, dict[str, Any]]:
    """The file (in the folder, if `path` is one) and its contents."""
    path = path / "config.json" if isdir(path) else path
    if not isfile(path):
        raise OptionError(
            f"there is no file {path}, and nothing is downloaded. Pass a local config.json or its "
            "folder (hf:path/to/config.json), or a type of transformers (hf:llama)."
        )
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(
            f"{path} cannot be read as JSON: {reason(error)}. Save the config again."
        ) from error
    if not isinstance(values, dict):
        raise OptionError(
            f"{path} holds a value of type {type(values).__name__}, not an object. Pass the "
            "config.json of a model."
        )
    return path, values


def _type_in(values: Mapping[str, Any], path: Path) -> str:
    """The type that a config names. Code that comes with weights is never run."""
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise OptionError(
            f'{path} has no model_type. Add its type in transformers: "model_type": "llama".'
        )
    if values.get("auto_map") and model_type not in causal_types():
        raise OptionError(
            f"{path} needs code that comes with its weights (auto_map), which is never run, and "
            f"transformers has no {model_type!r} of its own. Build the model in Python, and name "
            "module:function."
        )
    return model_type


def create(cls: Any, values: Mapping[str, Any], where: str) -> Any:
    """A config, or an error that says what is wrong with its values."""
    check_positive(values, where)
    try:
        config = cls.from_dict({key: value for key, value in values.items() if key != "model_type"})
    except Exception as error:  # a config class can raise anything
        raise OptionError(
            f"{where}: {cls.__name__} rejects these settings: {reason(error)}."
        ) from error
    check_sharing(config.get_text_config(decoder=True).to_dict(), where)
    return config


def build(
    config: Any,
    cls: type[nn.Module] | None = None,
    *,
    where: str | None = None,
    device: str = "meta",
) -> nn.Module:
    """The model of a config on the meta device: shapes and code, no memory. `cls` is its class
    (default: its causal language model).

    >>> from transformers import GPT2Config
    >>> model = build(GPT2Config(n_layer=2))
    >>> type(model).__name__, model.device.type
    ('GPT2LMHeadModel', 'meta')
    """
    where = where or type(config).__name__
    cls = cls or _model_class(config, where)
    try:
        with torch.device(device):
            return cls(config)
    except Exception as error:  # a model can raise anything
        raise OptionError(f"{where}: {cls.__name__} cannot be built: {reason(error)}.") from error


def takes_head_dim(cls: Any) -> bool:
    """Whether the attention of a model reads `head_dim` from a config class that does not declare
    it.

    >>> from transformers import GPT2Config, Qwen2Config
    >>> takes_head_dim(Qwen2Config), takes_head_dim(GPT2Config)
    (True, False)
    """
    name = causal_types().get(cls.model_type)
    if name is None or hasattr(cls, "head_dim"):
        return False
    source = inspect.getsource(sys.modules[_class(name, cls.__name__).__module__])
    return bool(re.search(r'self\.head_dim = getattr\(config, "head_dim"', source))


def _model_class(config: Any, where: str) -> type[nn.Module]:
    name = causal_types().get(getattr(config, "model_type", ""))
    if name is None:
        raise OptionError(
            f"{where}: transformers has no causal language model for {type(config).__name__}. "
            "Pass the class of the model: build(config, cls)."
        )
    return _class(name, where)


def _class(name: str, where: str) -> Any:
    try:
        return getattr(_transformers(), name)
    except ImportError as error:  # a model whose own requirements are missing or broken
        cause = error.__cause__ or error
        raise OptionError(
            f"{where}: transformers cannot import {name}: {reason(cause)}. Install what it needs."
        ) from error


def _config_class(model_type: str, where: str) -> Any:
    types = causal_types()
    if model_type not in types:
        if model_type in _transformers().CONFIG_MAPPING:
            raise OptionError(
                f"{where}: the type {model_type!r} is not a causal language model. Choose one, "
                "such as llama."
            )
        more = f"and {len(types) - len(_COMMON)} more of transformers"
        raise UnknownNameError("type of transformers", model_type, [*_COMMON, more], aliases=types)
    return _transformers().CONFIG_MAPPING[model_type]


def _known(cls: Any, settings: Mapping[str, Any], present: Container[str]) -> dict[str, Any]:
    """Settings under the names that the class stores; an unknown setting raises an error."""
    fields = [field.name for field in dataclasses.fields(cls)]
    general = {field.name for field in dataclasses.fields(_transformers().PreTrainedConfig)}
    known = [name for name in fields if name not in general] + [
        name for name in cls.attribute_map if name not in fields
    ]
    if "rope_parameters" in fields:
        known.append("rope_theta")
    if "head_dim" not in known and takes_head_dim(cls):
        known.append("head_dim")
    for key in settings:
        if key not in known and key not in present and key not in general:
            raise UnknownNameError(f"setting of {cls.model_type}", key, known, aliases=general)
    return {cls.attribute_map.get(key, key): value for key, value in settings.items()}


def _with_rope(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with rope_theta moved into rope_parameters, which would override it."""
    rope = values.get("rope_parameters")
    if "rope_theta" not in values or not isinstance(rope, dict):
        return dict(values)
    rest = {key: value for key, value in values.items() if key != "rope_theta"}
    return rest | {"rope_parameters": rope | {"rope_theta": values["rope_theta"]}}


def _confirmed(config: Any, settings: Mapping[str, Any], where: str) -> Any:
    """The config, if it has every setting: an older key of a file can override one."""
    rope = getattr(config, "rope_parameters", None) or {}
    for key, value in settings.items():
        arrived = rope.get(key) if key == "rope_theta" else getattr(config, key, value)
        if isinstance(value, int | float) and arrived != value:
            raise OptionError(
                f"{where}: {key}={value} has no effect: {type(config).__name__} has {arrived}, "
                "from another of its keys. Set it in a config.json, in place of that key."
            )
    return config
