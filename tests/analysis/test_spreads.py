"""Spreads over seeds: intervals that hold as often as they say."""

import numpy as np
import pytest
from scipy.stats import bartlett, chi2

from mupscale.analysis.spreads import growth_by_chance, sd_growth, sd_of
from mupscale.errors import DimensionError

R = [1, 2, 3, 4, 6, 12]


def drawn(generator, slope, shared, seeds=10):
    """Seeds that share a part of their noise at every r, with a spread ∝ r^slope."""
    noise = np.sqrt(shared) * generator.normal(size=(seeds, 1)) + np.sqrt(
        1 - shared
    ) * generator.normal(size=(seeds, len(R)))
    return noise * np.array(R, dtype=float) ** slope


def test_the_interval_of_a_spread_is_where_the_chi_squared_test_gives_in():
    values = np.random.default_rng(0).normal(size=10)
    one = sd_of(values.tolist())
    for end, probability in ((one.low, 0.975), (one.high, 0.025)):
        assert chi2.cdf(9 * one.value**2 / end**2, 9) == pytest.approx(probability)


@pytest.mark.parametrize("shared", [0.0, 0.7])
@pytest.mark.parametrize("slope", [0.0, 0.5])
def test_the_interval_of_growth_holds_as_often_as_it_says(slope, shared):
    generator = np.random.default_rng(1)
    found = [sd_growth(R, drawn(generator, slope, shared).tolist()) for _ in range(400)]
    assert 0.92 <= np.mean([one.low <= slope <= one.high for one in found]) <= 0.98


def test_growth_does_not_depend_on_levels_or_units():
    table = drawn(np.random.default_rng(2), 0.5, 0.3)
    one, other = sd_growth(R, table.tolist()), sd_growth(R, (1000 * table + np.arange(6)).tolist())
    assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high))


def test_growth_is_found_where_there_is_some_and_rarely_where_there_is_none():
    generator = np.random.default_rng(3)
    some = [
        growth_by_chance(R, drawn(generator, 0.5, 0.3).tolist(), permutations=100) < 0.05
        for _ in range(60)
    ]
    none = [
        growth_by_chance(R, drawn(generator, 0.0, 0.3).tolist(), permutations=100) < 0.05
        for _ in range(200)
    ]
    assert np.mean(some) > 0.9
    assert np.mean(none) < 0.1


def test_growth_agrees_with_bartletts_test_on_a_clear_case():
    table = drawn(np.random.default_rng(4), 1.0, 0.0)
    assert bartlett(*table.T).pvalue < 1e-4
    assert growth_by_chance(R, table.tolist()) < 0.01
    assert sd_growth(R, table.tolist()).low > 0


def test_too_few_seeds_or_a_missing_value_is_said():
    with pytest.raises(DimensionError, match="has no spread"):
        sd_of([1.0])
    with pytest.raises(DimensionError, match="at least 3"):
        sd_growth([1, 2], [[1.0, 2.0], [2.0, 3.0]])
    with pytest.raises(DimensionError, match=r"values\[1\] has 1 values"):
        sd_growth([1, 2], [[1.0, 2.0], [2.0], [3.0, 4.0]])
