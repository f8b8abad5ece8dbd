"""What two rules give up at the proxy's optimum: skewed regrets in one interval."""

import math
from types import SimpleNamespace

import pytest

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import _given_up


def rule(*losses: Estimate):
    regrets = [SimpleNamespace(loss=loss) for loss in losses]
    return SimpleNamespace(members=losses, regrets=regrets)


def test_the_lower_side_of_one_rule_adds_to_the_upper_side_of_the_other():
    own = Estimate(3.0, 2.0, 4.0, 6)
    found = _given_up(own, rule(Estimate(0.5, 0.4, 1.1)), rule(Estimate(0.2, 0.15, 0.6)))
    assert found.value == pytest.approx(3.0 + 0.5 - 0.2)
    assert found.value - found.low == pytest.approx(math.hypot(1.0, 0.1, 0.4))
    assert found.high - found.value == pytest.approx(math.hypot(1.0, 0.6, 0.05))
    assert found.degrees_of_freedom == 6


def test_regrets_are_averaged_over_the_members():
    own, loss = Estimate(0.0, 0.0, 0.0, 6), Estimate(0.4, 0.2, 1.0)
    found = _given_up(own, rule(loss, loss), rule(Estimate(0.0, 0.0, 0.0), Estimate(0.0, 0.0, 0.0)))
    assert found.value == pytest.approx(0.4)
    assert found.value - found.low == pytest.approx(0.2 / math.sqrt(2))


def test_a_regret_without_an_end_leaves_the_interval_open():
    own = Estimate(0.0, -1.0, 1.0, 6)
    found = _given_up(own, rule(Estimate(0.5, 0.0, math.inf)), rule(Estimate(0.5, 0.4, 0.6)))
    assert (found.low, found.high) == (-math.inf, math.inf)
