"""The figures of a coordinate check: one panel per role, and a summary of slopes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mupscale.checks.charting import curves
from mupscale.checks.judging import Finding
from mupscale.checks.result import CheckResult
from mupscale.checks.statistics import STATISTICS
from mupscale.records import write_rows
from mupscale.reports.panels import Line, Panel, draw_panels
from mupscale.reports.saving import save_csv, save_figure
from mupscale.reports.slopes import SlopeBar, draw_slopes, interval_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Y_LABELS = {"dh": "‖Δh‖ (root mean square)", "h": "‖h‖ (root mean square)"}


def check_panels(result: CheckResult, statistic: str) -> list[Panel]:
    """The data of a figure: for each role, a statistic over steps with one line per value."""
    found = {one.role: one for one in result.findings if one.statistic == statistic}
    lines: dict[str, list[Line]] = {}
    for curve in curves(result, statistic):
        line = Line(
            f"{result.quantity} = {curve.x}", curve.steps, curve.mean, curve.low, curve.high
        )
        lines.setdefault(curve.role, []).append(line)
    return [
        Panel(
            role.replace("_", " "),
            lines[role],
            found[role].verdict,
            f"slope {interval_text(slope_bar(found[role]))}",
        )
        for role in lines
        if role in found
    ]


def slope_bar(one: Finding) -> SlopeBar:
    """One row of the summary."""
    return SlopeBar(
        label=one.role.replace("_", " "),
        slope=one.flatness.slope.value,
        low=one.flatness.low,
        high=one.flatness.high,
        predicted=one.predicted,
        verdict=one.verdict,
        group=one.label,
    )


def draw_check(result: CheckResult, statistic: str, title: str) -> "Figure":
    """The paper's layout: one panel per role, one line per value, mean and interval over steps."""
    return draw_panels(
        check_panels(result, statistic),
        x_label="step",
        y_label=_Y_LABELS.get(statistic, STATISTICS[statistic].label),
        title=title,
    )


def draw_verdicts(result: CheckResult, title: str) -> "Figure":
    """Slopes with intervals and verdicts, next to the predictions for the plan."""
    return draw_slopes(
        [slope_bar(one) for one in result.judged],
        tolerance=result.criteria.tolerance,
        x_label=f"slope of the log statistic in log {result.quantity}",
        title=title,
    )


def save_findings(result: CheckResult, folder: Path) -> list[Path]:
    """Save every slope as JSON lines and as CSV."""
    rows = result.to_dict()["findings"]
    write_rows(folder / "findings.jsonl", rows)
    flat = [{key: value for key, value in row.items() if key != "means"} for row in rows]
    return [folder / "findings.jsonl", save_csv(flat, folder / "findings.csv")]


def save_pictures(
    result: CheckResult, folder: Path, statistics: Sequence[str] = ("update", "dh")
) -> list[Path]:
    """Save the summary of slopes, and the panels of some statistics."""
    rule, seeds = result.about["rule"]["name"], f"{len(result.about['seeds'])} seeds"
    joint = f"{result.criteria.confidence:.0%} joint intervals"
    summary = f"{rule}: {result.verdict} ({seeds}; {joint})"
    paths = save_figure(draw_verdicts(result, summary), folder / "slopes")
    for name in statistics if result.quantity != "depth" else ():
        title = f"{STATISTICS[name].label} under {rule}, mean and interval over {seeds}"
        paths += save_figure(draw_check(result, name, title), folder / name)
    return paths
