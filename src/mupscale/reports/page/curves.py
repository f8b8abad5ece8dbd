"""The figure of loss against rate as plain values: the data of `reports.curves` and tooltips."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mupscale.analysis.families import StudyAnalysis
from mupscale.analysis.flags import flags_text
from mupscale.analysis.measurements import Measurement
from mupscale.records import finite
from mupscale.reports.curves import (
    CurvePanel,
    Found,
    RateCurve,
    curve_panels,
    loss_limits,
    rate_limits,
)

MOST_RUNS = 2500
"""With more points, a browser is slow to draw; the means show as much."""


def curve_figure(analysis: StudyAnalysis, runs: Sequence[Measurement]) -> dict[str, Any] | None:
    """All panels of the figure; None if no run finished."""
    losses = [run.loss for run in runs if run.loss is not None]
    if not losses:
        return None
    panels = curve_panels(analysis, runs)
    with_runs = len(runs) <= MOST_RUNS
    bottom, top = loss_limits(panels)
    return {
        "members": list(dict.fromkeys(cell.member.label for cell in analysis.cells)),
        "panels": [_panel(panel, with_runs) for panel in panels],
        "x_range": rate_limits(panels),
        "y_range": [float(bottom), float(top)],
        "lines": all(panel.joined for panel in panels),
        "with_runs": with_runs,
        "above": int(sum(loss > top for loss in losses)),
    }


def _panel(panel: CurvePanel, with_runs: bool) -> dict[str, Any]:
    transfer = panel.transfer if panel.transfer and len(panel.transfer.members) > 1 else None
    return {
        "rule": panel.rule,
        "lines": [_line(curve, with_runs) for curve in panel.curves],
        "mean": transfer.mean.value if transfer and transfer.mean else None,
        "sd": transfer.sd.value if transfer and transfer.sd else None,
    }


def _line(curve: RateCurve, with_runs: bool) -> dict[str, Any]:
    seeds = Counter(rate for rate, _ in curve.runs)
    shown = curve.runs if with_runs else ()
    return {
        "member": curve.member.label,
        "x": [round(rate, 5) for rate, _ in curve.mean],
        "mean": [round(loss, 6) for _, loss in curve.mean],
        "count": [seeds[rate] for rate, _ in curve.mean],
        "runs": {
            "x": [round(rate, 5) for rate, _ in shown],
            "y": [round(loss, 6) for _, loss in shown],
            "seed": curve.seeds if with_runs else (),
        },
        "diverged": sorted({round(rate, 5) for rate in curve.diverged}),
        "optimum": _optimum(curve.found),
    }


def _optimum(found: Found | None) -> dict[str, Any] | None:
    if found is None or not math.isfinite(found.loss):
        return None
    return {
        "x": found.rate.value,
        "low": finite(found.rate.low),
        "high": finite(found.rate.high),
        "loss": found.loss,
        "flags": flags_text(found.flags),
    }
