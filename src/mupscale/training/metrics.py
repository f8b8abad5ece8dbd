"""Metrics as append-only JSON lines: repaired before the first append, cut back to the checkpoint
on resume.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mupscale.errors import MissingExtraError
from mupscale.records import json_line, read_lines, storage_error, write_rows


class MetricsFile:
    """An open metrics file without rows after `step`."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        rows, torn = read_lines(path)
        kept = [row for row in rows if row["step"] <= step]
        if torn or len(kept) != len(rows) or not path.exists():
            write_rows(path, kept)
        self._file = path.open("ab")

    def append(self, row: Mapping[str, Any]) -> None:
        try:
            self._file.write(json_line(row, f"{self.path}: a row"))
            self._file.flush()
        except OSError as error:
            raise storage_error("write", self.path, error) from error

    def sync(self) -> None:
        """Flush to disk, before a checkpoint that relies on it."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Board:
    """The same numbers for TensorBoard, which only this class imports."""

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("tensorboard", "tensorboard") from error
        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, float):
                self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self._writer.close()
