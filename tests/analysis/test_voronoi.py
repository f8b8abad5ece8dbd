"""A Voronoi cell is all that lies nearest to its point, whatever the points."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import Voronoi

from mupscale.analysis.voronoi import cells, within
from mupscale.errors import DimensionError, NonFiniteError, OptionError

BOX = ((-2.0, 3.0), (-1.0, 1.0))
AREA = 10.0

anywhere = st.tuples(st.floats(*BOX[0]), st.floats(*BOX[1]))
# Coarse numbers make duplicates, lines and regular grids likely.
on_a_lattice = st.tuples(
    st.integers(-2, 3).map(float), st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])
)
clouds = st.lists(anywhere | on_a_lattice, min_size=1, max_size=30) | st.lists(
    on_a_lattice, min_size=1, max_size=40
)


def area(polygon: np.ndarray) -> float:
    """Positive if the vertices go counterclockwise."""
    x, y = polygon.T
    return float(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1)) / 2)


def outside_by(polygon: np.ndarray, place: np.ndarray) -> float:
    """How far the place lies beyond an edge of the convex polygon; not above 0 inside."""
    edges = np.roll(polygon, -1, axis=0) - polygon
    lengths = np.hypot(*edges.T)
    x, y = (place - polygon)[lengths > 0].T
    along = edges[lengths > 0] / lengths[lengths > 0, None]
    return float(np.max(along[:, 1] * x - along[:, 0] * y))


@given(clouds)
def test_the_cells_of_distinct_points_fill_the_box_and_each_holds_its_point(points):
    distinct = list(dict.fromkeys((x + 0.0, y + 0.0) for x, y in points))
    polygons = cells(distinct, BOX)
    assert sum(area(polygon) for polygon in polygons) == pytest.approx(AREA, abs=1e-8)
    for polygon, place in zip(polygons, distinct, strict=True):
        assert outside_by(polygon, np.array(place)) < 1e-9


@given(clouds, st.lists(anywhere, min_size=1, max_size=20))
def test_a_location_lies_in_the_cell_of_its_nearest_point(points, locations):
    polygons = cells(points, BOX)
    for location in np.array(locations):
        nearest = np.argmin(np.hypot(*(np.array(points) - location).T))
        assert outside_by(polygons[nearest], location) < 1e-9


@given(clouds)
def test_vertices_stay_in_the_box_and_go_counterclockwise(points):
    for polygon in cells(points, BOX):
        assert area(polygon) >= -1e-12
        for values, (low, high) in zip(polygon.T, BOX, strict=True):
            assert low - 1e-9 <= values.min() <= values.max() <= high + 1e-9


@given(st.lists(on_a_lattice, min_size=1, max_size=20))
def test_points_at_the_same_place_share_one_cell(points):
    for first, second in zip(
        cells(points, BOX), cells([*points, *points], BOX)[len(points) :], strict=True
    ):
        np.testing.assert_array_equal(first, second)


@given(
    st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=20, unique=True)
)
def test_points_outside_the_box_own_their_part_of_it_or_nothing(points):
    assert sum(area(polygon) for polygon in cells(points, BOX) if len(polygon)) == pytest.approx(
        AREA, abs=1e-8
    )


def test_cells_equal_those_of_qhull_on_points_and_their_mirror_images():
    """The mirror images in the four sides of the box make Qhull's unbounded cells end at the
    box.
    """
    points = np.random.default_rng(0).uniform((-2, -1), (3, 1), (300, 2))
    images = [points]
    for axis, limits in enumerate(BOX):
        for limit in limits:
            image = points.copy()
            image[:, axis] = 2 * limit - image[:, axis]
            images.append(image)
    reference = Voronoi(np.vstack(images))
    for index, polygon in enumerate(cells(points, BOX)):
        expected = reference.vertices[reference.regions[reference.point_region[index]]]
        assert len(polygon) == len(expected)
        assert np.hypot(*(polygon[:, None] - expected).T).min(axis=0) == pytest.approx(0, abs=1e-9)


def test_a_regular_grid_is_cut_into_equal_rectangles():
    grid = [(x, y) for x in np.arange(-1.5, 3) for y in (-0.75, -0.25, 0.25, 0.75)]
    assert {(len(polygon), round(area(polygon), 12)) for polygon in cells(grid, BOX)} == {(4, 0.5)}


@pytest.mark.parametrize("slope", [0.0, 0.4, np.inf])
def test_points_in_a_line_are_parted_by_parallel_bisectors(slope):
    steps = np.linspace(-1, 1, 500)
    points = np.column_stack([0 * steps, steps] if slope == np.inf else [steps, slope * steps])
    polygons = cells(points, BOX)
    assert sum(map(area, polygons)) == pytest.approx(AREA)
    assert all(len(polygon) <= 6 for polygon in polygons)


def test_tight_clusters_and_circles_that_need_far_points_come_out_whole():
    rng = np.random.default_rng(1)
    turn = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    circle = np.column_stack([np.cos(turn), np.sin(turn)]) * 0.9
    cluster = rng.normal((1.5, 0), 1e-7, (400, 2))
    polygons = cells(np.vstack([circle, cluster]), BOX)
    assert sum(map(area, polygons)) == pytest.approx(AREA)


def test_without_points_there_are_no_cells():
    assert cells([], BOX) == []


@pytest.mark.parametrize(
    ("points", "box", "error", "message"),
    [
        ([1.0, 2.0], BOX, DimensionError, r"shape \(2,\)"),
        ([(1.0, 2.0, 3.0)], BOX, DimensionError, r"shape \(1, 3\)"),
        ([(float("nan"), 0.0)], BOX, NonFiniteError, "not finite"),
        ([(0.0, 0.0)], ((0, float("inf")), (0, 1)), NonFiniteError, "not finite"),
        ([(0.0, 0.0)], ((0, 0), (0, 1)), OptionError, "from 0 to 0"),
    ],
)
def test_what_cannot_be_drawn_is_said(points, box, error, message):
    with pytest.raises(error, match=message):
        cells(points, box)


@given(clouds)
def test_what_lies_within_an_outline_adds_up_to_it_whichever_way_round_it_is_given(points):
    """A parallelogram inside the box, as a search over other coordinates is."""
    outline = [(-1.0, -0.5), (1.0, 0.0), (2.0, 0.8), (0.0, 0.3)]
    for corners in (outline, outline[::-1]):
        distinct = list(dict.fromkeys((x + 0.0, y + 0.0) for x, y in points))
        parts = [within(polygon, corners) for polygon in cells(distinct, BOX)]
        assert sum(area(part) for part in parts if len(part)) == pytest.approx(
            area(np.array(outline)), rel=1e-6
        )
