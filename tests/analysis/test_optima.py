"""The optimum of a curve: against closed forms, and against curves whose optimum is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from mupscale.analysis.optima import fit_optimum
from mupscale.errors import DimensionError, OptionError

GRID = np.linspace(-8, -4, 9)


def curve(x, optimum=-6.1, curvature=0.1, cubic=0.0):
    return 2 + curvature / 2 * (x - optimum) ** 2 + cubic * (x - optimum) ** 3


class TestWithoutNoise:
    @given(st.floats(-7.5, -4.5), st.floats(0.01, 1.0))
    def test_the_vertex_of_a_parabola_is_found_exactly(self, optimum, curvature):
        found = fit_optimum(GRID, curve(GRID, optimum, curvature))
        assert found.value == pytest.approx(optimum, abs=1e-6)
        assert found.curvature == pytest.approx(curvature, rel=1e-6)
        assert found.loss == pytest.approx(2.0, abs=1e-6)
        assert found.low <= found.value <= found.high

    @given(st.lists(st.floats(-5, 5), min_size=2, max_size=4))
    def test_levels_of_seeds_cancel(self, levels):
        xs = np.tile(GRID, len(levels))
        seeds = np.repeat(np.arange(len(levels)), len(GRID))
        found = fit_optimum(xs, curve(xs) + np.array(levels)[seeds], seeds)
        assert found.value == pytest.approx(-6.1, abs=1e-4)
        assert found.seeds == len(levels)

    def test_points_far_from_the_optimum_do_not_matter(self):
        bent = np.where(np.abs(GRID + 6.1) > 1.6, 9.0, curve(GRID))
        assert fit_optimum(GRID, bent).value == pytest.approx(-6.1)


class TestInterval:
    def test_it_is_fiellers_for_a_plain_parabola(self):
        """Ends at which the slope is t standard errors from zero, by the textbook formula."""
        random = np.random.default_rng(0)
        x = np.array([-7.0, -6.5, -6.0, -5.5, -5.0])
        y = curve(x, -6.05) + random.normal(0, 0.004, 5)
        found = fit_optimum(x, y)
        design = np.column_stack([np.ones(5), x, x * x])
        solution, residuals, *_ = np.linalg.lstsq(design, y, rcond=None)
        covariance = np.linalg.inv(design.T @ design) * residuals[0] / 2
        for end in (found.low, found.high):
            row = np.array([0, 1, 2 * end])
            assert abs(row @ solution) / math.sqrt(row @ covariance @ row) == pytest.approx(student.ppf(0.975, 2))
        assert found.value == pytest.approx(-solution[1] / (2 * solution[2]))

    @pytest.mark.parametrize("seeds", [1, 3, 10])
    def test_it_covers_a_known_optimum(self, seeds):
        xs, groups = np.tile(GRID, seeds), np.repeat(np.arange(seeds), len(GRID))
        random = np.random.default_rng(seeds)
        covered = 0
        for _ in range(400):
            truth = random.uniform(-6.5, -5.5)
            noise = random.normal(0, 0.03, seeds)[groups] + random.normal(0, 0.012, len(xs))
            found = fit_optimum(xs, curve(xs, truth) + noise, groups)
            covered += found.low <= truth <= found.high
        # Of 400 intervals of 95 %, 380 ± 9 hold.
        assert 366 <= covered <= 396

    def test_seeds_whose_optima_differ_widen_it(self):
        xs, groups = np.tile(GRID, 3), np.repeat(np.arange(3), len(GRID))
        random = np.random.default_rng(1)
        noise = random.normal(0, 0.002, len(xs))
        alike = fit_optimum(xs, curve(xs) + noise, groups)
        apart = fit_optimum(xs, curve(xs, -6.1 + np.array([-0.4, 0.0, 0.4])[groups]) + noise, groups)
        assert apart.half_width > 3 * alike.half_width

    def test_two_seeds_that_differ_have_no_interval_but_know_their_own_optimum(self):
        xs, groups = np.tile(GRID, 2), np.repeat(np.arange(2), len(GRID))
        noise = np.random.default_rng(2).normal(0, 0.002, len(xs))
        found = fit_optimum(xs, curve(xs, -6.1 + np.array([-0.3, 0.3])[groups]) + noise, groups)
        assert found.flags == ("seeds",)
        assert found.value == pytest.approx(-6.1, abs=0.05)
        assert found.within < 0.05

    def test_without_differences_between_seeds_both_intervals_are_one(self):
        found = fit_optimum(GRID, curve(GRID) + 0.005 * np.sin(40 * GRID))
        assert found.within == pytest.approx(found.half_width)

    def test_a_far_rate_that_all_seeds_share_does_not_draw_the_optimum(self):
        """Seeds are tried at different rates, but for one that is far off."""
        xs = np.array([-7.75, -6.5, -6.0, -5.5, -5.0, -7.75, -6.75, -5.75, -5.25])
        groups = np.array([0] * 5 + [1] * 4)
        found = fit_optimum(xs, curve(xs) + 0.02 * groups, groups)
        assert found.value == pytest.approx(-6.1)

    def test_more_confidence_is_wider(self):
        y = curve(GRID) + 0.005 * np.sin(40 * GRID)
        assert fit_optimum(GRID, y, confidence=0.99).half_width > fit_optimum(GRID, y).half_width


class TestFlags:
    def test_no_run_that_ended_has_no_optimum(self):
        assert fit_optimum([-6.0, -5.0], [None, math.nan]) is None
        assert fit_optimum([], []) is None

    def test_too_few_points_give_the_lowest_and_no_interval(self):
        found = fit_optimum([-7.0, -6.0, -5.0], [2.2, 2.1, 2.3])
        assert (found.value, found.low, found.high, found.flags) == (-6.0, -math.inf, math.inf, ("few",))

    def test_one_point(self):
        assert fit_optimum([-6.0], [2.0]).flags == ("few", "edge")

    @pytest.mark.parametrize("side", [-1, 1])
    def test_an_optimum_beyond_what_was_tried_is_at_the_edge(self, side):
        found = fit_optimum(GRID, curve(GRID, -6 + 3.5 * side))
        assert "edge" in found.flags

    def test_noise_without_a_curve_is_flat(self):
        random = np.random.default_rng(5)
        assert "flat" in fit_optimum(GRID, 2 + random.normal(0, 0.01, 9)).flags

    def test_a_curve_that_bends_down_is_flat(self):
        assert "flat" in fit_optimum(GRID, 3 - curve(GRID)).flags

    def test_diverged_runs_beyond_the_optimum_are_told(self):
        losses = [None if x > -5 else float(curve(x)) for x in GRID]
        found = fit_optimum(GRID, losses)
        assert "diverged" in found.flags
        assert found.value == pytest.approx(-6.1)


class TestMistakes:
    def test_as_many_losses_as_points(self):
        with pytest.raises(DimensionError, match="2 points have 1 losses"):
            fit_optimum([1.0, 2.0], [1.0])

    def test_points_must_be_finite(self):
        with pytest.raises(OptionError, match="log2"):
            fit_optimum([math.nan], [1.0])
