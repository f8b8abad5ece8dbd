"""Write TOML: tables of plain values, which is all that a config holds. Python only reads TOML."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast


def dumps(values: Mapping[str, Any]) -> str:
    """Plain values first, then one table per mapping, nested ones included; None is left out.

    >>> reading = {"ignore": ["scale"], "roles": {"*.alpha.weight": "query"}}
    >>> print(dumps({"seed": 0, "reading": reading}), end="")
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
    """The lines of a table, then its inner tables. A table of tables needs no head."""
    plain = {k: v for k, v in values.items() if v is not None and not isinstance(v, Mapping)}
    tables = {k: cast(Mapping[str, Any], v) for k, v in values.items() if isinstance(v, Mapping)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    head = [f"[{'.'.join(map(_key, path))}]"] if path and (lines or not tables) else []
    if head or lines:
        yield "\n".join([*head, *lines])
    for name, table in tables.items():
        yield from _sections(table, (*path, name))


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _text(text: str) -> str:
    """Like JSON, except that TOML does not escape surrogates, and does escape DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        inside = (f"{_key(key)} = {_value(item)}" for key, item in items if item is not None)
        return "{" + ", ".join(inside) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        assert math.isfinite(value), value
    return repr(value)
