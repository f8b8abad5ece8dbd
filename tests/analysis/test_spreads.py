"""Spreads over seeds: intervals that hold as often as they say."""

import numpy as np
import pytest
from scipy.stats import bartlett, chi2, kstest, levene

from mupscale.analysis.spreads import (
    POOLING_LEVEL,
    equal_spread_chance,
    growth_by_chance,
    sd_growth,
    sd_of,
)
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


class TestEqualSpreads:
    def test_with_many_seeds_it_is_bartletts_test_as_others_compute_it(self):
        generator = np.random.default_rng(5)
        for factor in (1.0, 1.2, 1.4):
            table = generator.normal(size=(4, 60)) * np.array([[1], [1], [1], [factor]])
            expected = bartlett(*table).pvalue
            assert equal_spread_chance(table.tolist()) == pytest.approx(expected, abs=0.03)

    @pytest.mark.parametrize("shared", [False, True])
    @pytest.mark.parametrize("seeds", [2, 3, 6])
    def test_equal_spreads_are_rejected_as_often_as_the_level_says(self, seeds, shared):
        """The p-value is uniform, whatever a seed does to all cells."""
        generator = np.random.default_rng(6)
        tables = generator.normal(size=(400, 9, seeds)) + shared * generator.normal(
            0, 3, (400, 1, seeds)
        )
        chances = [equal_spread_chance(table.tolist(), shared=shared) for table in tables]
        assert kstest(chances, "uniform").pvalue > 0.01

    def test_it_sees_with_three_seeds_what_brown_and_forsythes_test_does_not(self):
        generator = np.random.default_rng(7)
        tables = generator.normal(size=(200, 9, 3)) * np.array([[1.0]] * 8 + [[5.0]])
        ours = np.mean([equal_spread_chance(table.tolist()) < POOLING_LEVEL for table in tables])
        theirs = np.mean([levene(*table).pvalue < POOLING_LEVEL for table in tables])
        assert ours > 0.7
        assert theirs < 0.3

    def test_neither_units_nor_levels_nor_common_effects_matter(self):
        table = np.random.default_rng(8).normal(size=(5, 4))
        moved = 1000 * table + np.arange(5)[:, None]
        assert equal_spread_chance(table.tolist()) == equal_spread_chance(moved.tolist())
        shifted = table + np.array([3.0, -1.0, 4.0, 0.0])
        one, other = (equal_spread_chance(t.tolist(), shared=True) for t in (table, shifted))
        assert one == other

    def test_cells_may_have_different_numbers_of_seeds(self):
        generator = np.random.default_rng(9)
        rows = [generator.normal(0, sd, size).tolist() for sd, size in ((1, 3), (1, 5), (30, 4))]
        assert equal_spread_chance(rows) < 0.05
        assert equal_spread_chance([rows[0], [1.0]]) == 1.0

    def test_without_any_spread_there_is_nothing_to_reject(self):
        assert equal_spread_chance([[1.0, 1.0, 1.0]] * 3) == 1.0
        assert equal_spread_chance([[1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [3.0, 1.0, 2.0]]) < 0.05

    def test_the_level_is_bancrofts(self):
        assert POOLING_LEVEL == 0.25
