"""The optimum of a curve: against closed forms, and against curves whose optimum is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from drills.optimum_coverage import (
    GRIDS,
    Case,
    coverage,
    parabola,
    recorded_cells,
    recorded_lean,
    recorded_spread,
)
from mupscale.analysis.optima import ASYMMETRY, RECORDED_SPREAD, Spread, fit_optimum
from mupscale.errors import DimensionError, OptionError

GRID = np.linspace(-8, -4, 9)


def curve(x, optimum=-6.1, curvature=0.1, cubic=0.0):
    return 2 + curvature / 2 * (x - optimum) ** 2 + cubic * (x - optimum) ** 3


def _beyond(solution, covariance, t):
    """(b + 2cx)² − t²·var(b + 2cx), highest power first."""
    _, b, c = solution
    v, cov, w = covariance[1, 1], covariance[1, 2], covariance[2, 2]
    return [4 * (c * c - t * t * w), 4 * (b * c - t * t * cov), b * b - t * t * v]


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
        xs = np.linspace(-9, -3, 13)
        bent = np.where(np.abs(xs + 6.1) > 2.1, 9.0, curve(xs))
        assert fit_optimum(xs, bent).value == pytest.approx(-6.1, abs=1e-3)

    @given(st.floats(-6.4, -5.6), st.floats(-0.01, 0.01))
    def test_a_curve_that_leans_has_its_optimum_where_it_is_lowest(self, optimum, cubic):
        xs = np.linspace(-8, -4, 17)
        found = fit_optimum(xs, curve(xs, optimum, cubic=cubic))
        assert found.value == pytest.approx(optimum, abs=0.01)
        assert found.loss_at(optimum + 1) == pytest.approx(
            curve(optimum + 1, optimum, cubic=cubic), abs=0.01
        )


class TestInterval:
    def test_it_is_fiellers_for_a_plain_parabola(self):
        """Ends at which the slope is t standard errors from zero, by the textbook formula."""
        random = np.random.default_rng(0)
        x = np.array([-7.0, -6.5, -6.0, -5.5, -5.0])
        y = curve(x, -6.05) + random.normal(0, 0.004, 5)
        found = fit_optimum(x, y, [0] * 5, asymmetry=0, spread=None)
        half = found.within
        design = np.column_stack([np.ones(5), x, x * x])
        solution, residuals, *_ = np.linalg.lstsq(design, y, rcond=None)
        covariance = np.linalg.inv(design.T @ design) * residuals[0] / 2
        ends = np.roots(_beyond(solution, covariance, student.ppf(0.975, 2)))
        assert max(abs(ends - found.value)) == pytest.approx(half)
        assert found.value == pytest.approx(-solution[1] / (2 * solution[2]))
        assert found.half_width > half  # another seed may lie elsewhere

    @pytest.mark.parametrize("seeds", [1, 3, 10])
    @pytest.mark.parametrize("lean", [-0.6, 0.6])
    def test_it_covers_a_known_optimum_under_the_noise_of_recorded_runs(self, seeds, lean):
        """A thousand curves that lean as the recorded ones do, with their residuals, and seeds that
        lie apart.
        """
        grid = GRIDS["9 rates, 1/2 octave"]
        assert 0.93 <= coverage(Case(grid, lean, seeds), 1000).held <= 0.97

    def test_a_parabola_would_not(self):
        assert coverage(Case(GRIDS["9 rates, 1/2 octave"], 0.6, 10), 200, parabola).held < 0.6

    def test_what_it_takes_from_the_records_is_what_they_say(self):
        near, far = recorded_lean(recorded_cells(1.5)), recorded_lean(recorded_cells())
        assert far < ASYMMETRY < 1.5 * near
        assert recorded_spread(recorded_cells()) == pytest.approx(RECORDED_SPREAD, rel=0.15)

    def test_what_other_cells_say_of_the_seeds_narrows_it(self):
        xs, groups = np.tile(GRID, 3), np.repeat(np.arange(3), len(GRID))
        noise = np.random.default_rng(3).normal(0, 0.01, len(xs))
        y = curve(xs, -6.1 + np.array([-0.1, 0.0, 0.1])[groups]) + noise
        alone = fit_optimum(xs, y, groups)
        own = np.var(list(alone.seed_optima.values()), ddof=1)
        assert (
            fit_optimum(xs, y, groups, spread=Spread(own, 16)).half_width < 0.9 * alone.half_width
        )

    def test_each_seed_has_its_own_optimum(self):
        xs, groups = np.tile(GRID, 3), np.repeat([7, 8, 9], len(GRID))
        own = np.repeat([-6.3, -6.1, -5.9], len(GRID))
        found = fit_optimum(xs, curve(xs, own) + np.repeat([0.1, 0.2, 0.3], len(GRID)), groups)
        assert found.seed_optima == pytest.approx({7: -6.3, 8: -6.1, 9: -5.9}, abs=0.01)
        # At the common optimum, seeds 7 and 9 are 0.2 octaves from their own: 0.1/2 · 0.2² = 0.002
        # above their lowest.
        assert found.seed_losses == pytest.approx({7: 2.102, 8: 2.2, 9: 2.302}, abs=0.004)

    def test_seeds_whose_optima_differ_widen_it(self):
        xs, groups = np.tile(GRID, 3), np.repeat(np.arange(3), len(GRID))
        random = np.random.default_rng(1)
        noise = random.normal(0, 0.002, len(xs))
        alike = fit_optimum(xs, curve(xs) + noise, groups)
        apart = fit_optimum(
            xs, curve(xs, -6.1 + np.array([-0.4, 0.0, 0.4])[groups]) + noise, groups
        )
        assert apart.half_width > 3 * alike.half_width

    def test_two_seeds_that_differ_widely_have_no_interval_but_know_their_own_optimum(self):
        xs, groups = np.tile(GRID, 2), np.repeat(np.arange(2), len(GRID))
        noise = np.random.default_rng(2).normal(0, 0.002, len(xs))
        found = fit_optimum(xs, curve(xs, -6.1 + np.array([-1.0, 1.0])[groups]) + noise, groups)
        assert found.flags == ("seeds",)
        assert found.value == pytest.approx(-6.1, abs=0.1)
        assert found.within < 0.1

    def test_a_few_seeds_that_happen_to_agree_are_not_taken_at_their_word(self):
        """The recorded spread counts beside theirs."""
        xs, groups = np.tile(GRID, 2), np.repeat(np.arange(2), len(GRID))
        found = fit_optimum(
            xs, curve(xs) + np.random.default_rng(7).normal(0, 1e-4, len(xs)), groups
        )
        assert RECORDED_SPREAD / 2 < found.half_width < 4 * RECORDED_SPREAD

    def test_of_one_seed_the_interval_allows_for_the_recorded_spread_of_others(self):
        found = fit_optimum(GRID, curve(GRID) + 1e-6 * np.sin(40 * GRID))
        assert found.within < 0.01
        assert found.half_width == pytest.approx(1.96 * RECORDED_SPREAD, rel=0.02)

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

    def test_a_seed_of_which_no_run_ended_is_left_out(self):
        xs, seeds = np.tile(GRID, 2), np.repeat([1, 2], 9)
        losses = [None if seed == 1 else float(curve(x)) for x, seed in zip(xs, seeds, strict=True)]
        found = fit_optimum(xs, losses, seeds)
        assert found.value == pytest.approx(-6.1, abs=0.01)
        assert found.seeds == 1

    def test_too_few_points_give_the_lowest_and_no_interval(self):
        found = fit_optimum([-7.0, -6.0, -5.0], [2.2, 2.1, 2.3])
        assert (found.value, found.low, found.high, found.flags) == (
            -6.0,
            -math.inf,
            math.inf,
            ("few",),
        )

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

    @pytest.mark.parametrize("jump", [0.2, 5.0, 1e6])
    def test_runs_that_exploded_are_no_part_of_the_curve(self, jump):
        xs, seeds = np.tile(GRID, 3), np.repeat(np.arange(3), 9)
        noise = np.random.default_rng(6).normal(0, 0.003, len(xs))
        found = fit_optimum(xs, curve(xs, -6.0) + noise + jump * (xs == -4), seeds)
        assert found.value == pytest.approx(-6.0, abs=0.3 if jump < 1 else 0.05)
        assert ("diverged" in found.flags) == (jump > 1)

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
