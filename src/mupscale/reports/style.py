"""The look of every figure: quiet, with colours that colour-blind readers can distinguish."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mupscale.errors import UnknownNameError

Label = TypeVar("Label", bound=Hashable)

Look = dict[str, Any]
"""Keyword arguments of matplotlib for a line, a mark or a text."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe & Ito 2008, ordered so that the first two differ most."""

SETTINGS: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    # Inches around the figure and its panels; between rows, a fraction of a panel's height.
    "figure.constrained_layout.w_pad": 0.06,
    "figure.constrained_layout.h_pad": 0.07,
    "figure.constrained_layout.hspace": 0.05,
    "svg.fonttype": "none",
    # The same data give the same file, byte for byte.
    "svg.hashsalt": "mupscale",
}

QUIET = "#5A5A5A"
"""Secondary text."""

INK = "#222222"
"""Reference lines, and what theory predicts."""

_LIGHTEST = 0.8
"""End of viridis as used here: beyond it, the yellow is too pale on white."""


def marker_look(marker: str, size: float, face: str, edge: str, edge_width: float) -> Look:
    """A mark without a line."""
    colours = {"markerfacecolor": face, "markeredgecolor": edge, "markeredgewidth": edge_width}
    return {"linestyle": "none", "marker": marker, "markersize": size} | colours


def ordered_colours(labels: Sequence[Label]) -> dict[Label, str]:
    """Dark to light, since labels are ordered values. viridis is uniform and colour-blind safe."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    last = max(1, len(labels) - 1)
    return {
        label: to_hex(colormaps["viridis"](_LIGHTEST * index / last))
        for index, label in enumerate(labels)
    }


@dataclass(frozen=True)
class Mark:
    """The look of a verdict: a symbol with its word, their colour, and the marker of its point."""

    text: str
    colour: str
    marker: str


# Bluish green, vermilion and orange of Okabe & Ito, darkened until small text is readable on white.
_MARKS: Mapping[str | None, Mark] = {
    "pass": Mark("✓ pass", "#00805C", "o"),
    "fail": Mark("✗ fail", "#C94F00", "X"),
    "inconclusive": Mark("? inconclusive", "#A87400", "s"),
    None: Mark("– not judged", "#757575", "o"),
}


def mark_of(verdict: str | None) -> Mark:
    """The look of a verdict; None stands for a slope that is not judged.

    >>> mark_of("pass").text
    '✓ pass'
    """
    if verdict not in _MARKS:
        raise UnknownNameError("verdict", verdict, [word for word in _MARKS if word is not None])
    return _MARKS[verdict]
