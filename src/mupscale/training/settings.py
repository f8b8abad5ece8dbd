"""From TOML to frozen values: unknown keys and wrong types raise errors that name the key."""

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from mupscale.errors import OptionError, UnknownNameError


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror or error}. Name a TOML file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is not TOML: {error}.") from error


def section(name: str, kind: type[Any], value: Any) -> Any:
    """A table of settings as an instance of its dataclass."""
    given = table(name, value)
    known(f"setting in {name}", given, [f.name for f in dataclasses.fields(kind)])
    hints = get_type_hints(kind)
    return kind(**{key: typed(f"{name}.{key}", item, hints[key]) for key, item in given.items()})


def table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise OptionError(f"{name} = {value!r} is not a table. Write [{name}] and settings below.")
    return dict(cast(Mapping[str, Any], value))


def known(kind: str, given: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise an error for a key that is none of these."""
    for key in given:
        if key not in names:
            raise UnknownNameError(kind, key, names)


def typed(name: str, value: Any, hint: Any) -> Any:
    """The value as its declared type: an integer may stand for a float, a list for a tuple."""
    kinds = get_args(hint) if type(None) in get_args(hint) else (hint,)
    for kind in kinds:
        if kind is type(None) and value is None:
            return None
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise UnknownNameError(name, value, [str(choice) for choice in get_args(kind)])
            return value
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if get_origin(kind) is Mapping and isinstance(value, Mapping):
            return {key: typed(f"{name}.{key}", v, float) for key, v in flattened(value).items()}
        if get_origin(kind) is tuple and isinstance(value, list | tuple):
            return tuple(float(item) for item in cast(list[float], value))
        if isinstance(kind, type) and type(value) is kind:
            return value
    names = [getattr(kind, "__name__", str(kind)) for kind in kinds if kind is not type(None)]
    raise OptionError(
        f"{name} = {value!r} has type {type(value).__name__}; expected {' or '.join(names)}."
    )


def flattened(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables in tables as one, with dotted names: TOML reads lr.embedding = 2 as a table lr.

    >>> flattened({"lr": {"embedding": 2, "gains": 4}, "std.readout": 4})
    {'lr.embedding': 2, 'lr.gains': 4, 'std.readout': 4}
    """
    found: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, Mapping):
            inner = flattened(cast(Mapping[str, Any], value))
            found |= {f"{name}.{key}": item for key, item in inner.items()}
        else:
            found[name] = value
    return found


def for_toml(value: Any) -> Any:
    """Tables without None, which TOML does not have, and lists for tuples."""
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return {key: for_toml(item) for key, item in items if item is not None}
    if isinstance(value, tuple | list):
        return [for_toml(item) for item in cast(Sequence[Any], value)]
    return value
