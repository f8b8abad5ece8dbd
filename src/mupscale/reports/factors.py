"""The effect of a factor on the key/value rate at each r: on the best rate and its loss."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mupscale.errors import DimensionError
from mupscale.reports.canvas import blank_figure, write_title
from mupscale.reports.octaves import power_of_two
from mupscale.reports.style import INK, QUIET, Look, ordered_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FactorCurve:
    """Values at log2 of the factors for one r, with intervals; infinite ends are not drawn."""

    label: str
    x: Sequence[float]
    value: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    paper: float | None = None
    "log2 of the paper's factor at this r."


@dataclass(frozen=True)
class FactorPanel:
    """Curves for all r; `reference` is the base's value with its interval, drawn as a band."""

    title: str
    y_label: str
    curves: Sequence[FactorCurve]
    reference: tuple[float, float, float] | None = None
    note: str = ""


def draw_factors(panels: Sequence[FactorPanel], *, title: str) -> "Figure":
    """Panels side by side over log2 f. A small triangle marks the paper's factor for each r."""
    if not any(panel.curves for panel in panels):
        raise DimensionError("there is no curve to draw. Give a panel with at least one curve.")
    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    with blank_figure(4.6 * len(panels), 3.9) as figure:
        colours = ordered_colours(labels)
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), place + 1)
            _draw_panel(axes, panel, colours)
        write_title(figure, title)
    return figure


def _draw_panel(axes: "Axes", panel: FactorPanel, colours: dict[str, str]) -> None:
    if panel.reference is not None:
        value, low, high = panel.reference
        axes.axhspan(low, high, color=INK, alpha=0.08, linewidth=0)
        axes.axhline(
            value, color=INK, linewidth=1, linestyle="--", label="base, without the factor"
        )
    for number, curve in enumerate(panel.curves):
        _draw_curve(
            axes, curve, colours[curve.label], shift=0.03 * (number - (len(panel.curves) - 1) / 2)
        )
    places = [x for curve in panel.curves for x in curve.x]
    ticks = list(range(math.floor(min(places)), math.ceil(max(places)) + 1))
    axes.set(xlabel="factor on the key/value rate", ylabel=panel.y_label, xticks=ticks)
    axes.set_xticklabels([power_of_two(tick) for tick in ticks])
    axes.set_title(panel.title, loc="left")
    if panel.note:
        axes.annotate(
            panel.note, (0.02, 0.98), xycoords="axes fraction", va="top", fontsize=8, color=QUIET
        )
    axes.margins(y=0.18)
    axes.legend(loc="best", fontsize=8)


def _draw_curve(axes: "Axes", curve: FactorCurve, colour: str, shift: float) -> None:
    """Curves are shifted a little, so that their intervals do not overlap."""
    errors = [
        (value - low, high - value) if math.isfinite(high - low) else (0.0, 0.0)
        for value, low, high in zip(curve.value, curve.low, curve.high, strict=True)
    ]
    xs = [x + shift for x in curve.x]
    look: Look = {"marker": "o", "markersize": 4, "linewidth": 1.3, "capsize": 2}
    below_above = list(zip(*errors, strict=True))
    axes.errorbar(xs, curve.value, yerr=below_above, color=colour, label=curve.label, **look)
    if curve.paper is not None:
        triangle: Look = {"marker": "^", "markersize": 6, "linestyle": "none", "clip_on": False}
        axis = axes.get_xaxis_transform()
        axes.plot([curve.paper], [0.015], color=colour, transform=axis, **triangle)
