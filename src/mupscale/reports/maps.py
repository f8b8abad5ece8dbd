"""Voronoi maps of two parameters: one row per rule, one column per member.

The colour is the loss above the panel's lowest.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from mupscale.analysis.families import StudyAnalysis
from mupscale.analysis.flags import UNSURE
from mupscale.analysis.measurements import Measurement, Member
from mupscale.analysis.surfaces import Surface, fit_surface
from mupscale.analysis.timescales import tau_epoch
from mupscale.analysis.voronoi import cells
from mupscale.errors import OptionError
from mupscale.records import finite
from mupscale.reports.canvas import blank_figure, optimum_keys
from mupscale.reports.curves import mean_loss
from mupscale.reports.log_axes import Limits, plain_number
from mupscale.reports.octaves import (
    member_text,
    octave_ticks,
    power_of_two,
    short_name,
    with_margin,
)
from mupscale.reports.style import COLOURS, INK, QUIET, Look, marker_look
from mupscale.reports.words import NAMES
from mupscale.text import many

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

# Average width of a character at 9 points, and of a bold one at 10.
_LETTER_INCHES, _BOLD_INCHES = 0.075, 0.095

_COLOUR_MAP = "viridis_r"
"""Light is low, as in the paper; uniform, and safe for the colour-blind."""

_DIVERGED: Look = {
    "facecolor": "#D0D0D0",
    "edgecolor": "#8A8A8A",
    "hatch": "/////",
    "linewidth": 0.3,
}

_POINT = marker_look("o", 1.9, INK, "white", 0.35)
_MEAN = marker_look("X", 10, COLOURS[1], "white", 0.9)
_OPTIMUM = {
    sure: marker_look("o", 5.5, *colours, 0.9)
    for sure, colours in ((True, (INK, "white")), (False, ("white", INK)))
}

Box = tuple[Limits, Limits]
"""A range of rates, and one of the other parameter, in log2."""


@dataclass(frozen=True)
class LossMap:
    """One rule on one member. Points are log2 of (rate, other); losses are means over seeds, None
    if one diverged.
    """

    rule: str
    member: Member
    points: tuple[tuple[float, float], ...]
    losses: tuple[float | None, ...]
    counts: tuple[int, ...]
    "Runs at each point."
    runs: int
    diverged: int
    fit: Surface | None
    outline: tuple[tuple[float, float], ...]
    "Corners of the searched range. A parallelogram if the axes are not those of the search."

    @property
    def lowest(self) -> float | None:
        return min((loss for loss in self.losses if loss is not None), default=None)

    @property
    def excesses(self) -> list[float | None]:
        """Losses above the lowest."""
        lowest = self.lowest
        return [None if loss is None or lowest is None else loss - lowest for loss in self.losses]

    @property
    def sure(self) -> bool:
        """Whether the runs bound the optimum."""
        return self.fit is not None and not UNSURE & set(self.fit.flags)


@dataclass(frozen=True)
class MapGrid:
    """All maps over one pair of parameters, and the mean of each rule's optima."""

    names: tuple[str, str]
    rules: tuple[str, ...]
    members: tuple[Member, ...]
    maps: Mapping[tuple[str, Member], LossMap]
    means: Mapping[str, tuple[float, float]]


def map_grids(analysis: StudyAnalysis, runs: Sequence[Measurement]) -> list[MapGrid]:
    """The data of the figures: over the searched pair, and with τ for λ (or λ for τ) if the steps
    are known.

    Three searched parameters have no map: a point would not show the value of the third.
    """
    others = [name for name in analysis.parameters if name != "lr"]
    if "lr" not in analysis.parameters or len(others) != 1:
        return []
    turned = {"weight_decay": "tau_epoch", "tau_epoch": "weight_decay"}.get(others[0])
    grids = [_grid(analysis, runs, others[0], name) for name in (others[0], turned) if name]
    return [grid for grid in grids if grid is not None]


