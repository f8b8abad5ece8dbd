"""The minimum of a surface: against closed forms, against scipy, and against surfaces whose minimum
is known.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from mupscale.analysis.surfaces import fit_surface
from mupscale.errors import DimensionError, OptionError

GRID = list(itertools.product(np.linspace(-8, -4, 7), np.linspace(-6, 2, 7)))
HESSIAN = np.array([[0.08, 0.03], [0.03, 0.03]])


def surface(points, at=(-6.1, -2.2), lean=0.0):
    offsets = np.asarray(points) - np.asarray(at)
    quadratic = np.einsum("ni,ij,nj->n", offsets, HESSIAN, offsets) / 2
    return 2 + quadratic + lean * HESSIAN[0, 0] / 2 * offsets[:, 0] ** 3


@settings(max_examples=25)
@given(st.floats(-7, -5), st.floats(-4, 0))
def test_without_noise_the_minimum_is_found(x, y):
    found = fit_surface(GRID, list(surface(GRID, (x, y))))
    assert [one.value for one in found.found.values()] == pytest.approx([x, y], abs=1e-4)
    assert np.array(found.hessian) == pytest.approx(HESSIAN, abs=1e-5)
    assert found.loss == pytest.approx(2.0, abs=1e-5)


def test_levels_of_seeds_cancel():
    losses = [*surface(GRID), *(surface(GRID) + 0.5)]
    found = fit_surface([*GRID, *GRID], losses, [1] * len(GRID) + [2] * len(GRID))
    assert found.found["lr"].value == pytest.approx(-6.1, abs=1e-4)
    assert found.seeds == 2


def test_a_surface_that_leans_has_its_minimum_where_scipy_finds_it():
    def loss(z):
        return float(surface([z], lean=0.15)[0])

    random = np.random.default_rng(0)
    points = [(random.uniform(-8, -4), random.uniform(-6, 2)) for _ in range(200)]
    found = fit_surface(points, list(surface(points, lean=0.15)))
    expected = minimize(loss, [-6, -2]).x
    assert [one.value for one in found.found.values()] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("count", [60, 200])
def test_the_intervals_hold_the_minimum(count):
    """Random points, a recorded lean, noise of 0.012 nats, and a seed whose surface is tilted as
    recorded.
    """
    random = np.random.default_rng(count)
    tilt = np.linalg.cholesky(0.1**2 * HESSIAN[0, 0] * np.linalg.inv(HESSIAN))
    held, repetitions = np.zeros(2), 100
    for _ in range(repetitions):
        truth = np.array([random.uniform(-6.5, -5.5), random.uniform(-3, -1)])
        points = np.column_stack([random.uniform(-8, -4, count), random.uniform(-6, 2, count)])
        losses = surface(points, truth + tilt @ random.standard_normal(2), 0.1) + random.normal(
            0, 0.012, count
        )
        found = fit_surface([tuple(point) for point in points], list(losses))
        held += [not one.excludes(at) for one, at in zip(found.found.values(), truth, strict=True)]
    assert np.all(held / repetitions > 0.89)


def test_decay_that_undoes_rate_makes_the_two_go_against_each_other():
    """If only lr + wd (in log2) mattered, what is known of one depends on the other."""
    random = np.random.default_rng(1)
    points = [(random.uniform(-8, -4), random.uniform(-6, 2)) for _ in range(150)]
    losses = [
        2 + 0.05 * (x + y + 8) ** 2 + 0.002 * (x + 6) ** 2 + random.normal(0, 0.002)
        for x, y in points
    ]
    assert fit_surface(points, losses).correlation < -0.9


def test_the_region_surrounds_the_minimum_and_reaches_further_than_each_interval():
    random = np.random.default_rng(2)
    points = [(random.uniform(-8, -4), random.uniform(-6, 2)) for _ in range(150)]
    found = fit_surface(points, [loss + random.normal(0, 0.005) for loss in surface(points)])
    outline = np.array(found.region)
    for axis, one in enumerate(found.found.values()):
        assert outline[:, axis].min() < one.low < one.value < one.high < outline[:, axis].max()


class TestFlags:
    def test_few_points_give_the_lowest(self):
        found = fit_surface(GRID[:8], [3.0, 2.0, 2.5, 3, 3, 3, 3, 3])
        assert found.flags == ("few",)
        assert (found.found["lr"].value, found.found["weight_decay"].value) == GRID[1]
        assert not found.found["lr"].bounded

    def test_a_minimum_beyond_what_was_tried(self):
        assert "edge" in fit_surface(GRID, list(surface(GRID, (-1.0, -2.0)))).flags

    @pytest.mark.parametrize("at", [(-3.9, -2.0), (-8.1, -2.0), (-6.0, 2.1), (-6.0, -6.1)])
    def test_each_axis_has_an_edge_of_its_own(self, at):
        """lr ends at -4, where decay, up to 2, still has room; and so at the lower ends."""
        found = fit_surface(GRID, list(surface(GRID, at)))
        assert "edge" in found.flags
        assert [one.value for one in found.found.values()] == pytest.approx(at, abs=1e-3)

    def test_no_fit_is_trusted_far_outside_of_its_own_axis(self):
        """A quarter of the range of lr is 1 octave; that of decay, 2, would still allow -2.5."""
        near = fit_surface(GRID, list(surface(GRID, (-3.1, -2.0))))
        assert near.found["lr"].value == pytest.approx(-3.1, abs=1e-3)
        far = fit_surface(GRID, list(surface(GRID, (-2.5, -2.0))))
        assert -8 <= far.found["lr"].value <= -4
        assert not far.found["lr"].bounded

    def test_no_minimum_at_all(self):
        offsets = np.asarray(GRID) - [-6, -2]
        assert {"saddle", "edge"} & set(
            fit_surface(GRID, list(2 + offsets[:, 0] ** 2 - offsets[:, 1] ** 2)).flags
        )

    def test_nothing_but_noise_sets_no_bounds(self):
        random = np.random.default_rng(0)
        found = [
            fit_surface(GRID, list(2 + random.normal(0, 0.01, len(GRID)))).flags for _ in range(20)
        ]
        assert sum(bool({"saddle", "edge", "flat"} & set(flags)) for flags in found) >= 18

    def test_diverged_runs_are_left_out_and_told(self):
        losses = [
            None if x > -5.5 else loss
            for (x, _), loss in zip(GRID, surface(GRID, (-6.6, -2)), strict=True)
        ]
        found = fit_surface(GRID, losses)
        assert "diverged" in found.flags
        assert found.found["lr"].value == pytest.approx(-6.6, abs=0.01)

    def test_no_run_that_ended(self):
        assert fit_surface([(0.0, 0.0)], [None]) is None
        assert fit_surface([], []) is None


def test_mistakes():
    with pytest.raises(DimensionError, match="1 points have 2 losses"):
        fit_surface([(0.0, 0.0)], [1.0, 2.0])
    with pytest.raises(OptionError, match="log2"):
        fit_surface([(math.nan, 0.0)], [1.0])
