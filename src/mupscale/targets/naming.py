"""The forms of a target's name: a local config, or your own function; and the reading beside it."""

from os.path import exists, isdir, isfile
from pathlib import Path

from mupscale.reading import Reading
from mupscale.reading.user_reading import FILE
from mupscale.targets import functions
from mupscale.targets.huggingface import causal_types
from mupscale.targets.settings import split_settings


def local_config(name: str) -> str | None:
    """The path to a config or its folder, with the settings after it; None for another form of
    name.

    >>> local_config("models/mine.json,num_hidden_layers=2"), local_config("gpt:kvr_4")
    ('models/mine.json,num_hidden_layers=2', None)
    """
    if name.startswith("hf:"):
        rest = name.removeprefix("hf:").strip()
        if exists(rest) and rest not in causal_types():
            return rest
        head = split_settings(rest)[0]
        return rest if head not in causal_types() and _is_path(head) else None
    if name.endswith(".json") and exists(name):
        return name
    head, _ = split_settings(name)
    return name if head.endswith(".json") and not head.startswith("gpt:") else None


def config_path(rest: str) -> str:
    """The path alone. An existing path is used whole, even if it looks like one with settings."""
    return rest if exists(rest) else split_settings(rest)[0]


def own_function(name: str) -> str | None:
    """`module:function`, without settings; None for another form of name.

    >>> own_function("my_package.models:build,width=256"), own_function("hf:llama")
    ('my_package.models:build', None)
    """
    head, _ = split_settings(name)
    named = functions.PATTERN.fullmatch(head) and not head.startswith(("gpt:", "hf:"))
    return head if named else None


def _is_path(head: str) -> bool:
    return bool(head) and ("/" in head or "\\" in head or head.endswith(".json") or exists(head))


def reading_file(name: str) -> Path | None:
    """The file in the folder of the model's module or config.json.

    None if there is none, and for models without a folder, such as llama-3-8b and hf:llama.
    """
    folder = _folder(name.strip())
    file = None if folder is None else folder / FILE
    return file if file is not None and isfile(file) else None


def reading_beside(name: str) -> Reading:
    """The reading in that file; an empty one if there is no file."""
    file = reading_file(name)
    return Reading() if file is None else Reading.load(file)


def _folder(name: str) -> Path | None:
    config, function = local_config(name), own_function(name)
    if config is not None:
        path = Path(config_path(config)).absolute()
        return path if isdir(path) else path.parent
    return None if function is None else functions.folder(function)
