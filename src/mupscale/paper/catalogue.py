"""Experiments that are studies: one TOML file for each experiment and scale.

All studies of a scale share its `open.toml`; their own settings take precedence.
"""

import math
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, cast, get_args

from mupscale.errors import UnknownNameError
from mupscale.paper.experiment import Scale
from mupscale.studies import StudyConfig
from mupscale.studies.config import Cell
from mupscale.training import RunConfig

_SHARED = "open.toml"


def studies_of(scale: Scale) -> list[str]:
    """Names of the studies of this scale."""
    names = (file.name for file in _folder(scale).iterdir())
    return sorted(
        name.removesuffix(".toml") for name in names if name.endswith(".toml") and name != _SHARED
    )


def load(name: str, scale: Scale) -> StudyConfig:
    """The study of that name, checked.

    >>> load("gqa-ablation", "paper").seeds
    (42, 43, 44)
    """
    if name not in studies_of(scale):
        raise UnknownNameError(f"study at scale {scale}", name, studies_of(scale))
    folder = _folder(scale)
    shared = folder / _SHARED
    below = _read(shared) if shared.is_file() else {}
    return StudyConfig.from_dict(over(below, _read(folder / f"{name}.toml")))


def middle_run(config: StudyConfig, cell: Cell) -> RunConfig:
    """A run of a cell, from the middle of its space. The settings outside the space are shared."""
    middle = {name: math.sqrt(low * high) for name, (low, high) in cell.space.items()}
    return config.run_config(cell, middle, config.seeds[0])


def over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables, setting by setting; `above` wins.

    >>> over({"length": {"floor": 0.1, "batch": 8}}, {"length": {"batch": 16}, "name": "a"})
    {'length': {'floor': 0.1, 'batch': 16}, 'name': 'a'}
    """
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[name] = (
            over(cast(Mapping[str, Any], under), cast(Mapping[str, Any], value)) if both else value
        )
    return merged


def _folder(scale: Scale) -> Traversable:
    if scale not in get_args(Scale):
        raise UnknownNameError("scale", scale, get_args(Scale))
    return files("mupscale.paper") / "studies" / scale


def _read(file: Traversable) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))
