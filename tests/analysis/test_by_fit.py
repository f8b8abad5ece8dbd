"""Sums of cells by three fits, against the paired t-test."""

import numpy as np
import pytest
from scipy import stats

from mupscale.analysis.by_fit import seed_optima
from mupscale.analysis.fits import FITS, lowest_points
from mupscale.analysis.measurements import Measurement, Member

RATES = np.linspace(-8, -4, 9)
SMALL, LARGE = (Member(label=f"r = {r}", position=r) for r in (1, 4))


def runs(rule, member, optima, noise=0.002, rates=RATES):
    random = np.random.default_rng(3)
    return [
        Measurement(
            rule=rule, member=member, seed=seed, params={"lr": 2.0**x},
            loss=2 + 0.1 * (x - at) ** 2 + 0.01 * seed + noise * random.standard_normal(),
        )
        for seed, at in enumerate(optima)
        for x in rates
    ]  # fmt: skip


def losses(of):
    return [[run.loss for run in of if run.seed == seed] for seed in sorted({r.seed for r in of})]


def test_a_difference_is_the_paired_t_test_of_each_fits_optima():
    small = runs("a", SMALL, (-6.0, -5.8, -6.3))
    large = runs("a", LARGE, (-6.4, -6.1, -6.9))
    found = seed_optima(small + large).contrast({("a", LARGE): 1, ("a", SMALL): -1})
    assert list(found) == list(FITS)
    for fit, one in found.items():
        own, other = (
            [point.log2_rate for point in lowest_points(fit, RATES, losses(of))]
            for of in (large, small)
        )
        reference = stats.ttest_rel(own, other).confidence_interval(0.95)
        assert (one.low, one.high) == pytest.approx((reference.low, reference.high), abs=1e-9)
        assert one.degrees_of_freedom == 2


def test_a_cell_that_a_fit_does_not_locate_leaves_the_sum_without_a_value():
    """The second seed's curve is lowest beyond the last rate."""
    small, large = runs("a", SMALL, (-6.0, -5.8)), runs("a", LARGE, (-6.0, -3.0))
    optima = seed_optima(small + large)
    assert optima.located("cubic", ("a", LARGE)) is None
    assert optima.contrast({("a", LARGE): 1, ("a", SMALL): -1})["cubic"] is None
    assert optima.located("cubic", ("a", SMALL)).by_seed[0] == pytest.approx(-6, abs=0.1)


def test_the_same_runs_under_two_rules_cancel_and_are_fitted_once(monkeypatch):
    calls = []

    def counted(fit, *rest):
        calls.append(fit)
        return lowest_points(fit, *rest)

    monkeypatch.setattr("mupscale.analysis.by_fit.lowest_points", counted)
    both = runs("a", SMALL, (-6.0, -5.8)) + runs("b", SMALL, (-6.0, -5.8))
    found = seed_optima(both).contrast({("a", SMALL): 1, ("b", SMALL): -1})
    assert all((one.low, one.high) == (0, 0) for one in found.values())
    assert calls == list(FITS)


def test_diverged_runs_are_left_out_and_one_seed_has_no_interval():
    own = runs("a", SMALL, (-6.0,))
    broken = [
        run if run.log2("lr") < -4.2 else Measurement(**{**vars(run), "loss": None}) for run in own
    ]
    found = seed_optima(broken).contrast({("a", SMALL): 1.0})
    for one in found.values():
        assert one.value == pytest.approx(-6, abs=0.1)
        assert not one.bounded
