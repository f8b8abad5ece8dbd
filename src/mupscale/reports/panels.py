"""A grid of panels with lines and bands over steps or sizes, all on comparable log axes."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mupscale.errors import DimensionError, NonFiniteError, OptionError
from mupscale.reports.canvas import blank_figure, grid_shape, write_heading, write_title
from mupscale.reports.log_axes import Limits, comparable_limits, comparable_ticks, plain_number
from mupscale.reports.style import INK, Look, mark_of, ordered_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Fewer panels may be larger: (width, height) in inches by the number of columns.
_PANEL_INCHES = {1: (4.4, 3.0), 2: (3.4, 2.6), 3: (2.7, 2.2), 4: (2.6, 2.1)}

# Average width of a bold character at 10 points, and of a plain one, rounded up.
_TITLE_INCHES, _LABEL_INCHES = 0.084, 0.085

_FAR_INTERVAL = 2.0
"""An interval stretches its axis at most by this factor beyond the means, which are what one
compares."""


@dataclass(frozen=True)
class Line:
    """Means over seeds with their confidence intervals; `theory` is drawn dashed."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    theory: Sequence[float] = field(default_factory=tuple[float, ...])


@dataclass(frozen=True)
class Panel:
    """Lines that belong together, such as those of one parameter role, and their verdict."""

    title: str
    lines: Sequence[Line]
    verdict: str | None = None
    "pass, fail or inconclusive."
    note: str = ""


def draw_panels(
    panels: Sequence[Panel],
    *,
    x_label: str,
    y_label: str,
    title: str,
    log_x: bool = False,
    theory: str = "",
) -> "Figure":
    """Means as lines and intervals as bands, on a log y axis with the same factor in every panel.

    So flat lines look flat and spread lines look spread in whatever panel they are, and with
    `log_x` a power law is a straight line whose slope compares by eye. Colours follow the order in
    which labels first appear. `theory` explains the dashed lines.
    """
    _check(panels, unbounded=log_x)
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    rows, columns = grid_shape(len(panels), 4)
    width, height = _PANEL_INCHES[columns]
    legend_columns = math.ceil(len(labels) / (4 * rows * height))
    longest = max(map(len, [*labels, *theory.split("\n")]))
    legend_width = legend_columns * (0.7 + 0.07 * longest)
    with blank_figure(columns * width + legend_width + 0.4, rows * height + 0.4) as figure:
        colours = ordered_colours(labels)
        limits = comparable_limits([_y_range(panel) for panel in panels])
        for index, (panel, ticks) in enumerate(zip(panels, comparable_ticks(limits), strict=True)):
            axes = figure.add_subplot(rows, columns, index + 1)
            for line in panel.lines:
                _draw_line(axes, line, colours[line.label], limits[index])
            _set_x(axes, panel, panels, log_x=log_x)
            axes.set_yscale("log")
            axes.set_yticks([], minor=True)
            axes.set_yticks(ticks, labels=[plain_number(tick) for tick in ticks])
            axes.set(ylim=limits[index])
            _write_heading(axes, panel, width - 0.4)
            lowest_of_column = index + columns >= len(panels)
            axes.tick_params(labelbottom=lowest_of_column or log_x, length=0, labelsize=8.5)
            axes.set_xlabel(x_label if lowest_of_column else "")
        write_title(figure, title)
        room = int(figure.get_figheight() / _LABEL_INCHES)
        figure.supylabel(textwrap.fill(y_label, room), fontsize=10)
        _add_legend(figure, colours, legend_columns, theory)
    return figure


def _check(panels: Sequence[Panel], *, unbounded: bool) -> None:
    if not panels:
        raise OptionError("there is no panel to draw. Give one per parameter role.")
    for panel in panels:
        mark_of(panel.verdict)
        if not panel.lines:
            raise OptionError(
                f"panel {panel.title!r} has no line. Give it one, or leave the panel out."
            )
        for line in panel.lines:
            _check_line(line, f"panel {panel.title!r}, line {line.label!r}", unbounded)


