"""A forest plot says for each slope where it is, how sure that is, what theory says, and what was
concluded.
"""

import math
import sys
from itertools import pairwise

import pytest

from mupscale.errors import MissingExtraError, NonFiniteError, OptionError, UnknownNameError
from mupscale.reports import SlopeBar, draw_slopes, save_figure

KEY = SlopeBar("key", -0.323, -0.34, -0.30, predicted=-0.5, verdict="fail")
QUERY = SlopeBar("query", 0.01, -0.02, 0.04, predicted=0.0, verdict="pass")
VALUE = SlopeBar("value", -0.06, -0.15, 0.03, predicted=None, verdict="inconclusive")
GATE = SlopeBar("gate", 0.02, -0.01, 0.05, predicted=None, verdict=None)


def draw(*bars: SlopeBar, tolerance: float = 0.05):
    return draw_slopes(bars, tolerance=tolerance, x_label="slope", title="Slopes")


def many(n: int, group_size: int = 5) -> list[SlopeBar]:
    verdicts = ["pass", "fail", "inconclusive", None]
    return [
        SlopeBar(
            f"layers.{i}.attention.q_proj",
            slope=0.1 * math.sin(i),
            low=0.1 * math.sin(i) - 0.03,
            high=0.1 * math.sin(i) + 0.03,
            predicted=0.0,
            verdict=verdicts[i % 4],
            group=f"group {i // group_size}",
        )
        for i in range(n)
    ]


def markers(axes, marker) -> list:
    return [drawn for drawn in axes.get_lines() if drawn.get_marker() == marker]


