"""TOML out: tables of plain values, which is all that a config holds. (Python reads TOML, and does
not write it.)
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast


def dumps(values: Mapping[str, Any]) -> str:
    """Plain values first, then one table for each mapping, those inside of it included; None is
    left out.

    >>> print(dumps({"seed": 0, "reading": {"ignore": ["scale"], "roles": {"*.alpha.weight": "query"}}}), end="")
    seed = 0
    <BLANKLINE>
    [reading]
    ignore = ["scale"]
    <BLANKLINE>
    [reading.roles]
    "*.alpha.weight" = "query"
    """
    return "\n\n".join(_sections(values, ())) + "\n"


def _sections(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """The lines of a table, then those of the tables in it. A table that holds only tables needs no
    head.
    """
    lines = [f"{_key(key)} = {_value(value)}" for key, value in values.items() if _is_plain(value)]
    tables = {
        name: cast(Mapping[str, Any], one)
        for name, one in values.items()
        if isinstance(one, Mapping)
    }
    head = [f"[{'.'.join(map(_key, path))}]"] if path and (lines or not tables) else []
    if head or lines:
        yield "\n".join([*head, *lines])
    for name, table in tables.items():
        yield from _sections(table, (*path, name))


def _is_plain(value: object) -> bool:
    return value is not None and not isinstance(value, Mapping)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _text(text: str) -> str:
    """As JSON writes it, with two exceptions: TOML has no escape for half a character, and wants
    one for DEL.
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return (
            "{"
            + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in items if item is not None)
            + "}"
        )
    if isinstance(value, Sequence):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        assert math.isfinite(value), value
    return repr(value)