def _grid(
    analysis: StudyAnalysis, runs: Sequence[Measurement], searched: str, name: str
) -> MapGrid | None:
    """None if the parameter is unknown in every run."""
    found: dict[tuple[str, Member], list[Measurement]] = {}
    for run in runs:
        if coordinate(run, name) is not None:
            found.setdefault((run.rule, run.member), []).append(run)
    if not found:
        return None
    box = map_box([_place(run, searched) for own in found.values() for run in own])
    maps = {
        key: _map(analysis, name, own, _outline(own[0], name, searched, box))
        for key, own in found.items()
    }
    rules, members = (tuple(dict.fromkeys(part)) for part in zip(*maps, strict=True))
    means = {rule: _mean([maps[key] for key in maps if key[0] == rule], name) for rule in rules}
    known = {rule: mean for rule, mean in means.items() if mean is not None}
    return MapGrid(("lr", name), rules, members, maps, known)


def coordinate(run: Measurement, name: str) -> float | None:
    """log2 of a parameter of a run; λ and τ_epoch = 1 / (λ η steps) follow from each other.

    >>> run = Measurement(
    ...     rule="mup", member=Member(label=""), seed=1, loss=2.0, steps=1024,
    ...     params={"lr": 2**-6, "weight_decay": 0.5},
    ... )
    >>> coordinate(run, "weight_decay"), coordinate(run, "tau_epoch")
    (-1.0, -3.0)
    """
    rate, value = run.params["lr"], run.params.get(name)
    other = run.params.get("weight_decay" if name == "tau_epoch" else "tau_epoch")
    if value is None and other and run.steps:
        value = tau_epoch(rate, other, run.steps)  # which gives λ from τ as well
    return math.log2(value) if value else None


def _map(
    analysis: StudyAnalysis,
    name: str,
    runs: Sequence[Measurement],
    outline: tuple[tuple[float, float], ...],
) -> LossMap:
    at: dict[tuple[float, float], list[float | None]] = {}
    for run in runs:
        at.setdefault(_place(run, name), []).append(finite(run.loss))
    return LossMap(
        rule=runs[0].rule,
        member=runs[0].member,
        points=tuple(at),
        losses=tuple(map(mean_loss, at.values())),
        counts=tuple(map(len, at.values())),
        runs=len(runs),
        diverged=sum(loss is None for losses in at.values() for loss in losses),
        fit=_fit(analysis, name, runs),
        outline=outline,
    )


def _place(run: Measurement, name: str) -> tuple[float, float]:
    other = coordinate(run, name)
    assert other is not None
    return run.log2("lr"), other


def _outline(
    run: Measurement, name: str, searched: str, box: Box
) -> tuple[tuple[float, float], ...]:
    """The corners of the searched range, in the coordinates of the map."""
    (left, right), (bottom, top) = box
    corners = ((left, bottom), (right, bottom), (right, top), (left, top))
    steps = math.log2(run.steps or 1)
    return corners if name == searched else tuple((x, -(x + y + steps)) for x, y in corners)


def _fit(analysis: StudyAnalysis, name: str, runs: Sequence[Measurement]) -> Surface | None:
    """The fit of the analysis, or a new one if this pair is not the searched one."""
    if name in analysis.parameters:
        cell = analysis.cell(runs[0].rule, runs[0].member.label)
        return None if cell is None else cell.surface
    return fit_surface(
        [_place(run, name) for run in runs],
        [run.loss for run in runs],
        [run.seed for run in runs],
        names=("lr", name),
        confidence=analysis.confidence,
    )


def _mean(maps: Sequence[LossMap], name: str) -> tuple[float, float] | None:
    """The mean of the bounded optima, per parameter as in the paper; None with fewer than two."""
    fits = [one.fit for one in maps if one.fit is not None and one.sure]
    if len(fits) < 2:
        return None
    x, y = (fmean(fit.found[one].value for fit in fits) for one in ("lr", name))
    return x, y


