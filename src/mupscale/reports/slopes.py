"""A forest plot of slopes with their intervals, predictions, and the zone that counts as flat."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Any

from mupscale.errors import NonFiniteError, OptionError
from mupscale.reports.canvas import blank_figure, draw_interval, write_title
from mupscale.reports.style import INK, Mark, mark_of, marker_look

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation, Text

_ROW_INCHES = 0.25
_GAP_POINTS = 12
_ZONE_COLOUR = "#DCE6EF"
_DIAMOND = marker_look("D", 8, "none", INK, 1.0)


@dataclass(frozen=True)
class SlopeBar:
    """One measured slope with its interval, its prediction and its verdict."""

    label: str
    slope: float
    low: float
    high: float
    predicted: float | None
    verdict: str | None
    group: str = ""


def draw_slopes(
    bars: Sequence[SlopeBar], *, tolerance: float, x_label: str, title: str
) -> "Figure":
    """One row per bar in the order given, under a heading where the group changes.

    An interval much longer than the others ends in an arrow; its numbers stand next to it.
    """
    _check(bars, tolerance)
    rows, headings = _rows(bars)
    n_rows = rows[-1] + 1
    longest = max(len(text) for bar in bars for text in (bar.label, bar.group))
    with blank_figure(6.8 + 0.07 * longest, 1.6 + _ROW_INCHES * n_rows) as figure:
        axes = figure.subplots()
        axes.set(xlim=_x_limits(bars, tolerance), ylim=(n_rows - 0.4, -0.6), xlabel=x_label)
        axes.locator_params(axis="x", nbins=7, steps=[1, 2, 5, 10])
        axes.axvspan(-tolerance, tolerance, color=_ZONE_COLOUR, linewidth=0, zorder=0)
        axes.axvline(0, color=INK, linewidth=1, zorder=1)
        for bar, row in zip(bars, rows, strict=True):
            _draw_bar(axes, bar, row)
        _write_labels(axes, bars, rows, headings)
        _write_numbers(axes, bars, rows)
        write_title(figure, title)
        _add_legend(figure, bars, tolerance)
    return figure


def interval_text(bar: SlopeBar, digits: int = 2) -> str:
    """The slope and its interval, as written next to the bar.

    >>> interval_text(SlopeBar("key", -0.323, -0.34, -0.30, predicted=None, verdict="fail"))
    '−0.323 [−0.34, −0.30]'
    """
    # z: what rounds to zero has no minus. A plus is as wide as a minus, so columns line up.
    text = f"{bar.slope:+z.3f} [{bar.low:+z.{digits}f}, {bar.high:+z.{digits}f}]"
    return text.replace("-", "−")


def _check(bars: Sequence[SlopeBar], tolerance: float) -> None:
    if not bars:
        raise OptionError("there is no slope to draw. Give one bar per measured slope.")
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise OptionError(
            f"tolerance={tolerance} must be above 0. Give the largest slope that counts as flat."
        )
    for bar in bars:
        mark_of(bar.verdict)
        name = f"bar {bar.label!r}" + (f" of group {bar.group!r}" if bar.group else "")
        numbers = {"slope": bar.slope, "low": bar.low, "high": bar.high, "predicted": bar.predicted}
        for key, value in numbers.items():
            if value is not None and not math.isfinite(value):
                raise NonFiniteError(f"{name}: {key} is {value}. Leave the bar out.")
        if bar.low > bar.high:
            raise OptionError(f"{name}: low={bar.low:g} is above high={bar.high:g}. Swap them.")


def _rows(bars: Sequence[SlopeBar]) -> tuple[list[float], dict[float, str]]:
    """The row of each bar, and the rows of the headings, a little apart from the group before.

    >>> groups = {"a": "x", "b": "x", "c": "y"}
    >>> _rows([SlopeBar(name, 0, 0, 0, None, None, group) for name, group in groups.items()])
    ([1.0, 2.0, 4.25], {0.0: 'x', 3.25: 'y'})
    """
    rows: list[float] = []
    headings: dict[float, str] = {}
    row, group = 0.0, ""
    for bar in bars:
        if bar.group != group:
            group = bar.group
            row += 0.25 if rows else 0
            if group:
                headings[row] = group
                row += 1
        rows.append(row)
        row += 1
    return rows, headings


def _x_limits(bars: Sequence[SlopeBar], tolerance: float) -> tuple[float, float]:
    """All points, predictions and the zone; a very long interval does not stretch the axis."""
    points = [bar.slope for bar in bars] + [
        bar.predicted for bar in bars if bar.predicted is not None
    ]
    left, right = min(*points, -1.5 * tolerance), max(*points, 1.5 * tolerance)
    reaches = [max(bar.slope - bar.low, bar.high - bar.slope) for bar in bars]
    room = max(3 * median_low(reaches), 0.25 * (right - left))
    left = min(left, max(left - room, min(bar.low for bar in bars)))
    right = max(right, min(right + room, max(bar.high for bar in bars)))
    margin = 0.04 * (right - left)
    return left - margin, right + margin


def _draw_bar(axes: "Axes", bar: SlopeBar, row: float) -> None:
    mark = mark_of(bar.verdict)
    draw_interval(axes, bar.low, bar.high, row, mark.colour)
    axes.plot([bar.slope], [row], zorder=5, **_point(mark))
    if bar.predicted is not None:
        axes.plot([bar.predicted], [row], zorder=6, **_DIAMOND)


def _point(mark: Mark) -> dict[str, Any]:
    # A cross has less ink than a disc of its size, and the white edge takes some of it.
    size = 9 if mark.marker == "X" else 7
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.7}
    return {"color": mark.colour, "marker": mark.marker, "markersize": size, **edge}


def _write_labels(
    axes: "Axes", bars: Sequence[SlopeBar], rows: Sequence[float], headings: Mapping[float, str]
) -> None:
    """Names in a left-aligned column, bold headings above their groups."""
    axes.set_yticks(rows, labels=[bar.label for bar in bars])
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
    bold = [
        _write_beside(axes, 0, row, 0, text, fontweight="bold", fontsize=10)
        for row, text in headings.items()
    ]
    names = axes.get_yticklabels()
    indent = 8 if bold else 0
    room = _GAP_POINTS + max(_widest(axes, names) + indent, _widest(axes, bold))
    axes.tick_params(axis="y", pad=room - indent)
    for name in names:
        name.set_horizontalalignment("left")
    for heading in bold:
        heading.set_position((-room, 0))


def _write_numbers(axes: "Axes", bars: Sequence[SlopeBar], rows: Sequence[float]) -> None:
    """To the right of each bar: its verdict, then its numbers."""
    # With two digits, an interval this short would look like a point.
    digits = 3 if min(bar.high - bar.low for bar in bars) < 0.02 else 2
    start = float(_GAP_POINTS)
    if any(bar.verdict is not None for bar in bars):
        marks = [mark_of(bar.verdict) for bar in bars]
        words = [
            _write_beside(axes, 1, row, start, m.text, color=m.colour)
            for m, row in zip(marks, rows, strict=True)
        ]
        start += _widest(axes, words) + _GAP_POINTS
    for bar, row in zip(bars, rows, strict=True):
        _write_beside(axes, 1, row, start, interval_text(bar, digits))


def _write_beside(
    axes: "Axes", side: int, row: float, points: float, text: str, **looks: Any
) -> "Annotation":
    """Text in a row, this many points right of the axes' left (0) or right (1) side."""
    note = axes.annotate(
        text, (side, row), (points, 0), axes.get_yaxis_transform(), "offset points"
    )
    note.set(**{"fontsize": 9, "verticalalignment": "center_baseline"} | looks)
    return note


def _widest(axes: "Axes", texts: "Sequence[Text]") -> float:
    """The width of the longest, in points."""
    pixels = max((text.get_window_extent().width for text in texts), default=0.0)
    return pixels * 72 / axes.figure.dpi


def _add_legend(figure: "Figure", bars: Sequence[SlopeBar], tolerance: float) -> None:
    """Only what the figure shows: verdicts that occur, predictions if any, and the zone."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys: list[Artist] = []
    for verdict in ("pass", "fail", "inconclusive", None):
        if any(bar.verdict == verdict for bar in bars):
            mark = mark_of(verdict)
            label = mark.text if verdict else "not judged"
            keys.append(Line2D([], [], linewidth=1.8, label=label, **_point(mark)))
    if any(bar.predicted is not None for bar in bars):
        keys.append(Line2D([], [], label="predicted by theory", **_DIAMOND))
    keys.append(Patch(color=_ZONE_COLOUR, linewidth=0, label=f"tolerance ±{tolerance:g}"))
    figure.legend(handles=keys, loc="outside lower center", ncols=3, fontsize=9)
