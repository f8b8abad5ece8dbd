"""Loss against rate at several widths: what a rate that was tuned on the smallest one gives up on
the largest.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mupscale.errors import OptionError
from mupscale.reports.canvas import blank_figure
from mupscale.reports.octaves import octave_ticks, power_of_two, with_margin
from mupscale.reports.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class WidthCurve:
    """Mean losses over the seeds as (log2 rate, loss), and the optimum, if it is known."""

    width: int
    points: tuple[tuple[float, float], ...]
    optimum: tuple[float, float] | None


@dataclass(frozen=True)
class WidthPanel:
    """One rule. `log2_rate` is the best rate of the smallest width, `at_rate` the loss of the
    largest one there, `regret` what it gives up, in words, and `gives_up` whether that is above 0,
    or too small to matter (None: not known).
    """

    title: str
    curves: tuple[WidthCurve, ...]
    log2_rate: float | None
    target: int
    at_rate: float | None
    regret: str
    gives_up: bool | None

    @property
    def target_curve(self) -> WidthCurve | None:
        return next((curve for curve in self.curves if curve.width == self.target), None)


@dataclass(frozen=True)
class Theme:
    """The colours of a light or a dark page."""

    paper: str
    ink: str
    quiet: str
    grid: str
    loss: str
    "Of what is given up."
    calm: str
    "Of what is not."
    shades: tuple[float, float]
    "Of the smallest and the largest width, in viridis."


LIGHT = Theme("#FFFFFF", "#222222", "#5A5A5A", "#E5E5E5", "#C94F00", "#00805C", (0.85, 0.05))
DARK = Theme("#0D1117", "#E6EDF3", "#9DA7B3", "#262C36", "#FF9D5C", "#3DDC97", (0.35, 0.97))

_HEADROOM = 0.62
"""Nats above the lowest loss up to which curves are drawn: more would flatten them around their
optima."""

_NOTE_CHARACTERS = 52
"""What fits above a panel."""


def draw_widths(
    panels: Sequence[WidthPanel],
    *,
    title: str,
    theme: Theme = LIGHT,
    unit: str = "nats per byte",
    x_label: str = "learning rate (of the base)",
    best: str = "best rate",
    share_losses: bool = True,
) -> "Figure":
    """One panel per rule, side by side on the same axes; `share_losses=False` gives each panel its
    own axis of losses.

    The dashed line is the best rate of the smallest width. On it, the arrow goes from the lowest
    loss of the largest width up to the loss that this rate gives there.
    """
    if not any(panel.curves for panel in panels):
        raise OptionError("there is no run to draw. Wait until a trial has finished.")
    widths = sorted({curve.width for panel in panels for curve in panel.curves})
    colours = _shades(widths, theme)
    rates = [rate for panel in panels for curve in panel.curves for rate, _ in curve.points]
    with blank_figure(4.3 * len(panels) + 0.8, 4.4) as figure:
        figure.set_facecolor(theme.paper)
        figure.suptitle(title, color=theme.ink, fontsize=12.5, fontweight="bold", x=0.02, ha="left")
        axes = figure.subplots(1, len(panels), sharex=True, sharey=share_losses, squeeze=False)[0]
        axes[0].set_xlim(with_margin(min(rates), max(rates)))
        for one, panel in zip(axes, panels, strict=True):
            one.set_ylim(_loss_limits(panels if share_losses else [panel]))
            one.set_xlabel(x_label, color=theme.ink)
            _draw_panel(one, panel, colours, theme, best)
        axes[0].set_ylabel(f"loss, {unit}", color=theme.ink)
    return figure


def _loss_limits(panels: Sequence[WidthPanel]) -> tuple[float, float]:
    losses = [loss for panel in panels for curve in panel.curves for _, loss in curve.points]
    if not losses:
        return 0.0, 1.0
    given = [panel.at_rate for panel in panels if panel.at_rate is not None]
    bottom = min(losses)
    top = max(min(max(losses), bottom + _HEADROOM), *given, bottom)
    room = (top - bottom) or 1.0
    return bottom - 0.13 * room, top + 0.04 * room


def _shades(widths: Sequence[int], theme: Theme) -> dict[int, str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    first, last = theme.shades
    step = (last - first) / max(1, len(widths) - 1)
    return {
        width: to_hex(colormaps["viridis"](first + step * place))
        for place, width in enumerate(widths)
    }


def _draw_panel(
    axes: "Axes", panel: WidthPanel, colours: dict[int, str], theme: Theme, best: str
) -> None:
    _style(axes, theme)
    ticks = octave_ticks(axes.get_xlim(), 8)
    axes.set_xticks(ticks, labels=[power_of_two(tick) for tick in ticks])
    axes.set_title(panel.title, loc="left", color=theme.ink, fontsize=12, fontweight="bold", pad=22)
    colour = {True: theme.loss, False: theme.calm, None: theme.quiet}[panel.gives_up]
    note: Look = {"color": colour, "fontweight": "bold"}
    words = textwrap.shorten(panel.regret, _NOTE_CHARACTERS, placeholder=" …")
    axes.annotate(words, (0, 1), (0, 6), "axes fraction", "offset points", **note)
    if panel.log2_rate is not None:
        axes.axvline(panel.log2_rate, color=theme.quiet, lw=1.2, ls=(0, (4, 2)), zorder=1)
        below = axes.get_xaxis_transform()
        words = f" {best} at {min(colours)}"
        axes.text(panel.log2_rate, 0.015, words, transform=below, color=theme.quiet, fontsize=8.5)
    for curve in panel.curves:
        _draw_curve(axes, curve, colours[curve.width], theme)
    _draw_regret(axes, panel, colours, theme)


def _style(axes: "Axes", theme: Theme) -> None:
    axes.set_facecolor(theme.paper)
    axes.grid(color=theme.grid, linewidth=0.6)
    axes.tick_params(length=0, colors=theme.quiet, labelsize=9)
    for spine in axes.spines.values():
        spine.set_color(theme.quiet)


def _draw_curve(axes: "Axes", curve: WidthCurve, colour: str, theme: Theme) -> None:
    axes.plot(*zip(*curve.points, strict=True), color=colour, lw=2, zorder=3)
    label: Look = {"color": colour, "fontsize": 9.5, "fontweight": "bold", "clip_on": True}
    label |= {"textcoords": "offset points", "va": "top", "zorder": 7}
    # Below the optimum, where no other curve is; without one, at the end of the curve.
    at, ha = (curve.optimum, "right") if curve.optimum else (curve.points[-1], "left")
    axes.annotate(str(curve.width), at, (-5, -4), ha=ha, **label)
    if curve.optimum is not None:
        mark: Look = {"marker": "o", "ms": 8.5, "markeredgecolor": theme.paper, "mew": 1.4}
        axes.plot([curve.optimum[0]], [curve.optimum[1]], color=colour, zorder=6, **mark)


def _draw_regret(axes: "Axes", panel: WidthPanel, colours: dict[int, str], theme: Theme) -> None:
    curve = panel.target_curve
    if curve is None or curve.optimum is None or panel.at_rate is None or panel.log2_rate is None:
        return
    place, lowest = panel.log2_rate, curve.optimum[1]
    axes.plot(
        [place], [panel.at_rate], marker="D", ms=7, color=colours[panel.target],
        markeredgecolor=theme.paper, zorder=6,
    )  # fmt: skip
    if not panel.gives_up:
        return
    axes.plot([curve.optimum[0], place], [lowest, lowest], color=theme.loss, lw=1, ls=":", zorder=4)
    arrow = {"arrowstyle": "-|>", "color": theme.loss, "lw": 2.2, "shrinkA": 0, "shrinkB": 3}
    axes.annotate("", (place, panel.at_rate), (place, lowest), arrowprops=arrow, zorder=5)