def draw_maps(grid: MapGrid, *, axis: str | None = None, confidence: float = 0.95) -> "Figure":
    """Cells coloured by loss on one scale, each optimum with its region, and the mean optimum."""
    if not grid.maps:
        raise OptionError("there is no run to draw. Wait until a trial has finished.")
    rows, columns = len(grid.rules), len(grid.members)
    side = 1.95 if columns > 1 else 2.9
    with blank_figure(columns * side + 1.35, rows * side + 0.85, formulas=False) as figure:
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        box = map_box([place for one in grid.maps.values() for place in one.points])
        norm = _norm(grid)
        for row, rule in enumerate(grid.rules):
            for column, member in enumerate(grid.members):
                axes = panels[row, column]
                _draw_map(axes, grid.maps.get((rule, member)), box, norm)
                _draw_mean(axes, grid.means.get(rule), box)
                if row == 0:
                    _write_above(axes, member_text(member, axis))
            name = textwrap.fill(short_name(rule), int(0.8 * side / _BOLD_INCHES))
            panels[row, 0].set_ylabel(name, fontsize=10, fontweight="bold", labelpad=8)
        _set_scales(panels, box)
        for axes in panels[-1]:
            axes.set_xlabel(NAMES["lr"], fontsize=9)
        other = NAMES.get(grid.names[1], short_name(grid.names[1]))
        figure.supylabel(textwrap.fill(other, int(rows * side / _LETTER_INCHES)), fontsize=9)
        _add_colour_bar(figure, panels, norm)
        _add_legend(figure, grid, confidence)
    return figure


def _write_above(axes: "Axes", text: str) -> None:
    """The heading of a column, above the small one of its first panel."""
    note = axes.annotate(
        textwrap.fill(text, 24), (0.5, 1), (0, 16), "axes fraction", "offset points"
    )
    note.set(horizontalalignment="center", fontsize=9)


def map_box(places: Sequence[tuple[float, float]]) -> Box:
    """The range of the places, with a margin."""
    x, y = zip(*places, strict=True)
    return with_margin(min(x), max(x)), with_margin(min(y), max(y))


