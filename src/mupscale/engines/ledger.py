"""A ledger: a file of JSON lines that only grows. The first line describes the jobs; each further
line is the result of one job.
"""

import json
import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from mupscale.errors import OptionError, StorageError
from mupscale.records import (
    differences,
    drop_torn_line,
    json_line,
    locked,
    read_lines,
    storage_error,
    write_whole,
)


class Ledger:
    """An open ledger. No other process can open it meanwhile."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        with ExitStack() as opened:
            # The lock is a file of its own, because the ledger is replaced when it is repaired.
            opened.enter_context(locked(path.with_name(f".{path.name}.lock"), path))
            self.results: dict[str, Any]
            self.results, self.torn = _prepared(path, about)
            self._file = _opened(path)
            self._open = opened.pop_all()

    @staticmethod
    def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """The description and the results so far, without changing the file; another process may
        have it open. A line that is being written, or was torn, is left out.
        """
        return _parsed(path, read_lines(path)[0])

    def append(self, job: str, result: Any) -> None:
        """Write a result, which is on disk when this returns. If it cannot be written, the ledger
        is left unchanged.
        """
        line = _result_line(job, result)
        size = os.fstat(self._file).st_size
        try:
            while line:  # the system may take a part at a time
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, size)
            rest = ", and run the same command again; the earlier results are intact"
            raise storage_error("write", self.path, error, rest) from error
        self.results[job] = result

    def forget(self, jobs: Collection[str]) -> None:
        """Remove the results of these jobs, so that they run again."""
        (header, *_), _ = read_lines(self.path)
        kept = {job: result for job, result in self.results.items() if job not in jobs}
        lines = [json_line(header, "the description"), *map(_result_line, kept, kept.values())]
        write_whole(self.path, b"".join(lines))
        os.close(self._file)
        self._file = _opened(self.path)
        self.results = kept

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        self._open.close()


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND)
    except OSError as error:
        raise storage_error("open", path, error) from error


def _result_line(job: str, result: Any) -> bytes:
    return json_line({"job": job, "result": result}, f"the result of job {job!r}")


def _prepared(path: Path, about: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Create the file, or repair its end; the results so far and whether a torn line was
    dropped.
    """
    header = json_line({"about": about}, "the description of the jobs")
    rows, torn = read_lines(path)
    if not rows and not torn:
        write_whole(path, header)
        return {}, False
    old, results = _parsed(path, rows)
    changed = list(differences(old, json.loads(header)["about"]))
    if changed:
        raise OptionError(
            f"{path} holds the jobs of another config ({'; '.join(changed)}). Choose another "
            "folder, or the settings that it was started with."
        )
    if torn:
        drop_torn_line(path)
    return results, torn


def _parsed(path: Path, rows: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The description and the results."""
    if not rows or rows[0].keys() != {"about"}:
        raise StorageError(
            f"{path} is not a ledger of jobs: its first line does not describe them. Choose "
            "another file."
        )
    results: dict[str, Any] = {}
    for number, row in enumerate(rows[1:], start=2):
        if row.keys() != {"job", "result"} or row["job"] in results:
            raise StorageError(
                f"{path}, line {number} is not the result of one job. Restore the file from a copy."
            )
        results[row["job"]] = row["result"]
    return rows[0]["about"], results
