"""Results on disk: rows as JSON lines, files written whole or not at all, and locks.

JSON is strict: NaN and infinity raise an error here, before they can confuse a reader.
"""

import dataclasses
import json
import math
import os
import tempfile
import time
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from mupscale.errors import NonFiniteError, OptionError, StorageError


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """Write dataclass rows or dictionaries, one JSON object per line."""
    write_whole(path, b"".join([json_line(row, f"{path}: a row") for row in rows]))


def json_line(row: Any, what: str) -> bytes:
    """A dataclass or dictionary as a line of strict JSON; `what` names it in errors."""
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        row = dataclasses.asdict(row)
    try:
        text = json.dumps(row, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise NonFiniteError(
            f"{what} holds NaN or infinity, which JSON cannot represent. Use None instead."
        ) from error
    except TypeError as error:
        raise OptionError(f"{what} cannot be written as JSON: {error}.") from error
    # Half a surrogate pair, as in the name of a badly encoded file, becomes JSON's own escape.
    return text.encode(errors="backslashreplace") + b"\n"


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


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file, perhaps in chunks, so that a reader sees the old content or the new one, never
    a part of it, even if this process is killed meanwhile.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                for chunk in [content] if isinstance(content, bytes) else content:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise storage_error("write", path, error, "; the file was not changed") from error


def storage_error(action: str, path: Path, error: OSError, rest: str = "") -> StorageError:
    """The error for a path that could not be written, opened or locked."""
    reason = error.strerror or str(error)
    return StorageError(
        f"could not {action} {path}: {reason}. Free some disk space or choose another folder{rest}."
    )


@contextmanager
def locked(path: Path, what: Path, seconds: float = 0.0) -> Generator[int]:
    """Hold the lock at `path`, which protects `what`, and wait for it for at most this long.

    Yields the file descriptor. The system frees the lock when all copies of the descriptor are
    closed: when this process ends, however it ends, and the last process that it was passed to.
    That is why this is not `filelock.FileLock`, which keeps its descriptor to itself.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise storage_error("open", path, error) from error
    try:
        deadline = time.monotonic() + seconds
        while not _claimed(file, path):
            if time.monotonic() > deadline:
                owner = os.pread(file, 20, 0).decode(errors="replace") or "unknown pid"
                raise OptionError(
                    f"{what} is in use by another process ({owner}). Wait until it has ended, or "
                    "choose another folder."
                )
            time.sleep(0.05)
        with suppress(OSError):  # on a full disk, others do not learn the pid
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        yield file
    finally:
        os.close(file)


def _claimed(file: int, path: Path) -> bool:
    from filelock import lock_descriptor

    try:
        return lock_descriptor(file, blocking=False)
    except OSError as error:
        raise storage_error("lock", path, error, " on a local disk") from error


def read_lines(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The rows of a file, if it exists, and whether a torn last line was left out."""
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
    """Repair a file before appending to it."""
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