def _norm(grid: MapGrid) -> "Normalize":
    """Linear near a panel's lowest loss, logarithmic beyond, up to nine tenths of all runs."""
    from matplotlib.colors import AsinhNorm

    excesses = sorted(
        value for one in grid.maps.values() for value in one.excesses if value is not None
    )
    top = excesses[(9 * (len(excesses) - 1)) // 10] if excesses else 0.0
    usual = median(excesses) if excesses else 0.0
    return AsinhNorm(linear_width=max(usual / 5, 1e-3), vmin=0.0, vmax=max(top, 1e-2))


def _draw_map(axes: "Axes", one: LossMap | None, box: Box, norm: "Normalize") -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Polygon

    axes.grid(visible=False)
    if one is None:
        note: Look = {"xycoords": "axes fraction", "ha": "center", "color": QUIET, "fontsize": 8}
        axes.annotate("no runs", (0.5, 0.5), **note)
        return
    polygons = list(zip(cells(one.points, box), one.excesses, strict=True))
    ended = [(polygon, excess) for polygon, excess in polygons if excess is not None]
    colours = PolyCollection([polygon for polygon, _ in ended], cmap=_COLOUR_MAP, norm=norm)
    colours.set(array=[excess for _, excess in ended], edgecolor="face", linewidth=0.3, zorder=1)
    empty = [polygon for polygon, excess in polygons if excess is None]
    searched = Polygon(one.outline, closed=True, transform=axes.transData)
    for collection in (colours, PolyCollection(empty, **_DIVERGED)):
        axes.add_collection(collection)
        collection.set_clip_path(searched)
    axes.plot(*zip(*one.points, strict=True), **_POINT)
    _draw_optimum(axes, one, box)
    lowest = "no loss" if one.lowest is None else f"lowest {one.lowest:.3f}"
    lost = f", {one.diverged} diverged" if one.diverged else ""
    axes.set_title(f"{lowest} · {many(one.runs, 'run')}{lost}", fontsize=7, color=QUIET, pad=4)


def _draw_optimum(axes: "Axes", one: LossMap, box: Box) -> None:
    """A cross with the intervals as arms, and the joint region if it is bounded."""
    from matplotlib.patches import Polygon

    fit = one.fit
    if fit is None:
        return
    found = [(fit.found[name], *limits) for name, limits in zip(fit.names, box, strict=True)]
    x, y = (min(max(own.value, low), high) for own, low, high in found)
    arms = [(max(own.low, low), min(own.high, high)) for own, low, high in found]
    if fit.region:
        for colour, width in (("white", 1.8), (INK, 0.8)):
            look: Look = {"facecolor": "none", "edgecolor": colour, "linewidth": width, "zorder": 3}
            axes.add_patch(Polygon(fit.region, closed=True, **look))
    if one.sure:
        for colour, width in (("white", 2.6), (INK, 1.2)):
            axes.plot(arms[0], [y, y], color=colour, linewidth=width, zorder=4)
            axes.plot([x, x], arms[1], color=colour, linewidth=width, zorder=4)
    axes.plot([x], [y], zorder=6, clip_on=False, **_OPTIMUM[one.sure])


def _draw_mean(axes: "Axes", mean: tuple[float, float] | None, box: Box) -> None:
    if mean is not None and all(
        low <= value <= high for value, (low, high) in zip(mean, box, strict=True)
    ):
        axes.plot([mean[0]], [mean[1]], zorder=5, **_MEAN)


def _set_scales(panels: Any, box: Box) -> None:
    x_ticks, y_ticks = (octave_ticks(limits) for limits in box)
    panels[0, 0].set_xticks(x_ticks, labels=[power_of_two(tick) for tick in x_ticks])
    panels[0, 0].set_yticks(y_ticks, labels=[power_of_two(tick) for tick in y_ticks])
    panels[0, 0].set(xlim=box[0], ylim=box[1])
    for axes in panels.flat:
        axes.tick_params(length=2, labelsize=8)


def _add_colour_bar(figure: "Figure", panels: Any, norm: "Normalize") -> None:
    from matplotlib.cm import ScalarMappable

    bar = figure.colorbar(
        ScalarMappable(norm, _COLOUR_MAP), ax=panels, aspect=30, pad=0.015, extend="max"
    )
    top = norm.vmax or 1.0
    ticks = [float(f"{mantissa}e{power}") for power in range(-3, 4) for mantissa in (1, 3)]
    shown = [0.0, *(tick for tick in ticks if tick <= top and float(norm(tick)) > 0.06)]
    bar.set_ticks(shown, labels=[plain_number(tick) if tick else "0" for tick in shown])
    bar.ax.tick_params(labelsize=8, length=2)
    bar.ax.minorticks_off()
    room = int((figure.get_figheight() - 1) / _LETTER_INCHES)
    bar.set_label(textwrap.fill("loss above the panel's lowest (nats)", room), fontsize=9)


def _add_legend(figure: "Figure", grid: MapGrid, confidence: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    sures = {one.sure for one in grid.maps.values() if one.fit is not None}
    keys = optimum_keys(sures, _OPTIMUM, f"{confidence:.0%} intervals and region")
    if grid.means:
        bounded = "bounded " * (False in sures)
        keys.append(Line2D([], [], label=f"mean of {bounded}optima", **_MEAN))
    if any(one.diverged for one in grid.maps.values()):
        keys.append(Patch(label="diverged", **_DIVERGED))
    if keys:
        columns = max(1, min(len(keys), int(figure.get_figwidth() / 1.9)))
        figure.legend(handles=keys, loc="outside lower center", ncols=columns, fontsize=8)