def written(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_rows_go_from_top_to_bottom_in_the_order_given():
    figure = draw(KEY, QUERY, VALUE)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["key", "query", "value"]
    figure.draw_without_rendering()
    heights = [label.get_window_extent().y0 for label in axes.get_yticklabels()]
    assert all(above > below for above, below in pairwise(heights))


def test_points_and_predictions_are_where_they_were_measured_and_predicted():
    axes = draw(KEY, QUERY, VALUE, GATE).axes[0]
    (fail,), (inconclusive,) = markers(axes, "X"), markers(axes, "s")
    assert [*fail.get_xdata(), *inconclusive.get_xdata()] == [KEY.slope, VALUE.slope]
    diamonds = markers(axes, "D")
    assert [diamond.get_xdata()[0] for diamond in diamonds] == [-0.5, 0.0]
    assert all(diamond.get_markerfacecolor() == "none" for diamond in diamonds)
    intervals = [
        drawn
        for drawn in axes.get_lines()
        if len(drawn.get_xdata()) == 2 and drawn.get_marker() == "None"
    ]
    assert [KEY.low, KEY.high] in [list(interval.get_xdata()) for interval in intervals]


def test_the_tolerance_is_a_zone_about_a_line_at_zero():
    axes = draw(KEY, tolerance=0.07).axes[0]
    (zone,) = axes.patches
    assert zone.get_extents().transformed(axes.transData.inverted()).intervalx == pytest.approx(
        [-0.07, 0.07]
    )
    assert any(list(drawn.get_xdata()) == [0, 0] for drawn in axes.get_lines())


def test_verdicts_and_numbers_are_written_beside_the_bars_with_a_true_minus():
    axes = draw(KEY, QUERY, VALUE, GATE).axes[0]
    assert written(axes) == [
        *["✗ fail", "✓ pass", "? inconclusive", "– not judged"],
        *[
            "−0.323 [−0.34, −0.30]",
            "+0.010 [−0.02, +0.04]",
            "−0.060 [−0.15, +0.03]",
            "+0.020 [−0.01, +0.05]",
        ],
    ]


def test_an_interval_too_short_for_two_digits_gets_three():
    axes = draw(SlopeBar("key", -0.0004, -0.002, 0.003, predicted=None, verdict=None)).axes[0]
    assert written(axes) == ["+0.000 [−0.002, +0.003]"]


def test_the_legend_names_only_what_is_shown():
    def labels(*bars: SlopeBar) -> list[str]:
        return [text.get_text() for text in draw(*bars).legends[0].get_texts()]

    everything = [
        "✓ pass",
        "✗ fail",
        "? inconclusive",
        "not judged",
        "predicted by theory",
        "tolerance ±0.05",
    ]
    assert labels(KEY, QUERY, VALUE, GATE) == everything
    assert labels(GATE) == ["not judged", "tolerance ±0.05"]


def test_verdicts_differ_in_colour_and_judged_ones_in_shape_too():
    axes = draw(KEY, QUERY, VALUE, GATE).axes[0]
    points = [drawn for drawn in axes.get_lines() if drawn.get_marker() in {"X", "o", "s"}]
    assert len({point.get_color() for point in points}) == 4
    assert len({point.get_marker() for point in points[:3]}) == 3


def test_an_interval_far_longer_than_the_others_ends_in_arrows_and_squeezes_nothing():
    from matplotlib.markers import CARETLEFT, CARETRIGHT

    wild = SlopeBar("wild", 0.0, -40.0, 90.0, predicted=0.0, verdict="inconclusive")
    usual, disturbed = draw(*many(12)).axes[0], draw(*many(12), wild).axes[0]
    assert not markers(usual, CARETLEFT) + markers(usual, CARETRIGHT)
    left, right = disturbed.get_xlim()
    assert [arrow.get_xdata()[0] for arrow in markers(disturbed, CARETLEFT)] == [left]
    assert [arrow.get_xdata()[0] for arrow in markers(disturbed, CARETRIGHT)] == [right]
    before = usual.get_xlim()
    assert right - left < 2 * (before[1] - before[0])
    assert "+0.000 [−40.00, +90.00]" in written(disturbed)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_the_range_follows_the_data_and_keeps_every_point_and_the_zone_in_sight(scale):
    bar = SlopeBar("key", -scale, -1.5 * scale, -0.5 * scale, predicted=2 * scale, verdict="fail")
    left, right = draw(bar).axes[0].get_xlim()
    assert left < min(bar.low, -0.05)
    assert right > max(2 * scale, 0.05)
    assert right - left < 6 * max(scale, 0.05)


def test_a_heading_opens_each_group_in_a_row_of_its_own():
    axes = draw(*many(7, group_size=3)).axes[0]
    headings = [text for text in axes.texts if text.get_fontweight() == "bold"]
    assert [heading.get_text() for heading in headings] == ["group 0", "group 1", "group 2"]
    rows = sorted([*axes.get_yticks(), *(heading.xy[1] for heading in headings)])
    assert all(second - first >= 1 for first, second in pairwise(rows))
    assert not [text for text in draw(KEY).axes[0].texts if text.get_fontweight() == "bold"]


@pytest.mark.parametrize("n", [1, 20, 40])
def test_no_text_is_clipped_or_over_another(n):
    figure = draw(*many(n))
    (axes,) = figure.axes
    figure.draw_without_rendering()
    texts = [
        *axes.texts,
        *axes.get_yticklabels(),
        axes.xaxis.label,
        *figure.legends[0].get_texts(),
        figure._suptitle,
    ]
    extents = [text.get_window_extent() for text in texts]
    page = figure.bbox.padded(1)
    assert all(page.contains(*extent.min) and page.contains(*extent.max) for extent in extents)
    assert not any(one.overlaps(other) for i, one in enumerate(extents) for other in extents[:i])
    assert figure.get_figheight() > 0.25 * n


def test_the_same_data_give_the_same_bytes(tmp_path):
    first = save_figure(draw(*many(6)), tmp_path / "first")
    second = save_figure(draw(*many(6)), tmp_path / "second")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_no_bar_and_no_tolerance_are_errors_that_say_so():
    with pytest.raises(OptionError, match="no slope to draw"):
        draw()
    for tolerance in (0.0, -1.0, math.nan):
        with pytest.raises(OptionError, match="must be above 0"):
            draw(KEY, tolerance=tolerance)


@pytest.mark.parametrize("field", ["slope", "low", "high", "predicted"])
def test_a_number_that_is_not_finite_names_the_bar_and_the_number(field):
    numbers = {"slope": 0.0, "low": -1.0, "high": 1.0, "predicted": 0.0} | {field: math.nan}
    with pytest.raises(NonFiniteError, match=f"bar 'key' of group 'attention': {field} is nan"):
        draw(SlopeBar("key", **numbers, verdict=None, group="attention"))


def test_an_interval_upside_down_is_refused():
    with pytest.raises(OptionError, match="bar 'key': low=1 is above high=-1"):
        draw(SlopeBar("key", 0.0, 1.0, -1.0, predicted=None, verdict=None))


def test_an_unknown_verdict_names_the_known_ones():
    with pytest.raises(UnknownNameError, match="Known: pass, fail, inconclusive"):
        draw(SlopeBar("key", 0.0, -1.0, 1.0, predicted=None, verdict="PASS!"))


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"mupscale\[report\]"):
        draw(KEY)
