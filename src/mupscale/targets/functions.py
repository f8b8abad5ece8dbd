"""Your own models: `package.module:function`, called on the meta device."""

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from mupscale.errors import MupscaleError, OptionError, UnknownNameError
from mupscale.targets.reasons import reason

PATTERN = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<function>[^\W\d]\w*)")


def call(name: str, settings: Mapping[str, Any], device: str = "meta") -> Any:
    """Call `module:function` with the settings and return its result.

    >>> call("torch.nn:Linear", {"in_features": 4, "out_features": 2}).weight.shape
    torch.Size([2, 4])
    """
    with loaded(name) as function:
        _check_arguments(function, settings, name)
        try:
            with torch.device(device):
                return function(**settings)
        except MupscaleError:
            raise
        except Exception as error:  # the user's own code
            meta = " It is called on the meta device, where tensors have shapes but no numbers."
            raise OptionError(
                f"{name} raised {type(error).__name__}: "
                f"{reason(error)}.{meta if device == 'meta' else ''}"
            ) from error


@contextmanager
def loaded(name: str) -> Generator[Callable[..., Any]]:
    """The function behind `module:function`, importable from the current folder too."""
    parts = PATTERN.fullmatch(name)
    if parts is None:
        raise OptionError(f"{name!r} is not a function. Write module:function.")
    with _current_folder_importable():
        yield _function(_module(parts["module"], name), parts["function"], name)


def folder(name: str) -> Path | None:
    """The folder of the module in `module:function`, or None if unknown. The module is not run.

    >>> folder("torch.nn:Linear").name
    'nn'
    """
    parts = PATTERN.fullmatch(name)
    if parts is None:
        return None
    module = parts["module"]
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        importlib.invalidate_caches()
        # Packages around it are imported and may raise: calling the function reports that.
        with _current_folder_importable(), suppress(Exception):
            spec = importlib.util.find_spec(module)
            file = spec.origin if spec is not None and spec.has_location else None
    return None if file is None else Path(file).absolute().parent


@contextmanager
def _current_folder_importable() -> Generator[None]:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's own code may have removed it
            sys.path.remove(folder)


def _module(module: str, name: str) -> Any:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise OptionError(
                f"{name}: there is no module {error.name} in the current folder ({os.getcwd()}) or "
                "among the installed packages. Fix the name, or change to the folder that holds it."
            ) from error
        raise OptionError(
            f"{name}: importing {module} failed: {reason(error)}. Install what it needs."
        ) from error
    except Exception as error:  # the user's own code
        raise OptionError(
            f"{name}: importing {module} raised {type(error).__name__}: {reason(error)}. Fix the "
            "module."
        ) from error


def _function(module: Any, function: str, name: str) -> Callable[..., Any]:
    if not hasattr(module, function):
        public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
        known = [key for key, value in public.items() if callable(value)]
        raise UnknownNameError(f"function of {module.__name__}", function, known or ["none"])
    value = getattr(module, function)
    if not callable(value):
        raise OptionError(
            f"{name} is of type {type(value).__name__}, not a function. Name one that returns a "
            "model."
        )
    return value


def _check_arguments(function: Callable[..., Any], settings: Mapping[str, Any], name: str) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return  # written in C: it checks its arguments itself
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        for key in settings:
            if key not in known:
                raise UnknownNameError(f"argument of {name}", key, known or ["none"])
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    missing = [p.name for p in named if p.default is p.empty and p.name not in settings]
    if missing:
        raise OptionError(
            f"{name} needs {', '.join(missing)}. Write "
            f"{name},{','.join(f'{key}=…' for key in missing)}."
        )
