"""The data of the paper's figure: a panel a rule, a line a model, loss against log2 of the base rate."""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from mupscale.analysis.families import CellAnalysis, StudyAnalysis
from mupscale.analysis.measurements import Measurement
from mupscale.reports.page.words import flags_text

MOST_RUNS = 2500
"""Beyond this many dots a browser is slow to draw, and the means say as much."""

_IN_FRAME = 0.9
"""The frame holds this share of the losses: runs far above would flatten all others."""


def curve_figure(analysis: StudyAnalysis, runs: Sequence[Measurement]) -> dict[str, Any] | None:
    """All panels of the figure as plain values; None if no run finished."""
    losses = [run.loss for run in runs if run.loss is not None]
    if not losses:
        return None
    by_cell: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for run in runs:
        by_cell[run.rule, run.member.label].append(run)
    rules = list(dict.fromkeys(cell.rule for cell in analysis.cells))
    with_runs = len(runs) <= MOST_RUNS
    bottom, top = _y_range(losses)
    return {
        "members": list(dict.fromkeys(cell.member.label for cell in analysis.cells)),
        "panels": [_panel(rule, analysis, by_cell, with_runs) for rule in rules],
        "x_range": _x_range(runs),
        "y_range": [bottom, top],
        "lines": len(analysis.parameters) == 1,
        "with_runs": with_runs,
        "above": int(np.sum(np.array(losses) > top)),
    }


def _panel(
    rule: str, analysis: StudyAnalysis, by_cell: dict[tuple[str, str], list[Measurement]], with_runs: bool
) -> dict[str, Any]:
    transfer = next((one for one in analysis.transfers if one.rule == rule), None)
    several = transfer is not None and len(transfer.members) > 1
    return {
        "rule": rule,
        "lines": [
            _line(cell, by_cell[rule, cell.member.label], with_runs) for cell in analysis.cells if cell.rule == rule
        ],
        "mean": transfer.mean.value if transfer and transfer.mean and several else None,
        "sd": transfer.sd if transfer and several else None,
    }


def _line(cell: CellAnalysis, runs: Sequence[Measurement], with_runs: bool) -> dict[str, Any]:
    at: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        if run.loss is not None:
            at[run.log2("lr")].append(run.loss)
    x = sorted(at)
    ended = [run for run in runs if run.loss is not None] if with_runs else []
    return {
        "member": cell.member.label,
        "x": [round(one, 5) for one in x],
        "mean": [round(fmean(at[one]), 6) for one in x],
        "count": [len(at[one]) for one in x],
        "runs": {
            "x": [round(run.log2("lr"), 5) for run in ended],
            "y": [round(run.loss or 0.0, 6) for run in ended],
            "seed": [run.seed for run in ended],
        },
        "diverged": sorted({round(run.log2("lr"), 5) for run in runs if run.loss is None}),
        "optimum": _optimum(cell),
    }


def _optimum(cell: CellAnalysis) -> dict[str, Any] | None:
    rate = cell.found.get("lr")
    if rate is None or cell.loss is None or not math.isfinite(cell.loss):
        return None
    return {
        "x": rate.value,
        "low": rate.low if math.isfinite(rate.low) else None,
        "high": rate.high if math.isfinite(rate.high) else None,
        "loss": cell.loss,
        "flags": flags_text(cell.flags),
    }


def _x_range(runs: Sequence[Measurement]) -> list[float]:
    x = [run.log2("lr") for run in runs]
    air = 0.04 * max(max(x) - min(x), 1.0)
    return [min(x) - air, max(x) + air]


def _y_range(losses: Sequence[float]) -> tuple[float, float]:
    low, high = float(min(losses)), float(np.quantile(losses, _IN_FRAME))
    air = 0.08 * max(high - low, 1e-3)
    return low - air, high + air
