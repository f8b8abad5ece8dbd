"""Results on disk: rows as JSON lines, whole files or none.

JSON is strict: a number that is not finite is refused here, before it can poison a reader.
"""

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from mupscale.errors import NonFiniteError, StorageError


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """Write dataclass rows or dictionaries, one JSON object a line."""
    try:
        lines = [json.dumps(_plain(row), allow_nan=False, ensure_ascii=False) for row in rows]
    except ValueError as error:
        raise NonFiniteError(
            f"{path}: a row holds NaN or infinity, which JSON cannot carry. Store null."
        ) from error
    write_whole(path, "".join(f"{line}\n" for line in lines).encode())


def finite(value: Any) -> Any:
    """The value for strict JSON, which has no NaN and no infinity: those become None.

    >>> finite({"low": -math.inf, "ends": (1.5, math.nan)})
    {'low': None, 'ends': [1.5, None]}
    """
    if isinstance(value, dict):
        return {key: finite(one) for key, one in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in cast(list[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_ABSENT = object()


def differences(old: Any, new: Any, ignore: Collection[str] = (), name: str = "") -> Iterator[str]:
    """What differs between two configs as nested dictionaries, by dotted name.

    >>> new = {"model": {"width": 128, "depth": 2}}
    >>> list(differences({"lr": 0.1, "model": {"width": 64, "depth": 2}}, new))
    ['lr: 0.1 → absent', 'model.width: 64 → 128']
    """
    if name in ignore:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        left, right = cast(dict[str, Any], old), cast(dict[str, Any], new)
        for key in left | right:
            inside = f"{name}.{key}" if name else key
            yield from differences(left.get(key, _ABSENT), right.get(key, _ABSENT), ignore, inside)
    elif old != new:
        before, after = ("absent" if v is _ABSENT else json.dumps(v) for v in (old, new))
        yield f"{name}: {before} → {after}"


def _plain(row: Any) -> Any:
    return (
        dataclasses.asdict(row)
        if dataclasses.is_dataclass(row) and not isinstance(row, type)
        else row
    )


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part, whatever happens
    meanwhile.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"could not write {path}: {reason}. Free some room or choose another --output; nothing was changed."
        raise StorageError(message) from error


def read_lines(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The rows, none if there is no file, and whether a torn last line was left out."""
    try:
        *whole, tail = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], False
    except OSError as error:
        raise StorageError(
            f"could not read {path}: {error.strerror or error}. Choose another file."
        ) from error
    return [_row(path, number, line) for number, line in enumerate(whole, start=1)], bool(tail)


def drop_torn_line(path: Path) -> None:
    """Repair a file before anything is appended to it."""
    content = path.read_bytes()
    write_whole(path, content[: content.rfind(b"\n") + 1])


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_constant=_refuse)
    except ValueError as error:
        raise StorageError(
            f"{path}, line {number} is not JSON: {error}. Restore the file from a copy."
        ) from error
    if not isinstance(row, dict):
        raise StorageError(
            f"{path}, line {number} is not a JSON object. Restore the file from a copy."
        )
    return row


def _refuse(constant: str) -> Any:
    raise ValueError(f"it holds {constant}")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
