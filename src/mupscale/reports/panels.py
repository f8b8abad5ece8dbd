"""A grid of panels, the layout of a coordinate check in a paper: one panel a parameter role, one
line a scale.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mupscale.errors import DimensionError, NonFiniteError, OptionError
from mupscale.reports.canvas import blank_figure, write_title, write_y_label
from mupscale.reports.log_axes import Limits, comparable_limits, comparable_ticks, plain_number
from mupscale.reports.style import QUIET, mark_of, ordered_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A few panels may be large; (width, height) in inches by the number of columns.
_PANEL_INCHES = {1: (4.4, 3.0), 2: (3.4, 2.6), 3: (2.7, 2.2), 4: (2.6, 2.1)}

_TITLE_INCHES = 0.084
"""Width of a bold character at 10 points, on average."""

_FAR_INTERVAL = 2.0
"""An interval may stretch its axis by this factor beyond the means, no further: the means are what
one compares.
"""


@dataclass(frozen=True)
class Line:
    """One value of the varied quantity: the mean over seeds at each step, and its confidence
    interval.
    """

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """One parameter role: its lines, the verdict on them ("pass", "fail", "inconclusive"), and a
    short note.
    """

    title: str
    lines: Sequence[Line]
    verdict: str | None = None
    note: str = ""


def draw_panels(
    panels: Sequence[Panel], *, x_label: str, y_label: str, title: str, legend_title: str = ""
) -> "Figure":
    """Means as lines and intervals as bands over the steps, log y with the same factor in every
    panel.

    A family of lines that is flat looks flat, and one that spreads looks spread, whatever panel it
    is in. Colours follow the order in which the labels first appear.
    """
    _check(panels)
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    rows, columns = _grid(len(panels))
    width, height = _PANEL_INCHES[columns]
    legend_columns = math.ceil(len(labels) / (4 * rows * height))
    legend_width = max(
        legend_columns * (0.7 + 0.07 * max(map(len, labels))), 0.08 * len(legend_title)
    )
    with blank_figure(columns * width + legend_width + 0.4, rows * height + 0.4) as figure:
        colours = ordered_colours(labels)
        limits = comparable_limits([_y_range(panel) for panel in panels])
        x_limits = _x_limits(panels)
        for index, (panel, ticks) in enumerate(zip(panels, comparable_ticks(limits), strict=True)):
            axes = figure.add_subplot(rows, columns, index + 1)
            for line in panel.lines:
                _draw_line(axes, line, colours[line.label], limits[index])
            _set_scales(axes, x_limits, limits[index], ticks)
            _write_heading(axes, panel, width - 0.4)
            lowest_of_column = index + columns >= len(panels)
            axes.tick_params(labelbottom=lowest_of_column, length=0, labelsize=8.5)
            axes.set_xlabel(x_label if lowest_of_column else "")
        write_title(figure, title)
        write_y_label(figure, y_label)
        _add_legend(figure, colours, legend_title, legend_columns)
    return figure


def _check(panels: Sequence[Panel]) -> None:
    if not panels:
        raise OptionError("there is no panel to draw. Give one for each parameter role.")
    for panel in panels:
        mark_of(panel.verdict)
        if not panel.lines:
            raise OptionError(
                f"panel {panel.title!r} has no line. Give it one, or leave the panel out."
            )
        for line in panel.lines:
            _check_line(line, f"panel {panel.title!r}, line {line.label!r}")


def _check_line(line: Line, name: str) -> None:
    columns = {"x": line.x, "mean": line.mean, "low": line.low, "high": line.high}
    if len({len(values) for values in columns.values()}) > 1:
        lengths = ", ".join(f"{key} {len(values)}" for key, values in columns.items())
        raise DimensionError(
            f"{name}: the lengths differ ({lengths}). Give each one number a step."
        )
    if not len(line.x):
        raise OptionError(f"{name} has no step. Give it one, or leave the line out.")
    for key, values in columns.items():
        for x, value in zip(line.x, values, strict=True):
            if not math.isfinite(value):
                raise NonFiniteError(f"{name}: {key} is {value} at x = {x:g}. Leave that step out.")
    for x, mean in zip(line.x, line.mean, strict=True):
        if mean <= 0:
            raise OptionError(
                f"{name}: mean is {mean:g} at x = {x:g}, which a log axis cannot show. Leave it "
                "out."
            )


def _grid(n_panels: int) -> tuple[int, int]:
    """Rows and columns: a strip of up to four, then three or four columns, whichever leaves fewer
    cells unused.
    """
    columns = n_panels if n_panels <= 4 else min((4, 3), key=lambda some: -n_panels % some)
    return math.ceil(n_panels / columns), columns


def _y_range(panel: Panel) -> Limits:
    means = [value for line in panel.lines for value in line.mean]
    lowest = min(value for line in panel.lines for value in line.low)
    highest = max(value for line in panel.lines for value in line.high)
    bottom, top = min(means), max(means)
    return min(bottom, max(lowest, bottom / _FAR_INTERVAL)), max(
        top, min(highest, top * _FAR_INTERVAL)
    )


def _x_limits(panels: Sequence[Panel]) -> Limits:
    steps = [x for panel in panels for line in panel.lines for x in line.x]
    margin = 0.05 * (max(steps) - min(steps)) or 0.5
    return min(steps) - margin, max(steps) + margin


def _draw_line(axes: "Axes", line: Line, colour: str, limits: Limits) -> None:
    # An interval may reach zero or less, which has no logarithm: it ends at the axis.
    low = [max(value, limits[0]) for value in line.low]
    if len(line.x) == 1:
        # A band over one step has no width.
        axes.vlines(line.x, low, line.high, color=colour, alpha=0.25, linewidth=4)
    else:
        axes.fill_between(line.x, low, line.high, color=colour, alpha=0.2, linewidth=0)
    markers_apart = math.ceil(len(line.x) / 20)
    axes.plot(
        line.x,
        line.mean,
        color=colour,
        linewidth=1.4,
        marker="o",
        markersize=3,
        markevery=markers_apart,
    )


def _set_scales(axes: "Axes", x_limits: Limits, y_limits: Limits, y_ticks: Sequence[float]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_yscale("log")
    axes.set_yticks([], minor=True)
    axes.set_yticks(y_ticks, labels=[plain_number(tick) for tick in y_ticks])
    axes.set(xlim=x_limits, ylim=y_limits)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def _write_heading(axes: "Axes", panel: Panel, width_inches: float) -> None:
    """The title at the left, the verdict at the right of its last line, the note beneath both."""
    pad = 17 if panel.note else 5
    room_inches = width_inches
    if panel.verdict is not None:
        mark = mark_of(panel.verdict)
        axes.set_title(
            mark.text, loc="right", fontsize=8, fontweight="bold", color=mark.colour, pad=pad
        )
        room_inches -= 0.12 + 0.064 * len(mark.text)
    title = _fold(panel.title, int(width_inches / _TITLE_INCHES), int(room_inches / _TITLE_INCHES))
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=pad)
    if panel.note:
        note = axes.annotate(panel.note, (0, 1), (0, 5), "axes fraction", "offset points")
        note.set(fontsize=8, color=QUIET)


def _fold(text: str, n_characters: int, n_last: int) -> str:
    """Lines of at most so many characters, `n_last` in the last, broken after a space or a dot
    where there is one.

    >>> print(_fold("layers.3.attention.q_proj.weight", 24, 13))
    layers.3.attention.
    q_proj.weight
    """
    pieces = re.findall(rf"[^\s.]{{1,{n_characters - 1}}}[\s.]?|[\s.]", text)
    lines, room = [""], n_last
    for piece in reversed(pieces):
        if len((piece + lines[0]).rstrip()) > room:
            lines, room = ["", *lines], n_characters
        lines[0] = piece + lines[0]
    return "\n".join(line.rstrip() for line in lines)


def _add_legend(figure: "Figure", colours: dict[str, str], title: str, n_columns: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    # Each key is a band with a line over it; matplotlib takes such pairs, though its types do not
    # say so.
    keys: list[Any] = [
        (
            Patch(facecolor=colour, alpha=0.2, linewidth=0),
            Line2D([], [], color=colour, marker="o", markersize=3),
        )
        for colour in colours.values()
    ]
    place = "outside right center"
    figure.legend(
        keys,
        list(colours),
        title=title or None,
        loc=place,
        ncols=n_columns,
        fontsize=9,
        title_fontsize=9,
    )
