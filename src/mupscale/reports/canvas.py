"""An empty figure in the project's style, and the texts that belong to all of it."""

import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mupscale.errors import MissingExtraError
from mupscale.reports.style import SETTINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Width of a character at 12 and at 10 points, rounded up from DejaVu Sans.
_TITLE_INCHES, _LABEL_INCHES = 0.1, 0.085


@contextmanager
def blank_figure(
    width_inches: float, height_inches: float, *, formulas: bool = True
) -> "Generator[Figure, None, None]":
    """A figure to draw on inside the `with`; afterwards matplotlib's settings are the caller's own
    again.

    Without `formulas`, dollars in a text are dollars: for names that a user chose.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report") from error
    with matplotlib.rc_context({**SETTINGS, "text.parse_math": formulas}):
        yield Figure(figsize=(width_inches, height_inches), layout="constrained")


def write_title(figure: "Figure", text: str) -> None:
    """The title above all, in as many lines as the width asks for."""
    figure.suptitle(textwrap.fill(text, int(figure.get_figwidth() / _TITLE_INCHES)), fontsize=12)


def write_y_label(figure: "Figure", text: str) -> None:
    """One label for the y axes of all panels, in as many lines as the height asks for."""
    figure.supylabel(textwrap.fill(text, int(figure.get_figheight() / _LABEL_INCHES)), fontsize=10)
