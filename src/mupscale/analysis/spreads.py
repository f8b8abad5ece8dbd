"""How far seeds lie apart, and whether that grows along an axis."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.slopes import log_contrast, t_quantile
from mupscale.errors import DimensionError

Array = NDArray[np.float64]

_LEAST_SEEDS = 3


def sd_of(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The standard deviation (ddof 1) with its χ² interval, exact for normal values.

    >>> one = sd_of([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> round(one.value, 3), round(one.low, 3), round(one.high, 3)
    (1.581, 0.947, 4.543)
    """
    if len(values) < 2:
        raise DimensionError(
            f"{len(values)} value has no spread. Run at least 2 seeds; 10 or more are better."
        )
    freedom, value = len(values) - 1, float(np.std(np.asarray(values, dtype=np.float64), ddof=1))
    ends = [(1 + sign * confidence) / 2 for sign in (1, -1)]
    low, high = (value * math.sqrt(freedom / float(chi2.ppf(end, freedom))) for end in ends)
    return Estimate(value, low, high, freedom)


def sd_growth(
    x: Sequence[float],
    values: Sequence[Sequence[float]],
    *,
    confidence: float = 0.95,
    comparisons: int = 1,
) -> Estimate:
    """The slope of log sd over log x, where values[s][v] is the value of seed s at x[v].

    A seed has the same data at every x, so spreads at different x are not independent. The error is
    therefore a jackknife over whole seeds, with Student's t of S − 1 degrees of freedom.

    >>> table = [[1.0, 2.0, 4.0], [2.0, 4.0, 8.0], [3.5, 7.0, 14.0], [5.0, 10.0, 20.0]]
    >>> one = sd_growth([1, 2, 4], table)
    >>> round(one.value, 6), round(one.high - one.low, 6)
    (1.0, 0.0)
    """
    table, contrast = _table(x, values), log_contrast(x)
    seeds = len(table)
    value = _growth(table, contrast)
    without = np.array([_growth(np.delete(table, seed, axis=0), contrast) for seed in range(seeds)])
    error = math.sqrt((seeds - 1) / seeds * float(np.square(without - without.mean()).sum()))
    half = t_quantile(seeds - 1, confidence, comparisons) * error
    return Estimate(value, value - half, value + half, seeds - 1)


def growth_by_chance(
    x: Sequence[float],
    values: Sequence[Sequence[float]],
    *,
    permutations: int = 2000,
    seed: int = 0,
) -> float:
    """The p-value of a one-sided permutation test: how often spreads that are the same at every x
    grow as much as these.

    Each seed's distances from the means are permuted among the x.

    >>> table = [[1.0, 2.0, 4.0], [2.0, 4.0, 8.0], [3.5, 7.0, 14.0], [5.0, 10.0, 20.0]]
    >>> growth_by_chance([1, 2, 4], table) < 0.05
    True
    """
    table, contrast = _table(x, values), log_contrast(x)
    distances, observed = table - table.mean(axis=0), _growth(table, contrast)
    generator = np.random.default_rng(seed)
    permuted = (generator.permuted(distances, axis=1) for _ in range(permutations))
    at_least = sum(_growth(one, contrast) >= observed - 1e-12 for one in permuted)
    # The data themselves are one of the permutations, so that the p-value is never 0.
    return (1 + at_least) / (1 + permutations)


def _growth(table: Array, contrast: Array) -> float:
    return float(np.log(table.std(axis=0, ddof=1)) @ contrast)


def _table(x: Sequence[float], values: Sequence[Sequence[float]]) -> Array:
    if len(values) < _LEAST_SEEDS:
        raise DimensionError(
            f"{len(values)} seeds are too few to show how a spread grows. Run at least "
            f"{_LEAST_SEEDS}."
        )
    for seed, row in enumerate(values):
        if len(row) != len(x):
            raise DimensionError(
                f"values[{seed}] has {len(row)} values, but x has {len(x)}. Give one for each x."
            )
    return np.asarray(values, dtype=np.float64)
