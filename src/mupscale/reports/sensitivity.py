"""Loss over each searched parameter around the best point of a paired search."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mupscale.errors import DimensionError
from mupscale.reports.canvas import blank_figure, grid_shape, write_heading, write_title
from mupscale.reports.octaves import power_of_two
from mupscale.reports.style import INK, ordered_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mupscale.studies.sensitivity import Sensitivity


def draw_sensitivity(rows: Sequence["Sensitivity"], *, title: str) -> "Figure":
    """One panel per parameter, one line per cell; the best point lies at 0 on every line."""
    names = list(dict.fromkeys(row.parameter for row in rows if row.points))
    if not names:
        raise DimensionError("no parameter was compared yet: there is nothing to draw.")
    colours = ordered_colours(list(dict.fromkeys(row.cell for row in rows)))
    lines, columns = grid_shape(len(names), 4)
    with blank_figure(3.1 * columns, 2.6 * lines + 0.6, formulas=False) as figure:
        first = None
        for place, name in enumerate(names):
            first = axes = figure.add_subplot(lines, columns, place + 1, sharey=first)
            own = [row for row in rows if row.parameter == name]
            _draw_parameter(axes, own, colours)
            write_heading(axes, name, ", ".join(dict.fromkeys(row.verdict for row in own)))
            if place % columns == 0:
                axes.set_ylabel("loss above the best point (nats)")
        if len(colours) > 1:
            assert first is not None
            figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        write_title(figure, title)
    return figure


def _draw_parameter(axes: "Axes", rows: Sequence["Sensitivity"], colours: dict[str, str]) -> None:
    axes.axhline(0, color=INK, linewidth=0.8)
    for row in rows:
        colour = colours[row.cell]
        known = sorted([*((x, one.value) for x, one in row.points), (row.value, 0.0)])
        axes.plot(*zip(*known, strict=True), color=colour, linewidth=1.2, label=row.cell)
        axes.plot([row.value], [0], marker="o", markersize=6, color=colour)
        for x, one in row.points:
            if one.bounded:
                axes.plot([x, x], [one.low, one.high], color=colour, linewidth=1.6)
            axes.plot([x], [one.value], marker="o", markersize=3.5, color=colour)
    low, high = axes.get_xlim()
    ticks = [tick for tick in range(int(low) - 1, int(high) + 2) if low <= tick <= high]
    axes.set_xticks(ticks, [power_of_two(tick) for tick in ticks])
