"""A slope ignores what it should, agrees with textbook fits, and covers the truth as often as it
says.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mupscale.analysis import Slope, curve_slope, fit_slope
from mupscale.errors import DimensionError, NonFiniteError, OptionError

REPETITIONS = [1, 2, 3, 4, 6, 12]
GRIDS = {2: [64, 512], 3: [1, 3, 12], 4: [64, 128, 256, 512], 6: REPETITIONS}


def table(seeds: int, values: int, seed: int = 0) -> np.ndarray:
    """log y[s][v] with noise and a level for each seed."""
    rng = np.random.default_rng(seed)
    return 0.1 * rng.standard_normal((seeds, values)) + rng.standard_normal((seeds, 1))


def contrast(x) -> np.ndarray:
    centred = np.log(x) - np.log(x).mean()
    return centred / (centred @ centred)


@pytest.mark.parametrize("values", GRIDS)
@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_the_value_is_the_least_squares_slope_of_the_mean_log_curve(seeds, values):
    logs = table(seeds, values)
    expected = stats.linregress(np.log(GRIDS[values]), logs.mean(axis=0)).slope
    found = fit_slope(GRIDS[values], np.exp(logs))
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert (found.seeds, found.values) == (seeds, values)


def test_the_theory_of_repeated_keys_falls_by_a_third_power():
    curve = [2 / (1 + math.sqrt(r)) for r in REPETITIONS]
    assert round(curve_slope(REPETITIONS, curve), 3) == -0.323
    assert fit_slope(REPETITIONS, [curve, curve]).value == pytest.approx(
        curve_slope(REPETITIONS, curve), rel=1e-12
    )


@given(power=st.floats(-3, 3), scale=st.floats(1e-6, 1e6), values=st.sampled_from(list(GRIDS)))
def test_multiplying_by_a_power_of_x_adds_the_power_and_leaves_the_noise_alone(
    power, scale, values
):
    x, y = np.array(GRIDS[values], dtype=float), np.exp(table(3, values))
    before, after = fit_slope(x, y), fit_slope(x, scale * y * x**power)
    assert after.value == pytest.approx(before.value + power, abs=1e-9)
    assert after.standard_error == pytest.approx(before.standard_error, rel=1e-9)
    assert after.degrees_of_freedom == pytest.approx(before.degrees_of_freedom, rel=1e-9)


@given(levels=st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3), unit=st.floats(1e-3, 1e3))
def test_levels_of_the_seeds_and_the_unit_of_x_cancel(levels, unit):
    y = np.exp(table(3, 6))
    before = fit_slope(REPETITIONS, y)
    after = fit_slope([unit * r for r in REPETITIONS], y * np.array(levels)[:, None])
    assert after.value == pytest.approx(before.value, abs=1e-9)
    assert after.standard_error == pytest.approx(before.standard_error, rel=1e-9)


def test_the_order_of_seeds_and_of_values_does_not_matter():
    y = np.exp(table(4, 6))
    before, after = fit_slope(REPETITIONS, y), fit_slope(REPETITIONS[::-1], y[::-1, ::-1])
    assert after.value == pytest.approx(before.value)
    assert after.interval() == pytest.approx(before.interval())


def test_a_bend_of_the_mean_curve_is_not_noise():
    y = np.exp(table(3, 6))
    bent = y * np.exp(5 * np.cos(np.arange(6)))
    assert fit_slope(REPETITIONS, bent).standard_error == pytest.approx(
        fit_slope(REPETITIONS, y).standard_error
    )


@pytest.mark.parametrize("seeds", [2, 3, 7])
def test_at_two_values_it_is_the_t_interval_of_the_seeds_own_slopes(seeds):
    logs = table(seeds, 2)
    slopes = (logs[:, 1] - logs[:, 0]) / math.log(8)
    reference = stats.ttest_1samp(slopes, 0).confidence_interval(0.95)
    assert fit_slope([64, 512], np.exp(logs)).interval() == pytest.approx(
        (reference.low, reference.high), rel=1e-9
    )


@pytest.mark.parametrize("seeds", [3, 6])
def test_noise_that_weighs_the_same_everywhere_gives_the_pooled_variance(seeds):
    """At x = 1, 1, 4, 4 all c² are equal, which leaves the residuals of a two-way table without
    interaction.
    """
    x, log_4 = [1, 1, 4, 4], math.log(4)
    logs = table(seeds, 4)
    own_slopes = (logs[:, 2:].mean(axis=1) - logs[:, :2].mean(axis=1)) / log_4
    logs -= np.outer(own_slopes - own_slopes.mean(), log_4 * np.array([-0.5, -0.5, 0.5, 0.5]))
    residuals = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    pooled = np.square(residuals).sum() / (3 * (seeds - 1))
    found = fit_slope(x, np.exp(logs))
    assert found.standard_error == pytest.approx(math.sqrt(pooled / log_4**2 / seeds), rel=1e-9)
    assert found.degrees_of_freedom == pytest.approx(3 * (seeds - 1), rel=1e-9)


@pytest.mark.parametrize("values", [3, 4, 6])
def test_seeds_with_slopes_of_their_own_leave_one_degree_of_freedom_a_seed(values):
    x = np.array(GRIDS[values], dtype=float)
    slopes = np.array([0.5, 1.0, 3.0])
    noisy = np.outer(slopes, np.log(x)) + 1e-4 * table(3, values)
    found = fit_slope(x, np.exp(noisy))
    assert found.standard_error == pytest.approx(slopes.std(ddof=1) / math.sqrt(3), rel=1e-3)
    by_value = np.square(contrast(x)) @ np.square(np.log(x) - np.log(x).mean()) / (1 - 1 / values)
    most = 2 * _bell_mccaffrey(contrast(x))
    assert found.degrees_of_freedom == pytest.approx(
        1 / (by_value / most + (1 - by_value) / 2), rel=1e-2
    )
    assert 2 < found.degrees_of_freedom < most


def _bell_mccaffrey(c: np.ndarray) -> float:
    """(tr MP)²/tr (MP)², by matrices."""
    projection = np.eye(len(c)) - 1 / len(c)
    product = np.diag(np.square(c)) @ projection
    return float(np.trace(product) ** 2 / np.trace(product @ product))


@pytest.mark.parametrize("x", [*GRIDS.values(), [1, 1, 4, 4], list(range(1, 13))], ids=str)
def test_degrees_of_freedom_reach_those_of_bell_and_mccaffrey_and_never_pass_them(x):
    most = 2 * _bell_mccaffrey(contrast(x))
    found = [fit_slope(x, np.exp(table(3, len(x), seed))).degrees_of_freedom for seed in range(60)]
    assert max(found) == pytest.approx(most, rel=1e-9)
    assert min(found) >= 2 * (1 - 1e-9)


def test_seeds_that_agree_have_no_standard_error():
    found = fit_slope([1, 2, 4], [[1.0, 2.0, 4.0]] * 3)
    assert found.value == pytest.approx(1.0)
    assert found.standard_error == 0
    assert math.isfinite(found.degrees_of_freedom)
    assert found.interval(comparisons=12) == (found.value, found.value)


@pytest.mark.parametrize("comparisons", [1, 12, 10_000])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_the_interval_is_students_with_bonferronis_correction(confidence, comparisons):
    slope = Slope(value=0.3, standard_error=0.2, degrees_of_freedom=3.7, seeds=3, values=4)
    half = stats.t.isf((1 - confidence) / (2 * comparisons), 3.7) * 0.2
    assert slope.interval(confidence, comparisons) == pytest.approx(
        (0.3 - half, 0.3 + half), rel=1e-6
    )


def coverage(x, seeds, spread, confidence=0.95, comparisons=1, draws=2000) -> float:
    """How often the interval holds the true slope 0.4 of y = x^0.4, with noise of this spread by
    value.
    """
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(draws):
        noise = rng.standard_normal((seeds, len(x))) * spread + rng.standard_normal((seeds, 1))
        low, high = fit_slope(x, np.exp(0.4 * np.log(x) + 0.1 * noise)).interval(
            confidence, comparisons
        )
        hits += low <= 0.4 <= high
    return hits / draws


@pytest.mark.parametrize("values", [2, 3, 4, 6])
@pytest.mark.parametrize("seeds", [3, 5])
def test_nineteen_intervals_of_twenty_hold_the_truth(seeds, values):
    assert 0.93 <= coverage(GRIDS[values], seeds, 1.0) <= 0.98


@pytest.mark.parametrize("values", [3, 6])
@pytest.mark.parametrize("power", [0.5, -0.5])
def test_they_do_also_where_noise_grows_or_shrinks_with_the_root_of_x(values, power):
    """Pooled residuals would cover 91 %."""
    x = np.array(GRIDS[values], dtype=float)
    assert coverage(x, 3, x**power, draws=4000) >= 0.93


def test_they_do_also_when_twelve_must_hold_together():
    x = np.array(REPETITIONS, dtype=float)
    assert coverage(x, 3, 1.0, comparisons=12, draws=3000) >= 0.994
    assert coverage(x, 3, np.sqrt(x), comparisons=12, draws=3000) >= 0.99


def test_it_is_much_narrower_than_the_seeds_own_slopes_once_corrected_for_twelve():
    ratios = []
    for seed in range(300):
        logs = table(3, 6, seed)
        low, high = fit_slope(REPETITIONS, np.exp(logs)).interval(comparisons=12)
        slopes = logs @ contrast(REPETITIONS)
        own = 2 * stats.t.isf(0.05 / 24, 2) * slopes.std(ddof=1) / math.sqrt(3)
        ratios.append(((high - low), own))
    widths = np.mean(ratios, axis=0)
    assert widths[0] < 0.6 * widths[1]


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        ([1, 2], [[1, 2]], DimensionError, "y has 1 seeds. One seed gives no interval.*at least 2"),
        ([1, 2], [], DimensionError, "y has 0 seeds"),
        (
            [3, 3],
            [[1, 2], [1, 2]],
            OptionError,
            r"x=\[3, 3\] has fewer than two distinct values.*another x",
        ),
        ([3], [[1], [2]], OptionError, r"x=\[3\]"),
        ([], [[], []], OptionError, r"x=\[\]"),
        (
            [1, 2],
            [[1, 2], [1]],
            DimensionError,
            r"y\[1\] has 1 values, but x has 2.*every seed at every x",
        ),
        ([1, 2], [[1, 2, 3], [1, 2, 3]], DimensionError, r"y\[0\] has 3 values, but x has 2"),
        (
            [1, 2],
            [[1, 2], [1, 0]],
            NonFiniteError,
            r"y\[1\]\[1\]=0 has no finite logarithm.*leave this x out",
        ),
        ([1, 2], [[1, 2], [-1.5, 2]], NonFiniteError, r"y\[1\]\[0\]=-1.5"),
        ([1, 2], [[1, math.nan], [1, 2]], NonFiniteError, r"y\[0\]\[1\]=nan"),
        ([1, 2], [[1, math.inf], [1, 2]], NonFiniteError, r"y\[0\]\[1\]=inf"),
        ([0, 2], [[1, 2], [1, 2]], NonFiniteError, r"x\[0\]=0"),
        ([math.nan, 2], [[1, 2], [1, 2]], NonFiniteError, r"x\[0\]=nan"),
    ],
)
def test_measurements_without_a_slope_are_named_with_the_fix(x, y, error, message):
    with pytest.raises(error, match=message):
        fit_slope(x, y)


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        ([1, 2], [1, 2, 3], DimensionError, "y has 3 values, but x has 2"),
        ([1, 2], [1, -2], NonFiniteError, r"y\[1\]=-2"),
        ([2, 2], [1, 2], OptionError, "two distinct"),
    ],
)
def test_curves_without_a_slope_are_named_with_the_fix(x, y, error, message):
    with pytest.raises(error, match=message):
        curve_slope(x, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 0.0}, "confidence=0.0.*between 0 and 1"),
        ({"confidence": 1.0}, "confidence=1.0"),
        ({"confidence": 95}, "confidence=95"),
        ({"confidence": math.nan}, "confidence=nan"),
        ({"comparisons": 0}, "comparisons=0.*at least 1"),
    ],
)
def test_wrong_levels_are_named_with_the_fix(options, message):
    with pytest.raises(OptionError, match=message):
        Slope(value=0, standard_error=0, degrees_of_freedom=2, seeds=3, values=2).interval(
            **options
        )
