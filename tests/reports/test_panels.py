"""A coordinate check reads at a glance: comparable axes, numbers on them, and nothing over anything
else.
"""

import math
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mupscale.errors import (
    DimensionError,
    MissingExtraError,
    NonFiniteError,
    OptionError,
    UnknownNameError,
)
from mupscale.reports import Line, Panel, draw_panels, save_figure
from mupscale.reports.log_axes import comparable_limits, comparable_ticks, plain_number

SCALES = (1, 2, 4, 8, 16, 32)
ROLES = (
    "query",
    "key",
    "value",
    "output projection",
    "feed-forward gate",
    "feed-forward down",
    "embedding",
    "readout",
)


def line(label: str, mean: list[float]) -> Line:
    return Line(
        label,
        list(range(1, len(mean) + 1)),
        mean,
        [0.95 * m for m in mean],
        [1.05 * m for m in mean],
    )


def family(
    title: str, base: float = 0.03, slope: float = 0.0, n_steps: int = 10, **heading
) -> Panel:
    growth = [base * (1 + 0.01 * step) for step in range(n_steps)]
    return Panel(
        title, [line(f"r = {r}", [r**slope * value for value in growth]) for r in SCALES], **heading
    )


def draw(*panels: Panel, **texts):
    labels = {"x_label": "step", "y_label": "RMS change", "title": "Coordinate check"}
    return draw_panels(panels, **labels | texts)


def y_tick_labels(axes) -> list[str]:
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    return [label.get_text() for tick, label in ticks if low <= tick <= high]


@pytest.mark.parametrize(
    ("n_panels", "columns"), [(1, 1), (2, 2), (4, 4), (5, 3), (7, 4), (8, 4), (9, 3), (24, 4)]
)
def test_there_is_one_axes_for_each_panel_and_no_empty_cell_is_drawn(n_panels, columns):
    figure = draw(*(family(f"role {index}") for index in range(n_panels)))
    assert len([axes for axes in figure.axes if axes.get_visible()]) == n_panels
    assert figure.axes[0].get_subplotspec().get_gridspec().ncols == columns


def test_means_and_intervals_are_what_was_given():
    panel = family("key", slope=-0.3)
    axes = draw(panel).axes[0]
    assert [list(drawn.get_ydata()) for drawn in axes.get_lines()] == [
        given.mean for given in panel.lines
    ]
    for band, given_line in zip(axes.collections, panel.lines, strict=True):
        heights = band.get_paths()[0].vertices[:, 1]
        assert heights.min() == pytest.approx(min(given_line.low))
        assert heights.max() == pytest.approx(max(given_line.high))


def test_data_that_span_ten_percent_still_get_numbers_on_the_axis():
    axes = draw(Panel("flat", [line("r = 1", [0.031, 0.032, 0.034])])).axes[0]
    assert y_tick_labels(axes) == ["0.02", "0.03", "0.05"]
    assert axes.get_yscale() == "log"


def test_every_panel_spans_the_same_factor_about_its_own_centre():
    flat, spread = draw(family("query", base=4e-3), family("key", base=7.0, slope=-0.5)).axes
    factors = [high / low for low, high in (flat.get_ylim(), spread.get_ylim())]
    assert factors[0] == pytest.approx(factors[1])
    assert factors[0] > math.sqrt(32)
    assert math.sqrt(math.prod(flat.get_ylim())) == pytest.approx(4e-3, rel=0.1)


@given(st.lists(st.tuples(st.floats(1e-30, 1e30), st.floats(1, 1e8)), min_size=1, max_size=5))
def test_all_axes_share_a_factor_of_at_least_four_and_have_three_to_nine_distinct_numbers(ranges):
    limits = comparable_limits([(low, low * factor) for low, factor in ranges])
    octaves = [math.log2(high / low) for low, high in limits]
    assert min(octaves) == pytest.approx(max(octaves))
    assert min(octaves) > 2 - 1e-9
    for ticks, (low, high) in zip(comparable_ticks(limits), limits, strict=True):
        assert 3 <= len(ticks) <= 9
        assert all(low <= tick <= high for tick in ticks)
        assert all(first < second for first, second in pairwise(ticks))
        assert len({plain_number(tick) for tick in ticks}) == len(ticks)


def test_an_interval_that_reaches_below_zero_ends_at_the_axis_and_leaves_the_means_in_sight():
    axes = draw(
        Panel("noisy", [Line("r = 1", [1, 2], [0.1, 0.1], [-5.0, -5.0], [900.0, 900.0])])
    ).axes[0]
    low, high = axes.get_ylim()
    assert axes.collections[0].get_paths()[0].vertices[:, 1].min() == low
    assert high / low < 5


def test_a_label_keeps_its_colour_in_every_panel_and_larger_values_are_lighter_but_not_pale():
    from matplotlib.colors import to_rgb

    def luminance(colour: str) -> float:
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)
        ]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    whole = family("query")
    first, second = draw(whole, Panel("key", whole.lines[3:])).axes
    colours = [drawn.get_color() for drawn in first.get_lines()]
    assert [drawn.get_color() for drawn in second.get_lines()] == colours[3:]
    assert all(luminance(a) < luminance(b) for a, b in pairwise(colours))
    assert luminance(colours[-1]) < 0.55


