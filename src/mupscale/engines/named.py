"""Engines by name, for configs and the command line."""

import dataclasses
from typing import Any

from mupscale.engines.cluster import Ray
from mupscale.engines.local import Local
from mupscale.engines.session import Engine
from mupscale.errors import UnknownNameError

ENGINES: dict[str, type[Local] | type[Ray]] = {"local": Local, "ray": Ray}


def engine_named(name: str, **options: Any) -> Engine:
    """The engine of this name, with these settings.

    >>> engine_named("local", workers=3)
    Local(workers=3, retries=2, time_limit=None, memory_limit=None)
    """
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    known = [field.name for field in dataclasses.fields(ENGINES[name])]
    for option in options:
        if option not in known:
            raise UnknownNameError(f"setting of the engine {name!r}", option, known)
    return ENGINES[name](**options)
