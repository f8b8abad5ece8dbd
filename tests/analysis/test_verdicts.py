"""A verdict follows from where the interval lies, and the seeds that it asks for settle it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mupscale.analysis import Estimate, Slope, fit_slope, judge_flatness
from mupscale.analysis.verdicts import judge_drift
from mupscale.errors import OptionError

X = np.array([1, 2, 3, 4, 6, 12], dtype=float)


def slope(value: float, half_width: float = 0.0, degrees_of_freedom: float = 6.0) -> Slope:
    """A slope whose 95 % interval reaches `half_width` to each side."""
    unit = Slope(0.0, 1.0, degrees_of_freedom, seeds=3, values=6)
    return replace(unit, value=value, standard_error=half_width / unit.interval()[1])


@pytest.mark.parametrize(
    ("value", "half_width", "two_sided", "one_sided"),
    [
        (0.0, 0.09, "pass", "pass"),
        (0.05, 0.04, "pass", "pass"),
        (0.05, 0.06, "inconclusive", "inconclusive"),
        (0.0, 0.11, "inconclusive", "inconclusive"),
        (0.2, 0.09, "fail", "fail"),
        (0.2, 0.11, "inconclusive", "inconclusive"),
        (-0.05, 0.06, "inconclusive", "pass"),
        (-0.2, 0.09, "fail", "pass"),
        (-0.2, 0.31, "inconclusive", "inconclusive"),
    ],
)
def test_the_verdict_is_where_the_interval_lies(value, half_width, two_sided, one_sided):
    both = judge_flatness(slope(value, half_width))
    growth = judge_flatness(slope(value, half_width), one_sided=True)
    assert (both.verdict, growth.verdict) == (two_sided, one_sided)
    assert (both.low, both.high) == (growth.low, growth.high) == slope(value, half_width).interval()
    assert both.high - both.low == pytest.approx(2 * half_width)


@pytest.mark.parametrize("one_sided", [False, True])
def test_a_slope_without_noise_is_always_settled_and_the_tolerance_itself_passes(one_sided):
    for value, verdict in [
        (0.0, "pass"),
        (0.1, "pass"),
        (math.nextafter(0.1, 1), "fail"),
        (5.0, "fail"),
    ]:
        found = judge_flatness(slope(value), tolerance=0.1, one_sided=one_sided)
        assert (found.verdict, found.more_seeds) == (verdict, 0)
    assert judge_flatness(slope(-0.1), tolerance=0.1).verdict == "pass"


def test_an_interval_that_ends_on_the_tolerance_is_not_outside():
    found = slope(0.3, 0.2)
    low, high = found.interval()
    assert judge_flatness(found, tolerance=high).verdict == "pass"
    assert judge_flatness(found, tolerance=math.nextafter(high, 0)).verdict == "inconclusive"
    assert judge_flatness(found, tolerance=low).verdict == "inconclusive"
    assert judge_flatness(found, tolerance=math.nextafter(low, 0)).verdict == "fail"


@given(value=st.floats(-0.3, 0.3), half_width=st.floats(0.001, 0.3), comparisons=st.integers(1, 20))
def test_two_sided_verdicts_do_not_know_up_from_down(value, half_width, comparisons):
    up = judge_flatness(slope(value, half_width), comparisons=comparisons)
    down = judge_flatness(slope(-value, half_width), comparisons=comparisons)
    assert (up.verdict, up.more_seeds) == (down.verdict, down.more_seeds)


@given(value=st.floats(-0.3, 0.3), half_width=st.floats(0.001, 0.3), scale=st.floats(0.1, 10))
def test_only_the_ratio_to_the_tolerance_matters(value, half_width, scale):
    one = judge_flatness(slope(value, half_width), tolerance=0.1)
    other = judge_flatness(slope(scale * value, scale * half_width), tolerance=scale * 0.1)
    near = min(abs(abs(end) - 0.1) for end in (one.low, one.high))
    if near > 1e-9:
        assert one.verdict == other.verdict


@given(value=st.floats(-0.3, 0.3), half_width=st.floats(0.001, 0.3))
def test_more_comparisons_never_settle_what_one_does_not(value, half_width):
    one, many = (judge_flatness(slope(value, half_width), comparisons=n) for n in (1, 12))
    assert many.verdict in (one.verdict, "inconclusive")
    assert many.low < one.low < one.high < many.high


@given(value=st.floats(-0.3, 0.3), half_width=st.floats(0.001, 0.5), one_sided=st.booleans())
def test_seeds_are_asked_for_only_if_the_verdict_is_open(value, half_width, one_sided):
    found = judge_flatness(slope(value, half_width), one_sided=one_sided)
    if found.verdict == "inconclusive":
        assert found.more_seeds is None or 1 <= found.more_seeds <= 100
    else:
        assert found.more_seeds == 0


def test_noisier_and_nearer_slopes_ask_for_more_seeds():
    noisier = [judge_flatness(slope(0.0, half)).more_seeds for half in (0.12, 0.2, 0.3)]
    nearer = [judge_flatness(slope(value, 0.12)).more_seeds for value in (0.0, 0.04, 0.06)]
    assert noisier == sorted(set(noisier))
    assert nearer == sorted(set(nearer))


@pytest.mark.parametrize(
    ("value", "half_width"), [(0.1, 0.05), (-0.1, 0.05), (0.099, 0.1), (0.0, 2.0)]
)
def test_a_slope_on_the_tolerance_or_lost_in_noise_asks_for_no_number_of_seeds(value, half_width):
    found = judge_flatness(slope(value, half_width))
    assert (found.verdict, found.more_seeds) == ("inconclusive", None)


def test_the_far_side_of_the_tolerance_does_not_count_when_only_growth_is_a_fault():
    falling = slope(-0.09, 0.25)
    assert judge_flatness(falling).more_seeds is None
    assert 1 <= judge_flatness(falling, one_sided=True).more_seeds <= 10


@pytest.mark.parametrize("half_width", [1.2, 1.5, 2.0])
def test_growth_far_beyond_the_tolerance_takes_as_many_seeds_on_one_side_as_on_two(half_width):
    """At a tolerance so narrow, the lower end of it must not count against a failure."""
    both, growth = (
        judge_flatness(slope(1.0, half_width), tolerance=0.01, one_sided=one_sided)
        for one_sided in (False, True)
    )
    assert both.more_seeds == growth.more_seeds
    assert growth.more_seeds > 0


@pytest.mark.parametrize("true_slope", [0.0, 0.04, 0.19])
@pytest.mark.parametrize("one_sided", [False, True])
def test_the_seeds_asked_for_settle_most_draws(true_slope, one_sided):
    """Where the first three seeds happen to show the truth: with their estimate in the right
    place.
    """
    rng = np.random.default_rng(3)

    def draw(seeds: int) -> np.ndarray:
        return 0.15 * rng.standard_normal((seeds, len(X))) + true_slope * np.log(X)

    known = Slope(true_slope, *_typical(draw), seeds=3, values=len(X))
    found = judge_flatness(known, one_sided=one_sided)
    assert found.verdict == "inconclusive"
    assert found.more_seeds is not None
    seeds = 3 + found.more_seeds
    later = [
        judge_flatness(fit_slope(X, np.exp(draw(seeds))), one_sided=one_sided).verdict
        for _ in range(300)
    ]
    assert 0.7 < np.mean([verdict != "inconclusive" for verdict in later]) < 0.98
    assert later.count("fail" if true_slope > 0.1 else "pass") > 0.7 * len(later)


def _typical(draw) -> tuple[float, float]:
    """Root mean square standard error and mean degrees of freedom at three seeds."""
    fits = [fit_slope(X, np.exp(draw(3))) for _ in range(300)]
    square = np.mean([fit.standard_error**2 for fit in fits])
    return math.sqrt(square), float(np.mean([fit.degrees_of_freedom for fit in fits]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": 0}, "tolerance=0 must be positive"),
        ({"tolerance": -0.1}, "tolerance=-0.1"),
        ({"tolerance": math.nan}, "tolerance=nan"),
        ({"tolerance": math.inf}, "tolerance=inf"),
        ({"confidence": 1.5}, "confidence=1.5"),
        ({"comparisons": 0}, "comparisons=0"),
    ],
)
def test_wrong_options_are_named_with_the_fix(options, message):
    with pytest.raises(OptionError, match=message):
        judge_flatness(slope(0.0, 0.1), **options)


class TestDrift:
    """ "Still" is an equivalence statement: the interval bounds the movement over the family."""

    @pytest.mark.parametrize(
        ("low", "high", "movement"),
        [
            (-0.1, 0.1, "still"),
            (0.02, 0.1, "still"),  # zero is excluded, but the movement is bounded
            (-0.1, 0.3, "no significant drift"),
            (0.02, 0.3, "moves"),
            (-0.3, -0.02, "moves"),
            (-0.1, math.inf, "unknown"),
        ],
    )
    def test_the_bound_comes_before_zero(self, low, high, movement):
        judged = judge_drift(Estimate((low + high) / 2, low, high), doublings=3)
        assert judged.movement == movement
        assert judged.sentence.startswith(f"{movement}: ")

    def test_the_bound_is_half_an_octave_over_the_whole_family(self):
        drift = Estimate(0.0, -0.1, 0.1)
        assert judge_drift(drift, 4.99).movement == "still"
        assert judge_drift(drift, 5.01).movement == "no significant drift"

    def test_every_bounded_verdict_states_the_definition(self):
        for high in (0.1, 0.3):
            for low in (-0.1, 0.05):
                sentence = judge_drift(Estimate(0.08, low, high), 3).sentence
                assert f"up to {3 * high:.2f} octaves" in sentence
                assert "(still means less than 0.5)" in sentence

    def test_no_drift_is_unknown(self):
        assert judge_drift(None, 3).movement == "unknown"