def test_one_legend_outside_the_axes_names_each_value_once():
    figure = draw(family("query"), family("key"))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"r = {r}" for r in SCALES]
    figure.draw_without_rendering()
    assert not any(
        legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes
    )
    assert all(axes.get_legend() is None for axes in figure.axes)


def test_axis_labels_stand_only_at_the_outer_edge():
    figure = draw(*(family(role) for role in ROLES[:5]))
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "step", "step", "step"]
    assert [axes.get_ylabel() for axes in figure.axes] == [""] * 5
    assert figure.get_supylabel() == "RMS change"


def test_ticks_on_x_are_whole_steps():
    axes = draw(Panel("short", [line("r = 1", [1.0, 1.1, 1.2])])).axes[0]
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1, 2, 3]


def test_a_single_step_shows_as_a_marker_with_its_interval():
    axes = draw(family("query", n_steps=1)).axes[0]
    assert all(drawn.get_marker() == "o" for drawn in axes.get_lines())
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1]
    (segment,) = axes.collections[0].get_segments()
    assert segment[:, 1] == pytest.approx([0.95 * 0.03, 1.05 * 0.03])


@pytest.mark.parametrize(
    ("verdict", "words"),
    [("pass", "✓ pass"), ("fail", "✗ fail"), ("inconclusive", "? inconclusive"), (None, "")],
)
def test_the_verdict_is_a_word_with_a_symbol_and_the_note_is_written(verdict, words):
    axes = draw(family("key", verdict=verdict, note="slope −0.32")).axes[0]
    assert axes.get_title(loc="left") == "key"
    assert axes.get_title(loc="right") == words
    assert [text.get_text() for text in axes.texts] == ["slope −0.32"]


@pytest.mark.parametrize("n_panels", [1, 2, 3, 8])
def test_no_text_is_clipped_and_no_title_runs_into_its_verdict(n_panels):
    long = "A title that is long enough to need more than a line above a figure of one panel or two"
    roles = [*ROLES, "layers.11.attention.q_proj.weight"][-n_panels:]
    figure = draw(
        *(family(role, verdict="inconclusive", note="slope −0.32") for role in roles), title=long
    )
    figure.draw_without_rendering()
    page = figure.bbox.padded(1)
    for axes in figure.axes:
        title, verdict, (note,) = axes._left_title, axes._right_title, axes.texts
        extents = [text.get_window_extent() for text in (title, verdict, note)]
        assert all(page.contains(*extent.min) and page.contains(*extent.max) for extent in extents)
        assert not extents[0].overlaps(extents[2])
        assert extents[0].x1 <= axes.get_window_extent().x1
        # The lines above the last may be longer: the verdict is beside the last.
        title.set_text(title.get_text().splitlines()[-1])
        assert title.get_window_extent().x1 < extents[1].x0
    heading = figure._suptitle.get_window_extent()
    assert page.contains(*heading.min)
    assert page.contains(*heading.max)


def test_the_same_data_give_the_same_bytes(tmp_path):
    panels = [family(role, slope=-0.2, verdict="fail", note="slope −0.2") for role in ROLES[:2]]
    first = save_figure(draw(*panels), tmp_path / "first")
    second = save_figure(draw(*panels), tmp_path / "second")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_nothing_to_draw_is_an_error_that_says_what_is_missing():
    with pytest.raises(OptionError, match="no panel to draw"):
        draw()
    with pytest.raises(OptionError, match="panel 'key' has no line"):
        draw(Panel("key", []))
    with pytest.raises(OptionError, match="line 'r = 4' has no step"):
        draw(Panel("key", [line("r = 4", [])]))


def test_lengths_that_differ_name_the_panel_the_line_and_the_lengths():
    message = r"panel 'key', line 'r = 4': the lengths differ \(x 2, mean 2, low 1, high 2\)"
    with pytest.raises(DimensionError, match=message):
        draw(Panel("key", [Line("r = 4", [1, 2], [1.0, 1.0], [0.9], [1.1, 1.1])]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_that_is_not_finite_names_the_panel_the_line_and_the_step(bad):
    with pytest.raises(NonFiniteError, match=f"panel 'key', line 'r = 4': high is {bad} at x = 2"):
        draw(Panel("key", [Line("r = 4", [1, 2], [1.0, 1.0], [0.9, 0.9], [1.1, bad])]))


def test_a_mean_that_has_no_logarithm_is_refused():
    with pytest.raises(
        OptionError, match="line 'r = 4': mean is 0 at x = 1, which a log axis cannot show"
    ):
        draw(Panel("key", [line("r = 4", [0.0, 1.0])]))


def test_an_unknown_verdict_names_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'pass'"):
        draw(family("key", verdict="passed"))


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"mupscale\[report\]"):
        draw(family("key"))


def test_drawing_leaves_the_callers_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw(family("key"))
    assert dict(matplotlib.rcParams) == before
