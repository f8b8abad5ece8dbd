"""TOML out: tables of plain values, which is all that a config holds. (Python reads TOML, and does not write it.)"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast


def dumps(values: Mapping[str, Any]) -> str:
    """Plain values first, then one table for each mapping; None is left out.

    >>> print(dumps({"seed": 0, "model": {"width": 64, "betas": (0.9, 0.95)}}), end="")
    seed = 0
    <BLANKLINE>
    [model]
    width = 64
    betas = [0.9, 0.95]
    """
    plain = [f"{_key(key)} = {_value(value)}" for key, value in values.items() if _is_plain(value)]
    tables = [
        "\n".join([f"[{_key(name)}]", *(f"{_key(key)} = {_value(v)}" for key, v in table.items() if v is not None)])
        for name, table in values.items()
        if isinstance(table, Mapping)
    ]
    return "\n\n".join([part for part in ("\n".join(plain), *tables) if part]) + "\n"


def _is_plain(value: object) -> bool:
    return value is not None and not isinstance(value, Mapping)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in items if item is not None) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        assert math.isfinite(value), value
    return repr(value)
