"""An empty figure in the project's style, and the parts that several figures share."""

import math
import textwrap
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mupscale.errors import MissingExtraError
from mupscale.reports.style import QUIET, SETTINGS, Look

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE_INCHES = 0.1
"""Width of a character in DejaVu Sans at 12 points, rounded up."""


@contextmanager
def blank_figure(
    width_inches: float, height_inches: float, *, formulas: bool = True
) -> "Generator[Figure, None, None]":
    """A figure to draw on inside the `with`; afterwards matplotlib's settings are restored.

    Without `formulas`, a dollar in a text is a dollar: for names that a user chose.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report") from error
    with matplotlib.rc_context({**SETTINGS, "text.parse_math": formulas}):
        yield Figure(figsize=(width_inches, height_inches), layout="constrained")


def write_title(figure: "Figure", text: str) -> None:
    """The title above all panels, wrapped to the figure's width."""
    figure.suptitle(textwrap.fill(text, int(figure.get_figwidth() / _TITLE_INCHES)), fontsize=12)


def write_heading(axes: "Axes", title: str, note: str = "", note_size: float = 8) -> float:
    """The title at the left of a panel, and a note below it. Returns the title's pad in points."""
    pad = 5 + 1.5 * note_size * (note.count("\n") + 1 if note else 0)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=pad)
    if note:
        text = axes.annotate(note, (0, 1), (0, 5), "axes fraction", "offset points")
        text.set(fontsize=note_size, color=QUIET, linespacing=1.15)
    return pad


def grid_shape(n_panels: int, most_columns: int) -> tuple[int, int]:
    """Rows and columns: one row while it fits, then whichever of two numbers of columns leaves
    fewer places empty.

    >>> [grid_shape(n_panels, 3) for n_panels in (1, 3, 4, 5, 6)]
    [(1, 1), (1, 3), (2, 2), (2, 3), (2, 3)]
    """
    columns = n_panels
    if n_panels > most_columns:
        columns = min(most_columns, most_columns - 1, key=lambda some: -n_panels % some)
    return math.ceil(n_panels / columns), columns


def draw_interval(axes: "Axes", low: float, high: float, row: float, colour: str) -> None:
    """A horizontal interval, which ends in an arrow where it leaves the axes."""
    from matplotlib.markers import CARETLEFT, CARETRIGHT

    left, right = axes.get_xlim()
    ends = [min(max(end, left), right) for end in (low, high)]
    axes.plot(ends, [row, row], color=colour, linewidth=1.7, zorder=3)
    arrows = ((low < left, left, CARETLEFT), (high > right, right, CARETRIGHT))
    for beyond, edge, caret in arrows:
        if beyond:
            look: Look = {"color": colour, "marker": caret, "markersize": 5.5, "clip_on": False}
            axes.plot([edge], [row], zorder=4, **look)


def optimum_keys(shown: Collection[bool], looks: Mapping[bool, Look], ends: str) -> "list[Artist]":
    """Keys of a legend for the optima that a figure shows: bounded ones (True) and others."""
    from matplotlib.lines import Line2D

    words = {True: f"optimum, {ends}", False: "optimum without a bound"}
    return [Line2D([], [], label=words[sure], **looks[sure]) for sure in words if sure in shown]
