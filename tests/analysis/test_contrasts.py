"""The spread of optima over models, told from the noise of the optima themselves."""

import math

import numpy as np
import pytest

from mupscale.analysis.contrasts import (
    CellValue,
    contrast,
    member_noise,
    seed_table,
    spread_of_members,
)
from mupscale.analysis.estimates import Estimate


@pytest.mark.parametrize("freedom", [4, 20])
@pytest.mark.parametrize("distance", [0.0, 0.02, 0.1, 0.5])
def test_the_interval_holds_what_is_spread_without_noise(distance: float, freedom: int) -> None:
    """300 studies of six models; 95 % intervals hold in 90 % or more of them at any spread."""
    generator, true, noise = np.random.default_rng(1), distance * np.arange(6), 0.15
    held = 0
    for _ in range(300):
        seen = true + generator.normal(0, noise, 6)
        estimated = noise**2 * generator.chisquare(freedom) / freedom
        found = spread_of_members(float(np.var(seen)), 6, estimated, freedom)
        held += found.low <= true.std() <= found.high
    assert held >= 0.91 * 300


def test_without_noise_it_is_what_is_seen_and_without_freedom_it_is_open() -> None:
    exact = spread_of_members(0.04, 3, noise=0.0, freedom=5)
    assert (exact.value, exact.low, exact.high) == pytest.approx((0.2, 0.2, 0.2))
    open_end = spread_of_members(0.04, 3, noise=math.inf, freedom=0)
    assert (open_end.low, open_end.high) == (0, math.inf)


def test_both_ways_to_an_interval_meet_where_one_takes_over() -> None:
    below, above = (
        spread_of_members(ratio * 0.01 / 6, 6, noise=0.01, freedom=50) for ratio in (9e3, 1.1e4)
    )
    for one in (below, above):
        assert (one.high - one.low) / 2 == pytest.approx(2.0086 * math.sqrt(0.01 / 6), rel=0.03)


def test_what_a_seed_does_everywhere_is_no_noise_between_members() -> None:
    generator = np.random.default_rng(2)
    shared, own = generator.normal(0, 1, 8), generator.normal(0, 0.1, (5, 8))
    cells = [
        CellValue(float(row.mean()), 1.0, 7, {seed: float(value) for seed, value in enumerate(row)})
        for row in shared + own
    ]
    variance, freedom = member_noise(cells, seed_table(cells))
    assert variance == pytest.approx(0.01 / 8, rel=0.6)
    assert freedom == 28
    alone, _ = member_noise(cells, None)
    assert alone == pytest.approx(1.0)


def test_one_degree_of_freedom_bounds_a_contrast_and_none_does_not() -> None:
    def difference(freedom: float) -> Estimate:
        cells = [CellValue(value, 0.1, freedom, {}) for value in (3.0, 1.0)]
        return contrast(cells, [1.0, -1.0], None, 0.95)

    # Two errors of 0.1 with one degree of freedom each: Student's t with two, by Satterthwaite.
    assert difference(1).high - 2 == pytest.approx(4.302653 * 0.1 * math.sqrt(2))
    assert difference(0).high == math.inf
