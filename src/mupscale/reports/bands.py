"""Lines with bands: means over repetitions, their spread, and theory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mupscale.reports.canvas import blank_figure
from mupscale.reports.style import COLOURS, INK, Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASHES = ("--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))


@dataclass(frozen=True)
class Band:
    """Means with standard deviations at each x, and the curve that theory predicts."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    sd: Sequence[float]
    theory: Sequence[float]
    theory_label: str


def draw_bands(bands: Sequence[Band], *, x_label: str, y_label: str, title: str) -> "Figure":
    """Means as lines with markers, ±1 standard deviation as bands, theory dashed."""
    with blank_figure(6.4, 4.2) as figure:
        axes = figure.subplots()
        for band, colour, dashes in zip(bands, COLOURS, _DASHES, strict=False):
            low = [m - s for m, s in zip(band.mean, band.sd, strict=True)]
            high = [m + s for m, s in zip(band.mean, band.sd, strict=True)]
            axes.fill_between(band.x, low, high, color=colour, alpha=0.25, linewidth=0)
            axes.plot(band.x, band.mean, color=colour, marker="o", markersize=4, label=band.label)
            dashed: Look = {"color": INK, "linestyle": dashes, "linewidth": 1.2}
            axes.plot(band.x, band.theory, label=band.theory_label, **dashed)
        ticks = sorted({x for band in bands for x in band.x})
        axes.set(xlabel=x_label, ylabel=y_label, title=title, xticks=ticks)
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure
