"""Figures and tables as files that other tools open."""

import csv
import io
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mupscale.errors import OptionError, UnknownNameError
from mupscale.records import write_whole
from mupscale.reports.style import SETTINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METADATA: Mapping[str, dict[str, None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
"""Without a date, the same data give the same file."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""How a formula begins, also in full width, and what a spreadsheet strips before it looks."""


def save_figure(
    figure: "Figure", stem: Path, formats: Sequence[str] = ("png", "svg", "pdf")
) -> list[Path]:
    """The figure beside `stem`, once for each format."""
    import matplotlib

    for kind in formats:
        if kind not in _METADATA:
            raise UnknownNameError("format of a figure", kind, _METADATA)
    paths: list[Path] = []
    with matplotlib.rc_context(dict(SETTINGS)), _laid_out(figure):
        for kind in formats:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=160, metadata=_METADATA[kind])
            paths.append(stem.with_suffix(f".{kind}"))
            write_whole(paths[-1], buffer.getvalue())
    return paths


@contextmanager
def _laid_out(figure: "Figure") -> Generator[None, None, None]:
    """The layout made once for all formats: it takes longer than the drawing."""
    figure.draw_without_rendering()
    engine = figure.get_layout_engine()
    figure.set_layout_engine("none")
    try:
        yield
    finally:
        figure.set_layout_engine(engine)


def save_csv(rows: Sequence[Mapping[str, object]], path: Path) -> Path:
    """The rows as a table with a header line; a key that a row lacks is an empty cell.

    Text that a spreadsheet would take for a formula gets an apostrophe before it, which makes it
    text there too.
    """
    names = column_names(rows)
    lines = [_csv_line(names), *(_csv_line([row.get(name) for name in names]) for row in rows)]
    write_whole(path, "".join(lines).encode(errors="replace"))
    return path


def _csv_line(cells: Sequence[object]) -> str:
    """One row. Only with both characters in the line's end does `csv` quote both of them in a
    cell.
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(map(inert, cells))
    return buffer.getvalue().removesuffix("\r\n") + "\n"


def column_names(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """All keys, in the order in which they first appear."""
    if not rows:
        raise OptionError(
            "a table without rows has no columns. Leave it out, or wait until a run has ended."
        )
    return list(dict.fromkeys(name for row in rows for name in row))


def inert(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula; numbers stay numbers.

    >>> [inert(cell) for cell in ("=1+1", "@now", -0.5, "-0.5", "gqa-mup")]
    ["'=1+1", "'@now", -0.5, "'-0.5", 'gqa-mup']
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
