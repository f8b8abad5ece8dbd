"""The Voronoi maps as plain values: the data of `reports.maps`, and polygons for the browser."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mupscale.analysis.families import StudyAnalysis
from mupscale.analysis.measurements import Measurement
from mupscale.analysis.voronoi import cells, within
from mupscale.reports.maps import Box, LossMap, MapGrid, map_box, map_grids

_COLOURED = 0.75
"""Quantile of the losses at which colours end: differences near the optimum matter most."""


def map_figures(analysis: StudyAnalysis, runs: Sequence[Measurement]) -> list[dict[str, Any]]:
    """None unless the rate and one other parameter were searched."""
    if not any(run.loss is not None for run in runs):
        return []
    return [_figure(grid, analysis) for grid in map_grids(analysis, runs)]


def _figure(grid: MapGrid, analysis: StudyAnalysis) -> dict[str, Any]:
    box = map_box([place for one in grid.maps.values() for place in one.points])
    excesses = [value for one in grid.maps.values() for value in one.excesses if value is not None]
    return {
        "second": grid.names[1],
        "derived": grid.names[1] not in analysis.parameters,
        "box": box,
        "members": [member.label for member in grid.members],
        "most": max(float(np.quantile(excesses, _COLOURED)), 1e-4),
        "panels": [_panel(one, box, grid.means.get(one.rule)) for one in grid.maps.values()],
    }


def _panel(one: LossMap, box: Box, mean: tuple[float, float] | None) -> dict[str, Any]:
    fit = one.fit
    return {
        "rule": one.rule,
        "member": one.member.label,
        "x": [round(x, 4) for x, _ in one.points],
        "y": [round(y, 4) for _, y in one.points],
        "loss": [None if loss is None else round(loss, 5) for loss in one.losses],
        "excess": [None if excess is None else round(excess, 5) for excess in one.excesses],
        "count": list(one.counts),
        "polygons": [_rounded(within(polygon, one.outline)) for polygon in cells(one.points, box)],
        "optimum": None if fit is None else [fit.found[name].value for name in fit.names],
        "sure": one.sure,
        "region": [] if fit is None else _rounded(np.reshape(fit.region, (-1, 2))),
        "mean": mean,
    }


def _rounded(places: NDArray[np.float64]) -> list[list[float]]:
    return [[round(float(x), 4), round(float(y), 4)] for x, y in places]
