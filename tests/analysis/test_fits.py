"""The lowest point of a curve by three fits: against closed forms and independent formulas."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import multivariate_normal, ttest_1samp

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.fits import (
    DISAGREE,
    FITS,
    agreed,
    best_column,
    gaussian_process,
    lowest_points,
    mean_over_seeds,
    slopes_by_seed,
)
from mupscale.errors import DimensionError, OptionError

GRID = np.linspace(-9, -5, 9)
POLYNOMIALS = {"quadratic": 2, "cubic": 3}


def curve(x, optimum=-7.1, cubic=0.0, loss=2.0):
    return loss + 0.1 * (x - optimum) ** 2 + cubic * (x - optimum) ** 3


def noisy(seed=0, cubic=0.02, x=GRID, noise=0.01):
    return curve(x, cubic=cubic) + noise * np.random.default_rng(seed).standard_normal(len(x))


def lowest(fit, x, y):
    (found,) = lowest_points(fit, x, y)
    return found


class TestPolynomials:
    @settings(max_examples=20)
    @given(st.floats(-8.2, -5.8))
    def test_every_fit_finds_the_vertex_of_a_parabola(self, optimum):
        for fit in FITS:
            found = lowest(fit, GRID, curve(GRID, optimum))
            tolerance = 1e-3 if fit == "Gaussian process" else 1e-6
            assert found.inside
            assert found.log2_rate == pytest.approx(optimum, abs=tolerance)
            assert found.loss == pytest.approx(2.0, abs=tolerance)

    @given(st.floats(-7.9, -6.1), st.floats(-0.02, 0.02))
    def test_the_cubic_finds_the_minimum_of_a_cubic(self, optimum, lean):
        found = lowest("cubic", GRID, curve(GRID, optimum, lean))
        assert found.log2_rate == pytest.approx(optimum, abs=1e-6)
        assert found.loss == pytest.approx(2.0, abs=1e-9)

    @pytest.mark.parametrize(("fit", "reach", "points"), [("quadratic", 1, 5), ("cubic", 2, 8)])
    def test_rates_beyond_the_reach_do_not_matter(self, fit, reach, points):
        y = curve(GRID, -7.4)
        far = np.abs(GRID + 7.5) > reach
        found = lowest(fit, GRID, np.where(far, 9.0, y))
        assert (found.log2_rate, found.points) == (pytest.approx(-7.4, abs=1e-6), points)

    @pytest.mark.parametrize(("fit", "degree"), POLYNOMIALS.items())
    def test_with_noise_it_is_the_least_squares_polynomial(self, fit, degree):
        y = noisy()
        near = np.abs(GRID - GRID[np.argmin(y)]) <= FITS[fit].reach
        offsets = GRID[near] - GRID.mean()
        design = np.vander(offsets, degree + 1)
        coefficients = np.linalg.solve(design.T @ design, design.T @ y[near])
        roots = np.roots(np.polyder(coefficients)).real
        heights = np.polyval(coefficients, roots)
        found = lowest(fit, GRID, y)
        assert found.log2_rate == pytest.approx(roots[heights.argmin()] + GRID.mean(), abs=1e-6)
        assert found.loss == pytest.approx(heights.min(), abs=1e-9)


class TestGaussianProcess:
    """Against the density of scipy and the conditional mean of a joint normal distribution."""

    @staticmethod
    def covariance(x, other, variance, length):
        return variance * np.exp(-np.square(np.subtract.outer(x, other)) / (2 * length**2))

    @pytest.mark.parametrize("seed", range(4))
    def test_its_likelihood_is_the_greatest_of_all_four_parameters(self, seed):
        y = noisy(seed)
        found = gaussian_process(GRID, y)
        assert found is not None
        signal = found.variance * (1 - found.noise_share)
        noise = found.variance * found.noise_share

        def log_density(parameters):
            mean, variance, length, sd = parameters[0], *np.exp(parameters[1:])
            matrix = self.covariance(GRID, GRID, variance, length) + sd**2 * np.eye(len(GRID))
            return multivariate_normal.logpdf(y, np.full(len(GRID), mean), matrix)

        at = [found.mean, math.log(signal), math.log(found.length), math.log(noise) / 2]
        assert log_density(at) == pytest.approx(found.log_likelihood, abs=1e-5)
        for start in (at, [2.2, 0.0, 0.7, math.log(0.01)], [2.2, -2.0, 0.0, math.log(0.03)]):
            other = minimize(lambda p: -log_density(p), start, method="Nelder-Mead")
            if math.exp(other.x[2]) <= 4 * np.ptp(GRID):  # the bound on the length
                assert -other.fun <= found.log_likelihood + 1e-3

    def test_its_curve_is_the_conditional_mean(self):
        y, x = noisy(), np.linspace(-9, -5, 50)
        found = gaussian_process(GRID, y)
        assert found is not None
        signal = found.variance * (1 - found.noise_share)
        noise = found.variance * found.noise_share * np.eye(len(GRID))
        among = self.covariance(GRID, GRID, signal, found.length) + noise
        across = self.covariance(x, GRID, signal, found.length)
        expected = found.mean + across @ np.linalg.inv(among) @ (y - found.mean)
        np.testing.assert_allclose(found(x), expected, atol=1e-6)

    def test_its_lowest_point_is_that_of_the_curve_over_all_rates(self):
        y, x = noisy(), np.linspace(-9, -5, 40001)
        made = gaussian_process(GRID, y)
        assert made is not None
        found = lowest("Gaussian process", GRID, y)
        assert found.points == len(GRID)
        assert found.log2_rate == pytest.approx(x[made(x).argmin()], abs=5e-3)
        assert found.loss == pytest.approx(made(x).min(), abs=1e-4)

    def test_it_finds_the_noise_of_a_dense_curve(self):
        x = np.linspace(-9, -5, 65)
        made = gaussian_process(x, noisy(x=x, noise=0.02))
        assert made is not None
        assert math.sqrt(made.variance * made.noise_share) == pytest.approx(0.02, rel=0.3)

    def test_noise_without_a_curve_has_no_lowest_point(self):
        # Independent noise that alternates: no process is likelier than noise alone.
        y = 2 + 0.01 * np.array([1.0, -1, 1, -1.1, 1, -1, 1, -1, 1])
        found = lowest("Gaussian process", GRID, y)
        assert (found.place, found.inside) == ("only noise", False)
        assert math.isnan(found.log2_rate)
        assert math.isnan(found.loss)


@pytest.mark.parametrize("fit", FITS)
class TestEveryFit:
    @settings(max_examples=10)
    @given(octaves=st.floats(-20, 20), nats=st.floats(-5, 5))
    def test_the_units_of_rate_and_loss_do_not_matter(self, fit, octaves, nats):
        y = noisy()
        here, there = lowest(fit, GRID, y), lowest(fit, GRID + octaves, 3 * (y + nats))
        assert there.log2_rate == pytest.approx(here.log2_rate + octaves, abs=1e-3)
        assert there.loss == pytest.approx(3 * (here.loss + nats), abs=1e-5)
        assert there.points == here.points

    def test_a_diverged_run_is_left_out(self, fit):
        y = noisy()
        missing = y.copy()
        missing[3] = math.nan
        kept = np.arange(len(GRID)) != 3
        found, without = lowest(fit, GRID, missing), lowest(fit, GRID[kept], y[kept])
        assert found == without
        assert found.points == lowest(fit, GRID, y).points - 1
        assert lowest(fit, GRID, np.where(kept, y, math.inf)) == without

    def test_too_few_rates_are_not_located(self, fit):
        least, step = FITS[fit].least, 0.25
        for count in range(least):
            y = np.full(len(GRID), math.nan)
            y[3 : 3 + count] = curve(GRID[3 : 3 + count], -7.0)
            found = lowest(fit, -7 + (GRID + 7) * step, y)
            assert (found.place, found.inside) == ("too few rates", False)
            assert math.isnan(found.log2_rate)
        y[3 : 3 + least] = curve(GRID[3 : 3 + least], -7.0)
        assert lowest(fit, -7 + (GRID + 7) * step, y).points == least

    @pytest.mark.parametrize(("optimum", "place"), [(-9.6, "open below"), (-4.4, "open above")])
    def test_an_end_of_the_range_is_open_and_no_optimum(self, fit, optimum, place):
        found = lowest(fit, GRID, curve(GRID, optimum))
        assert (found.place, found.inside) == (place, False)
        assert found.log2_rate in (GRID[0], GRID[-1])

    def test_a_curve_that_falls_towards_a_diverged_end_is_open(self, fit):
        y = curve(GRID, -4.0)
        y[-2:] = math.nan
        assert not lowest(fit, GRID, y).inside

    def test_each_seed_is_fitted_alone_around_the_lowest_mean_loss(self, fit):
        table = np.array([noisy(seed) + level for seed, level in enumerate((0.0, 0.5, -0.3))])
        centre = GRID[table.mean(axis=0).argmin()]
        found = lowest_points(fit, GRID, table)
        for row, one in zip(table, found, strict=True):
            near = np.abs(GRID - centre) <= FITS[fit].reach
            made = FITS[fit].fitted(GRID[near], row[near])
            x = np.linspace(GRID[near].min(), GRID[near].max(), 20001)
            assert one.log2_rate == pytest.approx(x[made(x).argmin()], abs=2e-3)
            assert one.loss == pytest.approx(made(x).min(), abs=1e-5)
            assert one.points == near.sum()

    def test_the_order_of_the_rates_does_not_matter(self, fit):
        y, order = noisy(), np.random.default_rng(1).permutation(len(GRID))
        shuffled = lowest(fit, GRID[order], y[order])
        assert shuffled.log2_rate == pytest.approx(lowest(fit, GRID, y).log2_rate, abs=1e-4)


def test_one_seed_far_off_does_not_move_the_window_of_the_others():
    """The window is that of the mean: a seed has no window of its own."""
    table = np.array([curve(GRID, -7.0), curve(GRID, -7.0), curve(GRID, -8.1)])
    assert GRID[best_column(table)] == -7.5
    by_seed = lowest_points("quadratic", GRID, table)
    assert [one.points for one in by_seed] == [5, 5, 5]
    assert [one.log2_rate for one in by_seed] == pytest.approx([-7.0, -7.0, -8.1], abs=1e-6)


def test_the_best_rate_of_the_grid_needs_a_loss_of_every_seed():
    assert best_column([[3.0, 2.0, math.nan], [3.0, 2.0, 0.0]]) == 1
    assert best_column([[math.nan], [1.0]]) is None
    found = lowest_points("cubic", [-7.0], [[math.nan], [1.0]])
    assert [one.place for one in found] == ["too few rates", "too few rates"]


def test_the_fits_of_the_study_are_these_three():
    assert [(name, shape.reach) for name, shape in FITS.items()] == [
        ("quadratic", 1.0),
        ("cubic", 2.0),
        ("Gaussian process", math.inf),
    ]
    assert [shape.least for shape in FITS.values()] == [4, 5, 5]


def test_wrong_tables_are_errors():
    with pytest.raises(DimensionError, match="one row per seed"):
        lowest_points("cubic", [-7.0, -6.0], [[1.0, 2.0, 3.0]])
    with pytest.raises(OptionError, match="twice"):
        lowest_points("cubic", [-7.0, -7.0], [[1.0, 2.0]])
    with pytest.raises(OptionError, match="no seeds"):
        mean_over_seeds([])


class TestOverSeeds:
    @given(st.lists(st.floats(-1, 1), min_size=2, max_size=5, unique=True))
    def test_the_interval_of_the_mean_is_students(self, values):
        found = mean_over_seeds(values)
        expected = ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)

    def test_one_seed_has_no_interval(self):
        assert not mean_over_seeds([0.5]).bounded

    def test_the_drift_is_the_least_squares_slope_of_each_seed(self):
        sizes, table = [64, 128, 512], np.random.default_rng(0).normal(-7, 0.3, (2, 3))
        expected = [np.polyfit(np.log2(sizes), row, 1)[0] for row in table]
        assert slopes_by_seed(sizes, table) == pytest.approx(expected)


class TestAgreement:
    @staticmethod
    def judge(one):
        return "higher" if one.low > 0 else "may be 0"

    def test_only_what_all_fits_give_is_claimed(self):
        same = {"a": Estimate(0.2, 0.1, 0.3, 1), "b": Estimate(0.5, 0.05, 0.9, 2)}
        found = agreed(same, self.judge)
        assert found.verdict == "higher"
        assert found.widest == Estimate(0.35, 0.05, 0.9, 1)
        other = agreed(same | {"c": Estimate(0.2, -0.1, 0.3)}, self.judge)
        assert other.verdict == DISAGREE
        assert (other.widest.low, other.widest.high) == (-0.1, 0.9)

    def test_a_fit_without_a_value_leaves_it_undecided(self):
        found = agreed({"quadratic": Estimate(0.2, 0.1, 0.3), "cubic": None}, self.judge)
        assert found.verdict == "undecided: not located by the cubic"
        assert found.widest is None
        assert agreed({}, self.judge).widest is None
