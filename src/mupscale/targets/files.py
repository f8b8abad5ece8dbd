"""A model's `config.json` on the local disk."""

import json
from collections.abc import Container, Mapping
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

from mupscale.errors import OptionError
from mupscale.targets.reasons import reason


def read_config(path: Path) -> tuple[Path, dict[str, Any]]:
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


def type_in(values: Mapping[str, Any], path: Path, known: Container[str]) -> str:
    """The type that a config names. Code that comes with weights is never run."""
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise OptionError(
            f'{path} has no model_type. Add its type in transformers: "model_type": "llama".'
        )
    if values.get("auto_map") and model_type not in known:
        raise OptionError(
            f"{path} needs code that comes with its weights (auto_map), which is never run, and "
            f"transformers has no {model_type!r} of its own. Build the model in Python, and name "
            "module:function."
        )
    return model_type
