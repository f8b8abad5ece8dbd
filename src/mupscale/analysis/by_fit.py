"""Sums of cells by each of the three fits of `fits`, paired by seed.

`families` has one fit, which is quick and borrows from all cells. A claim needs more than one: here
each seed's own curve is fitted by each of three shapes, and the weighted sum of cells is one number
for each seed. Its interval has one degree of freedom fewer than there are seeds, and holds however
far seeds lie apart in each cell.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mupscale.analysis.contrasts import CellValue
from mupscale.analysis.estimates import Estimate
from mupscale.analysis.fits import FITS, lowest_points, mean_over_seeds
from mupscale.analysis.measurements import Measurement, Member

CellKey = tuple[str, Member]
"""A rule and a model."""


@dataclass(frozen=True)
class SeedOptima:
    """log2 of the best rate of each seed in each cell, by fit.

    A fit lacks the cells in which it does not locate every seed.
    """

    by_fit: Mapping[str, Mapping[CellKey, Mapping[int, float]]]

    def contrast(
        self, weights: Mapping[CellKey, float], confidence: float = 0.95
    ) -> dict[str, Estimate | None]:
        """Σ w·optimum by fit; None where a fit does not locate each of these cells."""
        return {
            fit: _summed({key: cells[key] for key in weights}, weights, confidence)
            if set(weights) <= set(cells)
            else None
            for fit, cells in self.by_fit.items()
        }

    def located(self, fit: str, key: CellKey) -> CellValue | None:
        """The mean over seeds, with the value of each seed."""
        values = self.by_fit[fit].get(key)
        if values is None or len(values) < 2:
            return None
        found = list(values.values())
        error = float(np.std(found, ddof=1)) / math.sqrt(len(found))
        return CellValue(float(np.mean(found)), error, len(found) - 1, values)


def seed_optima(runs: Sequence[Measurement]) -> SeedOptima:
    """Of runs in which only the learning rate is searched."""
    cells: dict[CellKey, list[Measurement]] = {}
    for run in runs:
        cells.setdefault((run.rule, run.member), []).append(run)
    found: dict[str, dict[CellKey, dict[int, float]]] = {fit: {} for fit in FITS}
    known: dict[frozenset[tuple[int, float, float | None]], CellKey] = {}
    for key, own in cells.items():
        # The base is the same training under several rules: it is fitted once.
        same = known.setdefault(frozenset((run.seed, run.log2("lr"), run.loss) for run in own), key)
        rates, seeds, losses = _table(own)
        for fit, located in found.items():
            if same != key:
                if same in located:
                    located[key] = located[same]
                continue
            points = lowest_points(fit, rates, losses)
            if all(point.inside for point in points):
                pairs = zip(seeds, points, strict=True)
                located[key] = {seed: point.log2_rate for seed, point in pairs}
    return SeedOptima(found)


def _table(runs: Sequence[Measurement]) -> tuple[list[float], list[int], list[list[float]]]:
    rates = sorted({run.log2("lr") for run in runs})
    seeds = sorted({run.seed for run in runs})
    losses = {(run.seed, run.log2("lr")): run.loss for run in runs}
    table = [[losses.get((seed, rate)) for rate in rates] for seed in seeds]
    return rates, seeds, [[math.nan if one is None else one for one in row] for row in table]


def _summed(
    cells: Mapping[CellKey, Mapping[int, float]],
    weights: Mapping[CellKey, float],
    confidence: float,
) -> Estimate | None:
    """Of the seeds that all cells have; None without any."""
    common = sorted(set.intersection(*(set(values) for values in cells.values())))
    sums = [sum(weights[key] * values[seed] for key, values in cells.items()) for seed in common]
    return mean_over_seeds(sums, confidence) if sums else None
