"""Figures and tables as files for other tools."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mupscale.errors import OptionError, UnknownNameError
from mupscale.records import write_whole
from mupscale.reports.style import SETTINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METADATA = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Without a date, the same data give the same file."""

FORMATS = tuple(_METADATA)

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""First characters of a formula, also full-width ones, and whitespace that spreadsheets strip."""


def save_figure(figure: "Figure", stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Save the figure next to `stem`, once per format."""
    import matplotlib

    for kind in formats:
        if kind not in _METADATA:
            raise UnknownNameError("format of a figure", kind, _METADATA)
    paths: list[Path] = []
    with matplotlib.rc_context(SETTINGS):
        # Compute the layout once for all formats: it takes longer than the drawing.
        figure.draw_without_rendering()
        engine = figure.get_layout_engine()
        figure.set_layout_engine("none")
        try:
            for kind in formats:
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, dpi=160, metadata=_METADATA[kind])
                paths.append(stem.with_suffix(f".{kind}"))
                write_whole(paths[-1], buffer.getvalue())
        finally:
            figure.set_layout_engine(engine)
    return paths


def save_csv(rows: Sequence[Mapping[str, object]], path: Path) -> Path:
    """Save rows with a header line; a missing key is an empty cell.

    Text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    names = column_names(rows)
    lines = [_csv_line(names), *(_csv_line([row.get(name) for name in names]) for row in rows)]
    write_whole(path, "".join(lines).encode(errors="replace"))
    return path


def _csv_line(cells: Sequence[object]) -> str:
    r"""One row. With \r\n as its line end, `csv` quotes both characters inside cells."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(map(inert, cells))
    return buffer.getvalue().removesuffix("\r\n") + "\n"


def column_names(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """All keys, in order of first appearance."""
    if not rows:
        raise OptionError(
            "a table needs at least one row. Leave it out, or wait until a trial has finished."
        )
    return list(dict.fromkeys(name for row in rows for name in row))


def inert(cell: object) -> object:
    """A cell that no spreadsheet reads as a formula; numbers stay numbers.

    >>> [inert(cell) for cell in ("=1+1", "@now", -0.5, "-0.5", "gqa-mup")]
    ["'=1+1", "'@now", -0.5, "'-0.5", 'gqa-mup']
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
