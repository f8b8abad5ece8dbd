"""How far seeds lie apart: is it the same in every cell, and does it grow along an axis?"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.slopes import log_contrast, t_quantile
from mupscale.errors import DimensionError

Array = NDArray[np.float64]

_LEAST_SEEDS = 3

POOLING_LEVEL = 0.25
"""Spreads are pooled unless the test of equal spreads has a smaller p-value than this.

A few seeds show only large differences, so the usual 5 % would pool much of what must not be
pooled. Bancroft (1964, Biometrics 20) recommends 25 % for this decision.
"""

# Draws of the distribution under equal spreads, which is computed once for each shape of a table.
_DRAWS = 4000
# A spread of exactly 0 has no logarithm. It counts as this share of the pooled variance.
_LEAST_SHARE = 1e-12


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


def equal_spread_chance(rows: Sequence[Sequence[float]], *, shared: bool = False) -> float:
    """The p-value of Bartlett's test (1937) that all rows have the same spread around their means.

    With `shared`, the mean of each column is subtracted first: the effect that a seed has on all
    cells. Rows are cells, columns are seeds.

    Bartlett's test assumes normal values. Brown and Forsythe's does not, but is blind with so few
    seeds: of three distances from a median of three, one is always 0. The distribution of the
    statistic is drawn, since the usual χ² is for larger samples and for independent rows, and rows
    are not independent once the columns are centred.

    >>> calm, wild = [0.1, -0.1, 0.0, 0.1, -0.1, 0.0], [1.0, -2.0, 1.5, -1.0, 2.0, -1.5]
    >>> equal_spread_chance([calm, calm[::-1]]) > 0.9, equal_spread_chance([calm, wild]) < 0.01
    (True, True)
    """
    tables = [np.asarray(row, dtype=np.float64) for row in rows if len(row) > 1]
    if len(tables) < 2:
        return 1.0
    if shared:
        table = np.array([row - row.mean() for row in tables])
        tables = list(table - table.mean(axis=0))
    freedom = np.array([len(row) - 1.0 for row in tables])
    # The column means take their share of the squares, the same from every row.
    variances = np.array([float(np.square(row - row.mean()).sum()) for row in tables]) / freedom
    if not variances.any():
        return 1.0
    observed = float(_bartlett(variances[None], freedom)[0])
    drawn = _under_equal_spreads(tuple(map(int, freedom)), shared)
    return float((1 + (drawn >= observed - 1e-9).sum()) / (1 + len(drawn)))


def _bartlett(variances: Array, freedom: Array) -> Array:
    """Of each row of variances, without the constant that scales it to a χ²."""
    pooled = variances @ freedom / freedom.sum()
    shares = np.maximum(variances / pooled[:, None], _LEAST_SHARE)
    return -np.log(shares) @ freedom


@lru_cache(maxsize=256)
def _under_equal_spreads(freedom: tuple[int, ...], shared: bool) -> Array:
    generator, every = np.random.default_rng(0), np.array(freedom, dtype=np.float64)
    if not shared:
        return _bartlett(generator.chisquare(every, (_DRAWS, len(every))) / every, every)
    drawn = generator.standard_normal((_DRAWS, len(freedom), freedom[0] + 1))
    drawn -= drawn.mean(axis=2, keepdims=True)
    drawn -= drawn.mean(axis=1, keepdims=True)
    return _bartlett(np.square(drawn).sum(axis=2) / every, every)


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
