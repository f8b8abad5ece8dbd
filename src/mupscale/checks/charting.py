"""Data for the panels of a check: each role's statistic over the steps, one curve per value."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mupscale.analysis.slopes import t_quantile
from mupscale.checks.judging import NormTable
from mupscale.checks.result import CheckResult
from mupscale.checks.statistics import STATISTICS
from mupscale.errors import UnknownNameError


@dataclass(frozen=True)
class NormCurve:
    """Geometric means over layers and seeds at each step, with intervals over seeds."""

    role: str
    x: int
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def curves(result: CheckResult, statistic: str) -> list[NormCurve]:
    """One curve per role and value, with values in rising order."""
    if statistic not in STATISTICS:
        raise UnknownNameError("statistic", statistic, STATISTICS)
    chosen, table = STATISTICS[statistic], NormTable(result.runs, result.quantity)

    def curve(role: str, x: int) -> NormCurve:
        by_seed = [table.by_step(table.at(x, seed), chosen, role) for seed in table.seeds]
        return _curve(role, x, by_seed, result)

    return [curve(role, x) for role in table.roles(chosen) for x in table.x]


def _curve(role: str, x: int, by_seed: Sequence[Sequence[float]], result: CheckResult) -> NormCurve:
    shared = min(map(len, by_seed))  # from the step at which the part moves in every run
    logs = np.log(np.array([values[-shared:] for values in by_seed]))
    quantile = t_quantile(len(logs) - 1, result.criteria.confidence, 1)
    mean, reach = logs.mean(axis=0), quantile * logs.std(axis=0, ddof=1) / math.sqrt(len(logs))
    low, centre, high = (tuple(np.exp(y).tolist()) for y in (mean - reach, mean, mean + reach))
    last = result.about["steps"]  # a statistic with one value is measured at the end
    return NormCurve(role, x, tuple(range(last - len(centre) + 1, last + 1)), centre, low, high)
