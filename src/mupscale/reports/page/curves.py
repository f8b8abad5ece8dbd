"""The figure of loss against rate as plain values: the data of `reports.curves` and tooltips."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mupscale.analysis.families import StudyAnalysis
from mupscale.analysis.flags import flags_text
from mupscale.analysis.measurements import Measurement
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
    shown = runs if len(runs) <= MOST_RUNS else []
    bottom, top = loss_limits(panels)
    return {
        "members": list(dict.fromkeys(cell.member.label for cell in analysis.cells)),
        "panels": [_panel(panel, analysis, runs, shown) for panel in panels],
        "x_range": rate_limits(panels),
        "y_range": [float(bottom), float(top)],
        "lines": all(panel.joined for panel in panels),
        "with_runs": bool(shown),
        "above": int(sum(loss > top for loss in losses)),
    }


def _panel(
    panel: CurvePanel,
    analysis: StudyAnalysis,
    runs: Sequence[Measurement],
    shown: Sequence[Measurement],
) -> dict[str, Any]:
    transfer = panel.transfer
    several = transfer is not None and len(transfer.members) > 1
    return {
        "rule": panel.rule,
        "lines": [
            _line(curve, *(_own(some, panel.rule, curve) for some in (runs, shown)))
            | {"optimum": _optimum(curve.found, _flags(analysis, panel.rule, curve))}
            for curve in panel.curves
        ],
        "mean": transfer.mean.value if transfer and transfer.mean and several else None,
        "sd": transfer.sd.value if transfer and transfer.sd and several else None,
    }


def _own(runs: Sequence[Measurement], rule: str, curve: RateCurve) -> list[Measurement]:
    return [
        run
        for run in runs
        if run.rule == rule and run.member == curve.member and run.loss is not None
    ]


def _flags(analysis: StudyAnalysis, rule: str, curve: RateCurve) -> tuple[str, ...]:
    cell = analysis.cell(rule, curve.member.label)
    return () if cell is None else cell.flags


def _line(
    curve: RateCurve, runs: Sequence[Measurement], shown: Sequence[Measurement]
) -> dict[str, Any]:
    seeds = Counter(run.log2("lr") for run in runs)
    return {
        "member": curve.member.label,
        "x": [round(rate, 5) for rate, _ in curve.mean],
        "mean": [round(loss, 6) for _, loss in curve.mean],
        "count": [seeds[rate] for rate, _ in curve.mean],
        "runs": {
            "x": [round(run.log2("lr"), 5) for run in shown],
            "y": [round(run.loss or 0.0, 6) for run in shown],
            "seed": [run.seed for run in shown],
        },
        "diverged": sorted({round(rate, 5) for rate in curve.diverged}),
    }


def _optimum(found: Found | None, flags: tuple[str, ...]) -> dict[str, Any] | None:
    if found is None or not math.isfinite(found.loss):
        return None
    rate = found.rate
    low, high = (end if math.isfinite(end) else None for end in (rate.low, rate.high))
    return {
        "x": rate.value,
        "low": low,
        "high": high,
        "loss": found.loss,
        "flags": flags_text(flags),
    }
