"""The API page: every public name of every room, from its docstring."""

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

import mupscale

ROOMS = (
    "theory", "planning", "reading", "targets", "checks", "testing", "studies", "recipes",
    "analysis", "norms", "optim", "models", "data", "training", "engines", "reports", "paper",
    "errors",
)  # fmt: skip


def page() -> str:
    """The names of the package as links, then the rooms."""
    rooms = {room: importlib.import_module(f"mupscale.{room}") for room in ROOMS}
    places = {name: place for module in rooms.values() for name, place in public(module).items()}
    lines = ["# API", "", "`import mupscale as mu` provides:", ""]
    lines += [f"- [`mu.{name}`][{places[name]}]" for name in mupscale.__all__ if name in places]
    for room, module in rooms.items():
        lines += ["", f"## mupscale.{room}", "", inspect.getdoc(module) or "", ""]
        lines += [f"::: {place}" for place in public(module).values()]
    return "\n".join(lines) + "\n"


def public(module: ModuleType) -> dict[str, str]:
    """Where each public name of a room is defined.

    >>> public(importlib.import_module("mupscale.planning"))["plan"]
    'mupscale.planning.planner.plan'
    """
    return dict(_defined(module))


def _defined(module: ModuleType) -> Iterator[tuple[str, str]]:
    for name in getattr(module, "__all__", None) or _own_classes(module):
        value = getattr(module, name)
        ours = getattr(value, "__module__", "").startswith("mupscale")
        if ours and (inspect.isclass(value) or inspect.isfunction(value)):
            yield name, f"{value.__module__}.{value.__qualname__}"
        elif not inspect.ismodule(value) and name in vars(module):
            yield name, f"{module.__name__}.{name}"


def _own_classes(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
    ]
