"""Curves on two log axes."""

import pytest

from mupscale.errors import DimensionError, OptionError
from mupscale.reports.panels import Line, Panel, draw_panels
from mupscale.reports.saving import save_figure

WIDTHS = (32, 64, 128)


def curve(label, slope, theory=True):
    mean = [2.0 * (x / 32) ** slope for x in WIDTHS]
    return Line(
        label,
        WIDTHS,
        mean,
        [m / 1.1 for m in mean],
        [m * 1.1 for m in mean],
        mean if theory else (),
    )


def drawn(panels):
    texts = {"x_label": "width", "y_label": "b", "title": "title", "theory": "as n$^δ$"}
    return draw_panels(panels, **texts, log_x=True)


def test_a_power_law_is_a_straight_line_and_all_panels_have_the_same_factor(tmp_path):
    panels = [
        Panel(f"role {k}", [curve("up", 1.0), curve("flat", 0.0, theory=False)], note="a note")
        for k in range(4)
    ]
    figure = drawn(panels)
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        bottom, top = axes.get_ylim()
        assert top / bottom == pytest.approx(
            figure.axes[0].get_ylim()[1] / figure.axes[0].get_ylim()[0]
        )
        assert [text.get_text() for text in axes.get_xticklabels()] == ["32", "64", "128"]
        assert len(axes.lines) == 3  # two curves and the theory of one
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["up", "flat", "as n$^δ$"]
    assert all(
        path.stat().st_size for path in save_figure(figure, tmp_path / "figure", ("png", "svg"))
    )


def test_an_interval_without_end_does_not_stretch_the_axis():
    wide = Line("wide", WIDTHS, [1.0, 1.0, 1.0], [0.0, 0.5, 0.5], [float("inf"), 2.0, 2.0])
    bottom, top = drawn([Panel("role", [wide])]).axes[0].get_ylim()
    assert 0.1 < bottom < top < 10


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(OptionError, match="no panel to draw"):
        drawn([])
    short = Line("short", WIDTHS, [1.0, 2.0], [1.0, 2.0], [1.0, 2.0])
    with pytest.raises(
        DimensionError, match=r"'role', line 'short': the lengths differ \(x 3, mean 2"
    ):
        drawn([Panel("role", [short])])
    nothing = Line("nothing", WIDTHS, [1.0, 0.0, 1.0], [1.0, 0.0, 1.0], [1.0, 0.0, 1.0])
    with pytest.raises(OptionError, match="mean is 0 at x = 64, which a log axis cannot show"):
        drawn([Panel("role", [nothing])])
