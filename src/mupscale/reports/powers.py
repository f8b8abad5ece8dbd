"""Curves over a width, or another size, on two log axes: a power law is a straight line, and theory
lies beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mupscale.errors import DimensionError, OptionError
from mupscale.reports.canvas import blank_figure, write_title, write_y_label
from mupscale.reports.log_axes import Limits, comparable_limits, comparable_ticks, plain_number
from mupscale.reports.style import INK, QUIET, ordered_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL_INCHES = {1: (4.6, 3.2), 2: (3.6, 2.9), 3: (2.9, 2.4)}
_FAR_INTERVAL = 2.0
"""An interval may stretch its axis by this factor beyond the means, no further."""


@dataclass(frozen=True)
class PowerCurve:
    """Means at each x with their intervals; `theory` is drawn dashed, in the same colour."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    theory: Sequence[float] = field(default_factory=tuple[float, ...])


@dataclass(frozen=True)
class PowerPanel:
    """Curves that belong together, and a short note."""

    title: str
    curves: Sequence[PowerCurve]
    note: str = ""


def draw_powers(
    panels: Sequence[PowerPanel], *, x_label: str, y_label: str, title: str, theory: str
) -> "Figure":
    """A panel beside the other, with the same factor from bottom to top in all, so that slopes
    compare by eye.

    `theory` says what the dashed lines are.
    """
    _check(panels)
    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    columns = len(panels) if len(panels) <= 3 else 2 if len(panels) == 4 else 3
    rows = math.ceil(len(panels) / columns)
    width, height = _PANEL_INCHES[columns]
    legend_inches = 0.7 + 0.075 * max(map(len, [*labels, theory]))
    with blank_figure(columns * width + legend_inches, rows * height + 0.5) as figure:
        colours = ordered_colours(labels)
        limits = comparable_limits([_y_range(panel) for panel in panels])
        for index, (panel, ticks) in enumerate(zip(panels, comparable_ticks(limits), strict=True)):
            axes = figure.add_subplot(rows, columns, index + 1)
            for curve in panel.curves:
                _draw_curve(axes, curve, colours[curve.label], limits[index])
            _set_scales(axes, panel, limits[index], ticks)
            _write_heading(axes, panel)
            axes.set_xlabel(x_label if index + columns >= len(panels) else "")
        write_title(figure, title)
        write_y_label(figure, y_label)
        _add_legend(figure, colours, theory)
    return figure


def _check(panels: Sequence[PowerPanel]) -> None:
    if not panels:
        raise OptionError("a figure without panels shows nothing. Give it one.")
    for panel in panels:
        for curve in panel.curves:
            columns = {"x": curve.x, "mean": curve.mean, "low": curve.low, "high": curve.high}
            columns |= {"theory": curve.theory} if len(curve.theory) else {}
            if len({len(values) for values in columns.values()}) > 1:
                lengths = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
                raise DimensionError(
                    f"{panel.title}, {curve.label}: the lengths differ ({lengths})."
                )
            if not all(
                0 < value < math.inf
                for values in (curve.x, curve.mean, curve.theory)
                for value in values
            ):
                raise OptionError(
                    f"{panel.title}, {curve.label}: a log axis shows only finite numbers above 0."
                )


def _y_range(panel: PowerPanel) -> Limits:
    means = [value for curve in panel.curves for value in (*curve.mean, *curve.theory)]
    lowest = min(value for curve in panel.curves for value in curve.low)
    highest = max(value for curve in panel.curves for value in curve.high)
    bottom, top = min(means), max(means)
    return min(bottom, max(lowest, bottom / _FAR_INTERVAL)), max(
        top, min(highest, top * _FAR_INTERVAL)
    )


def _draw_curve(axes: "Axes", curve: PowerCurve, colour: str, limits: Limits) -> None:
    low = [max(value, limits[0]) for value in curve.low]
    high = [min(value, limits[1]) for value in curve.high]
    axes.fill_between(curve.x, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(curve.x, curve.mean, color=colour, linewidth=1.5, marker="o", markersize=3.5)
    if len(curve.theory):
        axes.plot(curve.x, curve.theory, color=colour, linewidth=1.2, linestyle="--")


def _set_scales(
    axes: "Axes", panel: PowerPanel, y_limits: Limits, y_ticks: Sequence[float]
) -> None:
    x = sorted({value for curve in panel.curves for value in curve.x})
    axes.set(xscale="log", yscale="log", ylim=y_limits)
    for axis, ticks in ((axes.xaxis, x), (axes.yaxis, y_ticks)):
        axis.set_ticks([], minor=True)
        axis.set_ticks(ticks, labels=[plain_number(tick) for tick in ticks])
    axes.tick_params(length=0, labelsize=8.5)


def _write_heading(axes: "Axes", panel: PowerPanel) -> None:
    axes.set_title(
        panel.title, loc="left", fontsize=10, fontweight="bold", pad=17 if panel.note else 5
    )
    if panel.note:
        note = axes.annotate(panel.note, (0, 1), (0, 5), "axes fraction", "offset points")
        note.set(fontsize=8, color=QUIET)


def _add_legend(figure: "Figure", colours: dict[str, str], theory: str) -> None:
    from matplotlib.lines import Line2D

    keys = [Line2D([], [], color=colour, marker="o", markersize=3.5) for colour in colours.values()]
    names = list(colours)
    if theory:
        keys, names = (
            [*keys, Line2D([], [], color=INK, linestyle="--", linewidth=1.2)],
            [*names, theory],
        )
    figure.legend(keys, names, loc="outside right center", fontsize=9)
