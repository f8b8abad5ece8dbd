"""Loss against learning rate: one panel per rule, one line per member, their optima below."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import CellAnalysis, RuleTransfer, StudyAnalysis
from mupscale.analysis.flags import UNSURE
from mupscale.analysis.measurements import Measurement, Member
from mupscale.errors import OptionError
from mupscale.records import finite
from mupscale.reports.canvas import (
    blank_figure,
    draw_interval,
    grid_shape,
    optimum_keys,
    write_heading,
)
from mupscale.reports.log_axes import Limits
from mupscale.reports.octaves import (
    member_text,
    octave_ticks,
    power_of_two,
    short_name,
    with_margin,
)
from mupscale.reports.style import INK, QUIET, Look, marker_look, ordered_colours
from mupscale.reports.words import signed, with_interval
from mupscale.text import many

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LETTER_INCHES = 0.063
"""Average width of a character in the legend."""

_SIZES = {"parameters": "size"}
"""Shorter names of axes, for headings."""

Looks = dict[Member, Look]
_BAND = "#DEDEDE"
_DASHED = (0, (4, 2))


@dataclass(frozen=True)
class Found:
    """An optimum of the rate, in log2, the fitted loss there, and what is doubtful about it."""

    rate: Estimate
    loss: float
    flags: tuple[str, ...]

    @property
    def sure(self) -> bool:
        return not UNSURE & set(self.flags)


@dataclass(frozen=True)
class RateCurve:
    """One member: its runs as (log2 rate, loss), and their means where no seed diverged."""

    member: Member
    runs: tuple[tuple[float, float], ...]
    seeds: tuple[int, ...]
    "Of these runs."
    mean: tuple[tuple[float, float], ...]
    diverged: tuple[float, ...]
    "Rates at which a run diverged, in log2."
    found: Found | None


@dataclass(frozen=True)
class CurvePanel:
    """One rule. `joined` means that only the rate was searched, so points form a line."""

    rule: str
    curves: tuple[RateCurve, ...]
    transfer: RuleTransfer | None
    seeds: int
    joined: bool

    @property
    def runs(self) -> int:
        return sum(len(curve.runs) + len(curve.diverged) for curve in self.curves)


def curve_panels(analysis: StudyAnalysis, runs: Sequence[Measurement]) -> list[CurvePanel]:
    """The data of the figure: one panel per rule with runs."""
    transfers = {transfer.rule: transfer for transfer in analysis.transfers}
    joined = not set(analysis.parameters) - {"lr"}
    panels: list[CurvePanel] = []
    for rule in dict.fromkeys(run.rule for run in runs if "lr" in run.params):
        own = [run for run in runs if run.rule == rule and "lr" in run.params]
        members = dict.fromkeys(run.member for run in own)
        curves = [
            _curve(analysis, rule, member, [run for run in own if run.member == member])
            for member in members
        ]
        seeds = len({run.seed for run in own})
        panels.append(CurvePanel(rule, tuple(curves), transfers.get(rule), seeds, joined))
    return panels


def _curve(
    analysis: StudyAnalysis, rule: str, member: Member, runs: Sequence[Measurement]
) -> RateCurve:
    ordered = sorted(runs, key=lambda run: run.params["lr"])
    places = [(run.log2("lr"), finite(run.loss), run.seed) for run in ordered]
    at: dict[float, list[float | None]] = {}
    for rate, loss, _ in places:
        at.setdefault(rate, []).append(loss)
    means = ((rate, mean_loss(losses)) for rate, losses in at.items())
    return RateCurve(
        member=member,
        runs=tuple((rate, loss) for rate, loss, _ in places if loss is not None),
        seeds=tuple(seed for _, loss, seed in places if loss is not None),
        mean=tuple((rate, mean) for rate, mean in means if mean is not None),
        diverged=tuple(rate for rate, loss, _ in places if loss is None),
        found=_found(analysis.cell(rule, member.label)),
    )


def mean_loss(losses: Sequence[float | None]) -> float | None:
    """The mean over seeds. None if one diverged: a mean over survivors would look too good."""
    known = [loss for loss in losses if loss is not None]
    return fmean(known) if len(known) == len(losses) else None


def _found(cell: CellAnalysis | None) -> Found | None:
    if cell is None or cell.loss is None or "lr" not in cell.found:
        return None
    return Found(cell.found["lr"], cell.loss, cell.flags)


def draw_curves(
    panels: Sequence[CurvePanel], *, axis: str | None = None, confidence: float = 0.95
) -> "Figure":
    """Means over seeds as lines, runs as faint points, and a strip with each optimum's interval.

    All panels share their axes. The dashed line is the mean of a rule's optima, the grey band ±1
    standard deviation over members (ddof 0). Losses far above the minimum are cut off; crosses at
    the top are diverged runs.
    """
    if not any(panel.runs for panel in panels):
        raise OptionError("there is no run to draw. Wait until a trial has finished.")
    members = list(dict.fromkeys(curve.member for panel in panels for curve in panel.curves))
    rows, columns = grid_shape(len(panels), 3)
    strip = max(0.16 + 0.11 * len(members), 0.4)
    width = 2.3 * columns + 0.5 if columns > 1 else 3.4
    with blank_figure(
        width, rows * (2.6 + strip) + 0.45 + 0.2 * math.ceil(len(members) / 5), formulas=False
    ) as figure:
        grid = figure.add_gridspec(2 * rows, columns, height_ratios=[2, strip] * rows, hspace=0.01)
        x_limits, y_limits = rate_limits(panels), loss_limits(panels)
        colours = ordered_colours(members).items()
        looks: Looks = {
            member: {"color": colour, "marker": "os^DvP"[row % 6]}
            for row, (member, colour) in enumerate(colours)
        }
        for index, panel in enumerate(panels):
            row, column = divmod(index, columns)
            above, below = (figure.add_subplot(grid[2 * row + part, column]) for part in (0, 1))
            _draw_panel(above, below, panel, looks, (x_limits, y_limits))
            _write_heading(above, panel, axis)
            above.tick_params(labelleft=column == 0)
            if column == 0:
                above.set_ylabel("loss (nats)", fontsize=9)
                below.set_ylabel("optima", fontsize=8)
            if index + columns >= len(panels):
                below.set_xlabel("base learning rate", fontsize=9)
        _add_legend(figure, panels, looks, axis, confidence)
    return figure


def rate_limits(panels: Sequence[CurvePanel]) -> Limits:
    rates = [rate for panel in panels for curve in panel.curves for rate, _ in curve.runs]
    rates += [rate for panel in panels for curve in panel.curves for rate in curve.diverged]
    return with_margin(min(rates), max(rates))


def loss_limits(panels: Sequence[CurvePanel]) -> Limits:
    """From the lowest loss to where three quarters of the steepest curve are visible."""
    curves = [curve for panel in panels for curve in panel.curves]
    ranked = [sorted(loss for _, loss in curve.runs) for curve in curves if curve.runs]
    if not ranked:
        return 0.0, 1.0
    low, high = min(losses[0] for losses in ranked), max(losses[-1] for losses in ranked)
    usual = max(losses[(3 * (len(losses) - 1)) // 4] for losses in ranked)
    top = min(high, low + 1.8 * (usual - low)) if usual > low else high
    margin = max(0.05 * (top - low), 1e-3 * abs(low), 1e-6)
    # The minimum of a fit may lie a little below all runs.
    founds = [curve.found.loss for curve in curves if curve.found is not None]
    return max(min(low, *founds, low), low - 2 * margin) - margin, top + margin


def _draw_panel(
    above: "Axes",
    below: "Axes",
    panel: CurvePanel,
    looks: Looks,
    limits: tuple[Limits, Limits],
) -> None:
    above.set(xlim=limits[0], ylim=limits[1])
    below.set(xlim=limits[0], ylim=(len(looks) - 0.4, -0.6), yticks=[])
    ticks = octave_ticks(limits[0])
    above.set_xticks(ticks, labels=[])
    below.set_xticks(ticks, labels=[power_of_two(tick) for tick in ticks])
    for axes in (above, below):
        axes.tick_params(length=0, labelsize=8)
        _draw_mean(axes, panel.transfer)
    for curve in panel.curves:
        row, look = list(looks).index(curve.member), looks[curve.member]
        _draw_curve(above, curve, panel.joined, look)
        _draw_diverged(above, curve, row * min(0.04, 0.25 / len(looks)), look["color"])
        _draw_found(below, curve.found, row, look)
    below.spines["left"].set_visible(False)
    if not any(curve.runs for curve in panel.curves):
        above.set_yticks([])
        note: Look = {"xycoords": "axes fraction", "ha": "center", "fontsize": 8, "color": QUIET}
        above.annotate("all runs diverged", (0.5, 0.5), **note)


def _draw_mean(axes: "Axes", transfer: RuleTransfer | None) -> None:
    if transfer is None or transfer.mean is None:
        return
    mean, sd = transfer.mean.value, transfer.sd.value if transfer.sd else 0.0
    axes.axvspan(mean - sd, mean + sd, color=_BAND, linewidth=0, zorder=0)
    axes.axvline(mean, color=INK, linewidth=1, linestyle=_DASHED, zorder=1)


def _draw_curve(axes: "Axes", curve: RateCurve, joined: bool, look: Look) -> None:
    if curve.runs:
        faint: Look = {"linestyle": "none", "markeredgewidth": 0, "zorder": 2}
        faint |= {"alpha": 0.3, "markersize": 2.2} if joined else {"alpha": 0.75, "markersize": 2.8}
        axes.plot(*zip(*curve.runs, strict=True), **look | faint)
    if joined and curve.mean:
        axes.plot(*zip(*curve.mean, strict=True), color=look["color"], linewidth=1.4, zorder=3)
    if curve.found is not None and math.isfinite(curve.found.loss):
        mark = _mark(curve.found.sure, look)
        axes.plot([curve.found.rate.value], [curve.found.loss], zorder=5, **mark)


def _draw_diverged(axes: "Axes", curve: RateCurve, drop: float, colour: str) -> None:
    """Crosses at the top, each member a little lower than the one before."""
    look: Look = {"marker": "x", "markersize": 4.5, "markeredgewidth": 1.2, "linestyle": "none"}
    heights, axis = [0.985 - drop] * len(curve.diverged), axes.get_xaxis_transform()
    if heights:
        look |= {"transform": axis, "color": colour, "clip_on": False, "zorder": 4}
        axes.plot(curve.diverged, heights, **look)


def _mark(sure: bool, look: Look) -> Look:
    size = 7 if look["marker"] in "^vP" else 6
    face, edge, width = (look["color"], "white", 0.8) if sure else ("white", look["color"], 1.2)
    return look | marker_look(look["marker"], size, face, edge, width)


def _draw_found(axes: "Axes", found: Found | None, row: int, look: Look) -> None:
    """One row of the strip: the optimum and its interval."""
    if found is None:
        return
    left, right = axes.get_xlim()
    draw_interval(axes, found.rate.low, found.rate.high, row, look["color"])
    if left <= found.rate.value <= right:
        axes.plot([found.rate.value], [row], zorder=5, **_mark(found.sure, look))


def _write_heading(axes: "Axes", panel: CurvePanel, axis: str | None) -> None:
    """The rule, the numbers that the strip shows, and their evidence."""
    notes: list[str] = []
    transfer, diverged = panel.transfer, sum(len(curve.diverged) for curve in panel.curves)
    if transfer is not None and transfer.mean is not None:
        sd = "" if transfer.sd is None else f", sd {transfer.sd.value:.2f}"
        notes.append(f"mean {_bounded(transfer.mean)}{sd} (log₂)")
    if transfer is not None and transfer.drift is not None:
        of = "" if axis is None else f" of {_SIZES.get(axis, short_name(axis, 12))}"
        notes.append(f"drift {_bounded(transfer.drift)} per doubling{of}")
    lost = f", {diverged} diverged" if diverged else ""
    notes.append(f"{many(panel.runs, 'run')}, {many(panel.seeds, 'seed')}{lost}")
    write_heading(axes, short_name(panel.rule, 20), "\n".join(notes), note_size=6.8)


def _bounded(one: Estimate) -> str:
    return with_interval(one) if one.bounded else signed(one.value)


def _add_legend(
    figure: "Figure",
    panels: Sequence[CurvePanel],
    looks: Looks,
    axis: str | None,
    confidence: float,
) -> None:
    """The members in their own rows, then the marks that the figure shows."""
    from matplotlib.lines import Line2D

    room = int((figure.get_figwidth() - 0.7) / _LETTER_INCHES)
    members: list[Artist] = []
    for member, look in looks.items():
        name = textwrap.fill(member_text(member, axis), room)
        size: Look = {"linewidth": 1.4, "markersize": 5, "markeredgewidth": 0}
        members.append(Line2D([], [], label=name, **look, **size))
    marks = _mark_keys(panels, confidence)
    labels = [str(key.get_label()) for key in (*members, *marks)]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, int(figure.get_figwidth() / (0.5 + _LETTER_INCHES * longest)))
    columns = min(columns, max(len(members), len(marks)))
    rows: list[Artist] = []
    for group in (members, marks):
        gaps = -len(group) % columns
        rows += [*group, *(Line2D([], [], linestyle="none", label=" ") for _ in range(gaps))]
    # matplotlib fills a legend column by column.
    keys = [key for column in range(columns) for key in rows[column::columns]]
    figure.legend(
        handles=keys, loc="outside lower center", ncols=columns, fontsize=8, columnspacing=1.6
    )


def _mark_keys(panels: Sequence[CurvePanel], confidence: float) -> "list[Artist]":
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    curves = [curve for panel in panels for curve in panel.curves]
    founds = [curve.found for curve in curves if curve.found is not None]
    looks = {sure: _mark(sure, {"color": QUIET, "marker": "o"}) for sure in (True, False)}
    keys = optimum_keys(
        {found.sure for found in founds},
        {sure: look | {"linestyle": "-"} for sure, look in looks.items()},
        f"{confidence:.0%} interval",
    )
    if any(panel.transfer is not None and panel.transfer.mean is not None for panel in panels):
        bounded = "" if all(found.sure for found in founds) else "bounded "
        words = f"mean of {bounded}optima"
        keys.append(Line2D([], [], color=INK, linewidth=1, linestyle=_DASHED, label=words))
        keys.append(Patch(color=_BAND, linewidth=0, label="±1 sd over models"))
    if any(curve.diverged for curve in curves):
        cross: Look = {"color": QUIET, "linestyle": "none", "marker": "x", "markersize": 4.5}
        keys.append(Line2D([], [], label="diverged", **cross))
    return keys
