"""Where the adaptive search looks while it knows little."""

import pytest

from mupscale.studies.adaptive import Observation, next_points


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (-7.5, [-7.5, -6.5, -5.5]),
        (-4.5, [-4.5, -5.5, -6.5]),
        (-6.0, [-6.0, -7.0, -5.0]),
    ],
)
def test_the_first_points_lie_around_the_start_and_inside_the_range(start, expected):
    points = next_points([], (-8, -4), [1, 2], 3, 0.25, start=start)
    assert points == [(x, 1) for x in expected]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({-5.0: 3.0, -4.0: 2.0}, [-3.0, -2.0]),
        ({-5.0: 2.0, -4.0: 3.0}, [-6.0, -7.0]),
        ({-4.0: 2.0}, [-5.0, -3.0, -6.0, -2.0]),
        ({-1.0: 3.0, -0.5: 2.0}, [0.0]),
    ],
)
def test_beyond_the_lowest_loss_there_is_a_neighbour_before_anything_is_fitted(losses, expected):
    """One spacing away and two, nearer ones first, up to the end of the range."""
    seen = [Observation(x, loss, seed=1) for x, loss in losses.items()]
    assert next_points(seen, (-8, 0), [1], 4, 0.25) == [(x, 1) for x in expected]