def _check_line(line: Line, name: str, unbounded: bool) -> None:
    columns = {"x": line.x, "mean": line.mean, "low": line.low, "high": line.high}
    columns |= {"theory": line.theory} if len(line.theory) else {}
    if len({len(values) for values in columns.values()}) > 1:
        lengths = ", ".join(f"{key} {len(values)}" for key, values in columns.items())
        raise DimensionError(f"{name}: the lengths differ ({lengths}). Give each the same number.")
    if not len(line.x):
        raise OptionError(f"{name} has no step. Give it one, or leave the line out.")
    for key, values in columns.items():
        for x, value in zip(line.x, values, strict=True):
            endless = unbounded and key in ("low", "high") and not math.isnan(value)
            if not (math.isfinite(value) or endless):
                raise NonFiniteError(f"{name}: {key} is {value} at x = {x:g}. Leave that step out.")
            if key in ("mean", "theory") and value <= 0:
                raise OptionError(
                    f"{name}: {key} is {value:g} at x = {x:g}, which a log axis cannot show. Leave "
                    "it out."
                )


def _y_range(panel: Panel) -> Limits:
    means = [value for line in panel.lines for value in (*line.mean, *line.theory)]
    lowest = min(value for line in panel.lines for value in line.low)
    highest = max(value for line in panel.lines for value in line.high)
    bottom = min(min(means), max(lowest, min(means) / _FAR_INTERVAL))
    return bottom, max(max(means), min(highest, max(means) * _FAR_INTERVAL))


def _draw_line(axes: "Axes", line: Line, colour: str, limits: Limits) -> None:
    # An interval may reach zero or less, which has no logarithm: it ends at the axis.
    low = [max(value, limits[0]) for value in line.low]
    high = [min(value, limits[1]) for value in line.high]
    if len(line.x) == 1:
        # A band over one step has no width.
        axes.vlines(line.x, low, high, color=colour, alpha=0.25, linewidth=4)
    else:
        axes.fill_between(line.x, low, high, color=colour, alpha=0.2, linewidth=0)
    markers: Look = {"marker": "o", "markersize": 3, "markevery": math.ceil(len(line.x) / 20)}
    axes.plot(line.x, line.mean, color=colour, linewidth=1.4, **markers)
    if len(line.theory):
        axes.plot(line.x, line.theory, color=colour, linewidth=1.2, linestyle="--")


def _set_x(axes: "Axes", panel: Panel, panels: Sequence[Panel], *, log_x: bool) -> None:
    if log_x:
        ticks = sorted({x for line in panel.lines for x in line.x})
        axes.set_xscale("log")
        axes.set_xticks([], minor=True)
        axes.set_xticks(ticks, labels=[plain_number(tick) for tick in ticks])
        return
    from matplotlib.ticker import MaxNLocator

    steps = [x for panel in panels for line in panel.lines for x in line.x]
    margin = 0.05 * (max(steps) - min(steps)) or 0.5
    axes.set(xlim=(min(steps) - margin, max(steps) + margin))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def _write_heading(axes: "Axes", panel: Panel, width_inches: float) -> None:
    """The title at the left, the verdict at the right of its last line, the note below both."""
    mark = None if panel.verdict is None else mark_of(panel.verdict)
    room = width_inches - (0.12 + 0.064 * len(mark.text) if mark else 0)
    title = textwrap.fill(panel.title, int(room / _TITLE_INCHES))
    pad = write_heading(axes, title, panel.note)
    if mark:
        look: Look = {"fontsize": 8, "fontweight": "bold", "color": mark.colour}
        axes.set_title(mark.text, loc="right", pad=pad, **look)


def _add_legend(figure: "Figure", colours: dict[str, str], n_columns: int, theory: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    # Each key is a band with a line over it. matplotlib accepts such pairs; its types do not.
    keys: list[Any] = [
        (
            Patch(facecolor=colour, alpha=0.2, linewidth=0),
            Line2D([], [], color=colour, marker="o", markersize=3),
        )
        for colour in colours.values()
    ]
    names = list(colours)
    if theory:
        keys.append(Line2D([], [], color=INK, linestyle="--", linewidth=1.2))
        names.append(theory)
    figure.legend(keys, names, loc="outside right center", ncols=n_columns, fontsize=9)
