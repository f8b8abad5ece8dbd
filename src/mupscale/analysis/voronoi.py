"""Voronoi cells in a box: for each measured point, the region that is nearest to it.

A cell starts as the box and is cut by the bisectors to its nearest points. It is complete when none
of its vertices is nearer to another point; such a point must cut next. Without a triangulation, one
point, points on a line and regular grids are not special cases.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree

from mupscale.errors import DimensionError, NonFiniteError, OptionError

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Span = tuple[float, float]
Polygon = list[tuple[float, float]]

_FIRST_CUTS = 8
"""Nearest points that cut before any search. A cell has six neighbours on average, in a regular
grid eight.
"""

_SLACK = 1e-12
"""Rounding error of a distance, as a share of the extent."""


def cells(points: ArrayLike, box: tuple[Span, Span]) -> list[Array]:
    """The cell of each point, clipped to box = ((x_low, x_high), (y_low, y_high)): vertices (k, 2),
    counterclockwise.

    Points at the same place each get the whole shared cell: average such runs first. A point may
    lie outside the box; only the part of its cell inside is returned, which may have no vertex.

    >>> cells([(0.0, 0.0), (2.0, 0.0)], ((-1, 3), (-1, 1)))[0].tolist()
    [[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]
    """
    sites = _checked(points, box)
    if not len(sites):
        return []
    places, which = np.unique(sites, axis=0, return_inverse=True)
    polygons = _polygons(places, box)
    return [polygons[place].copy() for place in which]


def within(polygon: Array, outline: Sequence[tuple[float, float]]) -> Array:
    """The part of a polygon inside a convex outline, by Sutherland & Hodgman 1974.

    >>> square = np.array([(0.0, 0.0), (2.0, 0.0), (2.0, 2.0), (0.0, 2.0)])
    >>> within(square, [(-1, -1), (1, -1), (1, 3), (-1, 3)]).tolist()
    [[0.0, 0.0], [1.0, 0.0], [1.0, 2.0], [0.0, 2.0]]
    """
    corners = np.asarray(outline, dtype=np.float64)
    following = np.roll(corners, -1, axis=0)
    area = float((corners[:, 0] * following[:, 1] - corners[:, 1] * following[:, 0]).sum()) / 2
    if area < 0:  # clockwise
        corners, following = following, corners
    kept: Polygon = [(float(x), float(y)) for x, y in polygon]
    for (x0, y0), (x1, y1) in zip(corners.tolist(), following.tolist(), strict=True):
        inside = [(x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) for x, y in kept]
        kept = _cut_off(kept, [-side for side in inside], _SLACK * (abs(x1 - x0) + abs(y1 - y0)))
    return np.reshape(kept, (-1, 2))


def _checked(points: ArrayLike, box: tuple[Span, Span]) -> Array:
    sites = np.asarray(points, dtype=np.float64)
    if sites.size == 0:
        return np.empty((0, 2))
    if sites.ndim != 2 or sites.shape[1] != 2:
        raise DimensionError(
            f"points have shape {sites.shape}. Give one (x, y) for each: shape (n, 2)."
        )
    if not (np.isfinite(sites).all() and np.isfinite(box).all()):
        raise NonFiniteError("a point or the box is not finite. Remove such points.")
    for low, high in box:
        if low >= high:
            raise OptionError(
                f"the box goes from {low} to {high}. Give each axis as (low, high) with low < high."
            )
    return sites + 0.0  # -0.0 is the same place as 0.0


def _polygons(places: Array, box: tuple[Span, Span]) -> list[Array]:
    (left, right), (bottom, top) = box
    corners = np.array(
        [(left, bottom), (right, bottom), (right, top), (left, top)], dtype=np.float64
    )
    everything = np.vstack([places, corners])
    slack = _SLACK * float(np.ptp(everything, axis=0).max())
    # Each polygon is stored relative to its own point: differences of near points are then exact.
    polygons: list[Polygon] = [
        [(x, y) for x, y in relative] for relative in (corners - places[:, None]).tolist()
    ]
    tree = KDTree(places)
    near = np.reshape(
        tree.query(places, k=min(_FIRST_CUTS + 1, len(places)))[1], (len(places), -1)
    )[:, 1:]
    waiting = np.arange(len(places))
    own, other = np.repeat(waiting, near.shape[1]), near.ravel()
    while len(waiting):
        _cut(polygons, places, own, other, slack)
        own, other = _intruders(polygons, places, waiting, tree, slack)
        waiting = np.unique(own)
    return [
        np.reshape(polygon, (-1, 2)) + place
        for polygon, place in zip(polygons, places, strict=True)
    ]


def _cut(
    polygons: list[Polygon], places: Array, own: Indices, other: Indices, slack: float
) -> None:
    """Clip the cell of each place in `own` by the bisector to its partner in `other`."""
    for one, (dx, dy) in zip(own.tolist(), (places[other] - places[own]).tolist(), strict=True):
        polygons[one] = _nearer(polygons[one], dx, dy, slack)


def _nearer(polygon: Polygon, dx: float, dy: float, slack: float) -> Polygon:
    """The part of a polygon that is nearer to (0, 0) than to (dx, dy)."""
    half = (dx * dx + dy * dy) / 2
    return _cut_off(
        polygon, [x * dx + y * dy - half for x, y in polygon], slack * (abs(dx) + abs(dy))
    )


def _cut_off(polygon: Polygon, beyond: Sequence[float], allowed: float) -> Polygon:
    """A polygon without the part beyond a line, given how far beyond it each vertex lies."""
    if not beyond or max(beyond) <= allowed:
        return polygon
    kept: Polygon = []
    for index, (x, y) in enumerate(polygon):
        ends = beyond[index - 1], beyond[index]
        # A vertex on the bisector is itself the crossing.
        if min(ends) < -allowed and max(ends) > allowed:
            x0, y0 = polygon[index - 1]
            share = ends[0] / (ends[0] - ends[1])
            kept.append((x0 + share * (x - x0), y0 + share * (y - y0)))
        if beyond[index] <= allowed:
            kept.append((x, y))
    return kept if len(kept) > 2 else []


def _intruders(
    polygons: Sequence[Polygon], places: Array, waiting: Indices, tree: KDTree, slack: float
) -> tuple[Indices, Indices]:
    """Pairs of a waiting place and another that is nearer to a vertex of its cell."""
    whose = [polygons[place] for place in waiting]
    own = np.repeat(waiting, [len(polygon) for polygon in whose])
    vertices = np.array(
        [vertex for polygon in whose for vertex in polygon], dtype=np.float64
    ).reshape(-1, 2)
    other = np.asarray(tree.query(vertices + places[own])[1], dtype=np.intp)
    apart = places[other] - places[own]
    beyond = (vertices * apart).sum(axis=1) - np.square(apart).sum(axis=1) / 2
    found = beyond > slack * np.abs(apart).sum(axis=1)
    pairs = np.unique(np.column_stack([own[found], other[found]]), axis=0)
    return pairs[:, 0], pairs[:, 1]
