"""Paired differences: a point per seed, the mean with its interval, and the bound."""

import pytest

from mupscale.analysis.estimates import Estimate
from mupscale.errors import OptionError
from mupscale.reports.differences import DifferencePanel, DifferenceRow, draw_differences

NARROW = DifferenceRow("plain", (-0.02, 0.0, -0.01), Estimate(-0.01, -0.035, 0.015, 2))
WIDE = DifferenceRow("two seeds", (-0.03, -0.05), Estimate(-0.04, -0.17, 0.09, 1))
ABSENT = DifferenceRow("absent", (), None, "not run: sp")


def draw(*panels: DifferencePanel):
    return draw_differences(panels, bound=0.01, x_label="difference", title="Differences")


def test_every_seed_has_a_point_and_every_row_its_mean():
    figure = draw(DifferencePanel("first", (NARROW, ABSENT)), DifferencePanel("second", (WIDE,)))
    above, below = figure.axes
    assert [label.get_text() for label in above.get_yticklabels()] == ["plain", "absent"]
    points = [list(line.get_xdata()) for line in above.get_lines()]
    assert [-0.02, 0.0, -0.01] in points
    assert [-0.01] in points
    assert [-0.035, 0.015] in points  # the interval
    assert [0.01, 0.01] in points  # the bound
    assert "not run: sp" in [text.get_text() for text in above.texts]
    assert below.get_xlim()[0] < above.get_xlim()[0]  # each on its own scale


def test_a_long_interval_ends_in_an_arrow_so_that_points_stay_apart():
    (axes,) = draw(DifferencePanel("width 512", (WIDE,))).axes
    low, high = axes.get_xlim()
    assert (low, high) == pytest.approx((-0.08, 0.04))
    assert [low, high] in [list(line.get_xdata()) for line in axes.get_lines()]


def test_nothing_to_draw_is_an_error():
    with pytest.raises(OptionError, match="there is no difference to draw"):
        draw(DifferencePanel("width 256", (ABSENT,)))
