"""Files too large for memory: written whole or not at all, checked against their SHA-256, and set
aside if they changed.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from mupscale.errors import StorageError
from mupscale.records import storage_error, write_whole

CHUNK_BYTES = 2**22
# Files up to this size are hashed whenever they are opened; larger ones if their size or
# modification time changed since the last hash.
ALWAYS_HASHED_BYTES = 2**26
_STAMPS = "verified.json"


def default_cache() -> Path:
    """`$MUPSCALE_CACHE`, or `mupscale` in `$XDG_CACHE_HOME` or `~/.cache`."""
    own = os.environ.get("MUPSCALE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mupscale"


def write_chunks(path: Path, chunks: Iterable[bytes]) -> dict[str, Any]:
    """Write a file whole or not at all; its size in bytes and SHA-256, as a manifest lists them."""
    digest, size = hashlib.sha256(), 0

    def measured() -> Iterator[bytes]:
        nonlocal size
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    write_whole(path, measured())
    return {"bytes": size, "sha256": digest.hexdigest()}


def read_chunks(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


def set_aside(path: Path, why: str, into: Path | None = None) -> None:
    """Rename what cannot be used, with a warning; nothing is deleted."""
    names = (f"{path.name}.set-aside-{number}" for number in count(1))
    kept = next(place for name in names if not (place := (into or path.parent) / name).exists())
    try:
        path.rename(kept)
    except OSError as error:
        raise storage_error("rename", path, error) from error
    warnings.warn(f"{why}. {path} is kept as {kept} and prepared again.", UserWarning, stacklevel=2)


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def fault_in(manifest: Path, names: Collection[str]) -> str | None:
    """What is wrong with a manifest that lists at least these files, or with the files; None if
    nothing is.
    """
    files = stored_files((read_object(manifest) or {}).get("files"))
    if not files or not set(names) <= files.keys():
        return f"{manifest} is not a manifest"
    return difference(manifest.parent, files)


def stored_files(values: Any) -> dict[str, tuple[int, str]]:
    """Sizes and hashes of the files that a manifest lists; none if the list is malformed."""
    try:
        files = {str(n): (int(f["bytes"]), str(f["sha256"])) for n, f in dict(values or {}).items()}
    except (KeyError, TypeError, ValueError):
        return {}
    return files if all(Path(name).name == name for name in files) else {}


def difference(folder: Path, files: Mapping[str, tuple[int, str]]) -> str | None:
    """What is wrong with the first file that differs from its record, or None."""
    stamps = read_object(folder / _STAMPS) or {}
    fresh: dict[str, list[int]] = {}
    for name, (size, sha256) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        found = path.stat()
        if found.st_size != size:
            return f"{path} has {found.st_size} bytes, not the {size} that were written"
        stamp = [found.st_size, found.st_mtime_ns]
        if found.st_size > ALWAYS_HASHED_BYTES:
            fresh[name] = stamp
        if (name not in fresh or stamps.get(name) != stamp) and _sha256(path) != sha256:
            return f"{path} has changed since it was written (its SHA-256 differs)"
    if fresh and fresh != stamps:
        with suppress(StorageError):  # on a read-only disk, the hash is computed again next time
            write_whole(folder / _STAMPS, json.dumps(fresh).encode())
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
