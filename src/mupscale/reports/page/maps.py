"""The data of the Voronoi maps: a row a rule, a column a model; each run's colour fills what lies nearest to it.

A study over the decay has a second map over τ_epoch = 1/(lr × decay × steps), and the other way round: the same runs in
other coordinates.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from mupscale.analysis.families import CellAnalysis, StudyAnalysis
from mupscale.analysis.measurements import Measurement
from mupscale.analysis.voronoi import cells as voronoi_cells

_COLOURED = 0.75
"""The colours end at this share of the losses: differences near the optimum are what matters."""


@dataclass(frozen=True)
class _Plane:
    """log2 of the rate, and of a second parameter, of a run."""

    second: str
    searched: str
    height: Callable[[Measurement], float | None]

    def optimum(self, cell: CellAnalysis, steps: int | None) -> list[float] | None:
        found = cell.found
        if "few" in cell.flags or "saddle" in cell.flags or "lr" not in found or self.searched not in found:
            return None
        return self.moved(found["lr"].value, found[self.searched].value, steps)

    def region(self, cell: CellAnalysis, steps: int | None) -> list[list[float]]:
        """The outline within which both parameters of the optimum lie together, where it has an end."""
        outline = () if cell.surface is None else cell.surface.region
        moved = [self.moved(x, y, steps) for x, y in outline]
        return [[round(x, 4) for x in place] for place in moved if place is not None]

    def moved(self, x: float, y: float, steps: int | None) -> list[float] | None:
        """A place of the searched plane in this one."""
        if self.second == self.searched:
            return [x, y]
        return None if not steps else [x, -(x + y + math.log2(steps))]


def map_figures(analysis: StudyAnalysis, runs: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The figures that the study has: none unless the rate and one other parameter were searched."""
    others = [name for name in analysis.parameters if name != "lr"]
    if len(others) != 1 or len(analysis.parameters) != 2 or not any(run.loss is not None for run in runs):
        return []
    figures = [_figure(plane, analysis, runs) for plane in _planes(others[0])]
    return [figure for figure in figures if figure is not None]


def _planes(searched: str) -> list[_Plane]:
    own = _Plane(searched, searched, lambda run: run.log2(searched))
    twin = {"weight_decay": "tau_epoch", "tau_epoch": "weight_decay"}.get(searched)
    return [own] if twin is None else [own, _Plane(twin, searched, lambda run: _reciprocal(run, searched))]


def _reciprocal(run: Measurement, searched: str) -> float | None:
    """1 = τ × lr × decay × steps, so each of decay and τ gives the other."""
    return -(run.log2("lr") + run.log2(searched) + math.log2(run.steps)) if run.steps else None


def _figure(plane: _Plane, analysis: StudyAnalysis, runs: Sequence[Measurement]) -> dict[str, Any] | None:
    placed = [(run, height) for run in runs if (height := plane.height(run)) is not None]
    if not placed:
        return None
    box = _box([run.log2("lr") for run, _ in placed]), _box([height for _, height in placed])
    lowest: dict[str, float] = {}
    for run, _ in placed:
        if run.loss is not None:
            lowest[run.member.label] = min(run.loss, lowest.get(run.member.label, math.inf))
    excess = [run.loss - lowest[run.member.label] for run, _ in placed if run.loss is not None]
    panels = [_panel(plane, cell, placed, box, lowest.get(cell.member.label)) for cell in analysis.cells]
    _mark_means(panels)
    return {
        "second": plane.second,
        "derived": plane.second != plane.searched,
        "box": box,
        "members": list(dict.fromkeys(cell.member.label for cell in analysis.cells)),
        "most": max(float(np.quantile(excess, _COLOURED)), 1e-4),
        "panels": [panel for panel in panels if panel["x"]],
    }


def _panel(
    plane: _Plane,
    cell: CellAnalysis,
    placed: Sequence[tuple[Measurement, float]],
    box: tuple[list[float], list[float]],
    lowest: float | None,
) -> dict[str, Any]:
    own = [(run, height) for run, height in placed if (run.rule, run.member.label) == (cell.rule, cell.member.label)]
    at: dict[tuple[float, float], list[float | None]] = defaultdict(list)
    for run, height in own:
        at[run.log2("lr"), height].append(run.loss)
    losses = [_mean(found) for found in at.values()]
    steps = max((run.steps or 0 for run, _ in own), default=0)
    (left, right), (bottom, top) = box
    polygons = voronoi_cells(list(at), ((left, right), (bottom, top)))
    return {
        "rule": cell.rule,
        "member": cell.member.label,
        "x": [round(x, 4) for x, _ in at],
        "y": [round(y, 4) for _, y in at],
        "loss": [None if loss is None else round(loss, 5) for loss in losses],
        "excess": [None if loss is None or lowest is None else round(loss - lowest, 5) for loss in losses],
        "count": [len(found) for found in at.values()],
        "polygons": [[[round(float(x), 4), round(float(y), 4)] for x, y in polygon] for polygon in polygons],
        "optimum": plane.optimum(cell, steps),
        "region": plane.region(cell, steps),
        "mean": None,
    }


def _mean(losses: Sequence[float | None]) -> float | None:
    """None where one of the seeds diverged: such a point is no good."""
    ended = [loss for loss in losses if loss is not None]
    return fmean(ended) if len(ended) == len(losses) else None


def _mark_means(panels: Sequence[dict[str, Any]]) -> None:
    """The mean optimum of a rule, in each of its panels, where there are several to take the mean of."""
    for rule in {panel["rule"] for panel in panels}:
        row = [panel for panel in panels if panel["rule"] == rule]
        found = [panel["optimum"] for panel in row if panel["optimum"] is not None]
        for panel in row if len(found) > 1 else ():
            panel["mean"] = [fmean(one[0] for one in found), fmean(one[1] for one in found)]


def _box(values: Sequence[float]) -> list[float]:
    air = 0.04 * max(max(values) - min(values), 1.0)
    return [min(values) - air, max(values) + air]
