import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import RuleTransfer, StudyAnalysis
from mupscale.analysis.measurements import Member
from mupscale.recipes.predicting import extrapolated, predicted
from mupscale.recipes.shapes import ModelShape

SHAPE = ModelShape(
    "GPT",
    width=512,
    depth=4,
    r=16,
    heads=16,
    kv_heads=1,
    head_dim=32,
    inner=512,
    d_ff=2048,
    vocabulary=256,
    gated=False,
    parameters=1_000_000,
    active_parameters=1_000_000,
)


def known(values):
    return [Estimate(float(x), float(x) - 0.1, float(x) + 0.1, 9) for x in values]


def test_the_interval_of_one_more_member_is_students_prediction_interval():
    values = [-6.3, -6.0, -5.9, -6.1]
    found = predicted(known(values))
    scale = np.std(values, ddof=1) * math.sqrt(1 + 1 / 4)
    low, high = stats.t.interval(0.95, df=3, loc=np.mean(values), scale=scale)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)


@pytest.mark.parametrize("members", [2, 3, 6])
def test_it_holds_the_next_member_in_95_of_100_families(members):
    rng = np.random.default_rng(0)
    families = rng.normal(-6, 0.3, size=(2000, members + 1))
    inside = [
        found.low <= row[-1] <= found.high
        for row in families
        for found in [predicted(known(row[:-1]))]
    ]
    assert 0.935 <= np.mean(inside) <= 0.965


def test_it_is_never_narrower_than_the_interval_of_the_mean():
    mean = Estimate(-6.0, -6.4, -5.5, 2)
    found = predicted(known([-6.001, -6.0, -5.999]), mean)
    assert found.value == -6.0
    assert found.low <= mean.low
    assert found.high >= mean.high


def test_a_single_member_has_its_own_interval():
    assert predicted(known([-6.0]), Estimate(-6.0, -9.0, -3.0)) == known([-6.0])[0]


def family(drift, positions=(1, 4, 16)):
    members = tuple(Member(label=f"r = {p}", position=p) for p in positions)
    moved = RuleTransfer("mup", members, Estimate(-6.0, -6.1, -5.9), None, 0.01, 0.0, drift, ())
    return StudyAnalysis("r", ("lr",), (), (moved,), (), {}, 0.95), moved


def test_a_drift_told_from_zero_is_followed_to_the_target():
    analysis, moved = family(Estimate(-0.5, -0.6, -0.4))
    found = extrapolated(analysis, moved, SHAPE)
    assert found is not None
    assert found.centre == pytest.approx(4)  # the geometric mean of 1, 4 and 16
    assert found.value == pytest.approx(-6.0 - 0.5 * 2)  # two doublings from 4 to 16
    assert (found.low, found.high) == pytest.approx((-7.2, -6.8))


def test_a_drift_that_may_be_zero_is_not_followed():
    analysis, moved = family(Estimate(-0.5, -1.1, 0.1))
    assert extrapolated(analysis, moved, SHAPE) is None
    assert (
        extrapolated(
            replace(analysis, axis="d_ff"), replace(moved, drift=Estimate(1, 0.5, 2)), SHAPE
        )
        is None
    )


def test_optima_that_agree_by_luck_do_not_make_it_certain():
    found = predicted(known([-6.0, -6.0]))
    assert (found.low, found.high) == pytest.approx((-6.1, -5.9))
