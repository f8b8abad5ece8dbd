"""Finished jobs as JSON lines that only grow: what is being run first, then a line for each
result.
"""

import fcntl
import json
import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mupscale.errors import NonFiniteError, OptionError, StorageError
from mupscale.records import differences, drop_torn_line, read_lines, write_whole


class Ledger:
    """An open ledger, which no other process can open meanwhile."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        with ExitStack() as opened:
            self._lock = _locked(path)
            opened.callback(os.close, self._lock)
            self.results: dict[str, Any]
            self.results, self.torn = _prepared(path, about)
            self._file = _opened(path, os.O_WRONLY | os.O_APPEND)
            opened.pop_all()  # all went well: they stay open

    @staticmethod
    def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is being run and the results so far, also while another process has it open; nothing
        is changed.

        A line that is being written, or was torn, is left out.
        """
        rows, _ = read_lines(path)
        return _understood(path, rows)

    def append(self, job: str, result: Any) -> None:
        """On disk when this returns; on a disk that will not take it, the ledger stays as it
        was.
        """
        line = _line({"job": job, "result": result}, f"job {job!r}")
        size = os.fstat(self._file).st_size
        try:
            _write(self._file, line)
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, size)
            reason = error.strerror or str(error)
            raise StorageError(
                f"could not write {self.path}: {reason}. Free some room and run the same again; "
                "the results before this one are intact."
            ) from error
        self.results[job] = result

    def forget(self, jobs: Collection[str]) -> None:
        """Leave these jobs out, so that they are run again."""
        (header, *_), _ = read_lines(self.path)
        kept = {job: result for job, result in self.results.items() if job not in jobs}
        lines = [
            _line(header, "what is being run"),
            *(_line({"job": job, "result": kept[job]}, job) for job in kept),
        ]
        write_whole(self.path, b"".join(lines))
        os.close(self._file)
        self._file = _opened(self.path, os.O_WRONLY | os.O_APPEND)
        self.results = kept

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)
        os.close(self._lock)


def _locked(path: Path) -> int:
    """A lock beside the ledger (which itself is replaced when it is repaired). The system drops it
    with the process.
    """
    file = _opened(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT)
    try:
        _claim(file, path)
    except BaseException:
        os.close(file)
        raise
    return file


def _opened(path: Path, flags: int) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o644)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"could not open {path}: {reason}. Free some room or choose another folder."
        ) from error


def _claim(file: int, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(file, 20).decode(errors="replace") or "its number is not known"
        raise OptionError(
            f"{path} is in use by another process ({owner}). Wait until it has ended, or choose "
            "another folder."
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"could not lock {path}: {reason}. Choose a folder on a disk of this machine."
        ) from error
    with suppress(OSError):  # on a full disk it is not told who has it
        os.ftruncate(file, 0)
        _write(file, str(os.getpid()).encode())


def _prepared(path: Path, about: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The results so far, in a file that is whole: begun, or repaired if it has to be, which the
    second value says.
    """
    header = _line({"about": about}, "what is being run")
    rows, torn = read_lines(path)
    if not rows and not torn:
        write_whole(path, header)
        return {}, False
    old, results = _understood(path, rows)
    changed = list(differences(old, json.loads(header)["about"]))
    if changed:
        raise OptionError(
            f"{path} holds the jobs of another config ({'; '.join(changed)}). Choose another "
            "folder, or the "
            "settings that it was begun with."
        )
    if torn:
        drop_torn_line(path)
    return results, torn


def _understood(path: Path, rows: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is being run, and the results."""
    if not rows or rows[0].keys() != {"about"}:
        raise StorageError(
            f"{path} is not a ledger of jobs: its first line does not say what was run. Choose "
            "another."
        )
    results: dict[str, Any] = {}
    for number, row in enumerate(rows[1:], start=2):
        if row.keys() != {"job", "result"} or row["job"] in results:
            raise StorageError(
                f"{path}, line {number} is not the result of one job. Restore the file from a copy."
            )
        results[row["job"]] = row["result"]
    return rows[0]["about"], results


def _line(row: Mapping[str, Any], what: str) -> bytes:
    try:
        return json.dumps(row, allow_nan=False).encode() + b"\n"
    except ValueError as error:
        raise NonFiniteError(
            f"{what} holds NaN or infinity, which JSON cannot carry. Use None instead."
        ) from error
    except TypeError as error:
        raise OptionError(f"{what} cannot be written as JSON: {error}.") from error


def _write(file: int, content: bytes) -> None:
    """All of it: the system may take a part at a time."""
    while content:
        content = content[os.write(file, content) :]
