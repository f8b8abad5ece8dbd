"""Figures and tables as files that other tools open."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mupscale.records import write_whole
from mupscale.reports.style import SETTINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METADATA: Mapping[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
"""Without a date, the same data give the same file."""


def save_figure(figure: "Figure", stem: Path, formats: Sequence[str] = ("png", "svg", "pdf")) -> list[Path]:
    """The figure beside `stem`, once for each format."""
    import matplotlib

    paths: list[Path] = []
    for kind in formats:
        buffer = io.BytesIO()
        with matplotlib.rc_context(dict(SETTINGS)):
            figure.savefig(buffer, format=kind, dpi=160, metadata=_METADATA[kind])
        path = stem.with_suffix(f".{kind}")
        write_whole(path, buffer.getvalue())
        paths.append(path)
    return paths


def save_csv(rows: Sequence[Mapping[str, object]], path: Path) -> Path:
    """The rows as a table with a header line."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, buffer.getvalue().encode())
    return path
