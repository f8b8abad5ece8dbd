"""Differences of losses, paired by seed: one point per seed, and the mean with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mupscale.analysis.estimates import Estimate
from mupscale.errors import OptionError
from mupscale.reports.canvas import blank_figure, draw_interval, write_heading, write_title
from mupscale.reports.style import COLOURS, INK, QUIET, marker_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW_INCHES = 0.5
_SEED_OFFSET = 0.22
"""Rows between the interval and the points of the seeds below it."""


@dataclass(frozen=True)
class DifferenceRow:
    """One comparison. Without `mean` there is none, and `note` says why."""

    label: str
    by_seed: tuple[float, ...]
    mean: Estimate | None
    note: str = ""


@dataclass(frozen=True)
class DifferencePanel:
    """Comparisons that share a heading."""

    title: str
    rows: tuple[DifferenceRow, ...]


def draw_differences(
    panels: Sequence[DifferencePanel], *, bound: float, x_label: str, title: str
) -> "Figure":
    """One panel above the other, each on its own scale. The dashed line is the bound below which
    the whole interval must lie. An interval much longer than the points spread ends in an arrow.
    """
    if not any(row.by_seed for panel in panels for row in panel.rows):
        raise OptionError("there is no difference to draw. Wait until the runs have finished.")
    heights = [len(panel.rows) for panel in panels]
    with blank_figure(8.0, 1.0 + 0.8 * len(panels) + _ROW_INCHES * sum(heights)) as figure:
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for one, panel in zip(axes, panels, strict=True):
            _draw_panel(one, panel, bound)
        axes[-1].set_xlabel(x_label)
        write_title(figure, title)
    return figure


def _draw_panel(axes: "Axes", panel: DifferencePanel, bound: float) -> None:
    values = [0.0, bound, *(value for row in panel.rows for value in row.by_seed)]
    room = 0.5 * (max(values) - min(values))
    axes.set_xlim(min(values) - room, max(values) + room)
    axes.set_ylim(len(panel.rows) - 0.4, -0.6)
    axes.set_yticks(range(len(panel.rows)), labels=[row.label for row in panel.rows])
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color=INK, linewidth=1, zorder=1)
    axes.axvline(bound, color=QUIET, linewidth=1, linestyle=(0, (4, 2)), zorder=1)
    write_heading(axes, panel.title)
    for place, row in enumerate(panel.rows):
        if row.mean is None:
            axes.annotate(row.note, (0.01, place), xycoords=("axes fraction", "data"), va="center")
            continue
        draw_interval(axes, row.mean.low, row.mean.high, place, COLOURS[0])
        axes.plot(
            [row.mean.value], [place], **marker_look("o", 7, COLOURS[0], "white", 1), zorder=5
        )
        seeds = marker_look("o", 4, "none", QUIET, 1)
        axes.plot(row.by_seed, [place + _SEED_OFFSET] * len(row.by_seed), **seeds, zorder=4)
