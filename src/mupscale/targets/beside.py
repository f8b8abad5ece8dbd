"""The `mupscale.toml` beside a model: its reading, for every command."""

from os.path import isdir, isfile
from pathlib import Path

from mupscale.reading import Reading
from mupscale.reading.user_reading import FILE
from mupscale.targets import functions
from mupscale.targets.naming import config_path, local_config, own_function


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
