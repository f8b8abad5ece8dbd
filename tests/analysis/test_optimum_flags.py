"""Which runs are no part of a curve, and what that says about its optimum."""

import numpy as np
import pytest

from mupscale.analysis.optima import fit_optimum

GRID = np.linspace(-8, -4, 9)


def bowl(x):
    return 2 + 0.05 * (x + 6) ** 2


@pytest.mark.parametrize(
    ("diverged", "flagged"),
    [
        ([-8.0, -7.5], True),
        ([-4.5, -4.0], True),
        ([-8.0, -4.0], False),
        ([], False),
    ],
)
def test_diverged_runs_matter_if_they_lie_on_one_side_of_the_optimum(diverged, flagged):
    found = fit_optimum(GRID, [None if x in diverged else float(bowl(x)) for x in GRID])
    assert ("diverged" in found.flags) is flagged


@pytest.mark.parametrize(
    ("octaves", "times", "exploded"), [(1.0, 14, False), (1.0, 16, True), (0.5, 100, False)]
)
def test_a_run_has_exploded_if_it_rises_15_times_as_steeply_0_75_octaves_away(
    octaves, times, exploded
):
    losses = bowl(GRID)
    losses[octaves - 6 == GRID] = 2 + times * 0.05 * octaves**2
    assert ("diverged" in fit_optimum(GRID, losses).flags) is exploded
