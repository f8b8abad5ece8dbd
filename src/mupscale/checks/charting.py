"""What the panels of a check show: each role's statistic over the steps, a line a value, with
intervals over seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mupscale.analysis.slopes import t_quantile
from mupscale.checks import statistics
from mupscale.checks.judging import NormTable
from mupscale.checks.result import CheckResult
from mupscale.checks.statistics import STATISTICS
from mupscale.errors import UnknownNameError


@dataclass(frozen=True)
class NormCurve:
    """Geometric means over layers and seeds at each step, with the interval of the mean over
    seeds.
    """

    role: str
    x: int
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def curves(result: CheckResult, statistic: str) -> list[NormCurve]:
    """Role by role, and for each the values in rising order."""
    if statistic not in STATISTICS:
        raise UnknownNameError("statistic", statistic, STATISTICS)
    chosen, table = STATISTICS[statistic], NormTable(result.runs, result.quantity)
    return [
        _curve(
            role,
            x,
            [statistics.by_step(table.at(x, seed), chosen, role) for seed in table.seeds],
            result,
        )
        for role in table.roles(chosen)
        for x in table.x
    ]


def _curve(role: str, x: int, by_seed: Sequence[Sequence[float]], result: CheckResult) -> NormCurve:
    shared = min(map(len, by_seed))  # what starts to move later in some run is shown from then on
    logs = np.log(np.array([values[-shared:] for values in by_seed]))
    reach = (
        t_quantile(len(logs) - 1, result.criteria.confidence, 1)
        * logs.std(axis=0, ddof=1)
        / math.sqrt(len(logs))
    )
    mean = logs.mean(axis=0)
    low, centre, high = (
        tuple(np.exp(line).tolist()) for line in (mean - reach, mean, mean + reach)
    )
    last = result.about["steps"]  # what is measured once is measured at the end
    return NormCurve(role, x, tuple(range(last - len(centre) + 1, last + 1)), centre, low, high)
