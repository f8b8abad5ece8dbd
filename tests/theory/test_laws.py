"""Fitted laws: their numbers by hand, their ranges, and what they refuse."""

import math

import pytest

from mupscale.errors import DimensionError, NotDerivedError, UnknownNameError
from mupscale.theory.laws import LAWS, short


@pytest.mark.parametrize(
    ("ratio", "tau"), [(1, 1.084), (20, 0.22356), (200, 0.06644), (1000, 0.028446)]
)
def test_the_time_scale_of_decay_by_hand(ratio, tau):
    """By logarithms: ln 1.084 = 0.080658, and 0.527 of ln ratio below it."""
    assert LAWS["decay"].at(TPP=ratio) == pytest.approx(tau, rel=1e-4)
    assert math.log(tau) == pytest.approx(0.080658 - 0.527 * math.log(ratio), abs=1e-4)


@pytest.mark.parametrize(("tokens", "batch"), [(1, 62.669), (1e9, 175_417), (1e10, 423_693)])
def test_the_best_batch_by_hand(tokens, batch):
    """0.0306 sequences of 2,048 tokens are 62.669 tokens."""
    assert LAWS["batch"].at(D=tokens) == pytest.approx(batch, rel=1e-4)


def test_the_critical_batch_has_no_constant():
    with pytest.raises(NotDerivedError, match=r"only ∝ D\^0.462 is known, no constant"):
        LAWS["critical-batch"].at(D=1e10)


@pytest.mark.parametrize("ratio", [0, -1.0, math.nan, math.inf])
def test_a_size_must_be_positive(ratio):
    with pytest.raises(DimensionError, match="must be a positive number"):
        LAWS["decay"].at(TPP=ratio)


def test_a_size_that_the_law_does_not_take_is_named():
    with pytest.raises(UnknownNameError, match="unknown symbol 'D'"):
        LAWS["batch"].at(TPP=20)


@pytest.mark.parametrize(
    ("parameters", "ratio", "said"),
    [
        (111e6, 20, None),
        (3.3e9, 1280, None),
        (110e6, 20, "111M to 3.3B parameters; this run has 110M"),
        (3.4e9, 20, "this run has 3.4B"),
        (1e9, 19.9, "20 to 1,280 tokens per parameter; this run has 19.9"),
        (1e9, 1281, "this run has 1,281"),
        (7.5e9, 2, "parameters and 20 to 1,280 tokens per parameter; this run has 7.5B and 2"),
    ],
)
def test_a_run_beyond_the_range_is_named(parameters, ratio, said):
    for law in LAWS.values():
        found = law.outside(parameters=parameters, tokens_per_parameter=ratio)
        assert (found is None) == (said is None)
        assert said is None or said in (found or "")


def test_every_law_has_a_source_and_a_range():
    for law in LAWS.values():
        assert "2505.13738" in law.source
        assert law.fitted["parameters"] == (111e6, 3.3e9)
        assert law.fitted["tokens_per_parameter"] == (20, 1280)


def test_sizes_are_short():
    assert [short(x) for x in (19.9, 999, 1e6, 30.5e9)] == ["19.9", "999", "1M", "30B"]
