"""The paper's figure: each optimum, their mean and spread are where the analysis has them, and the
valley is seen.
"""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.measurements import Measurement, Member
from mupscale.errors import MissingExtraError, OptionError
from mupscale.reports import curve_panels, draw_curves
from mupscale.reports.curves import loss_limits
from mupscale.reports.octaves import octave_ticks, power_of_two, short_name
from tests.reports.made_studies import (
    HOSTILE,
    MEMBERS,
    analysed,
    rate_runs,
    surface_runs,
    taken_for_formulas,
    texts_outside,
)

NOTHING = analysed([])


def panels_of(runs):
    return curve_panels(analysed(runs), runs)


def axes_of(figure, row: int):
    """The axes with the curves (0) or with the optima (1), in the order of the panels."""
    return [axes for axes in figure.axes if axes.get_subplotspec().rowspan.start % 2 == row]


def lines_of(axes, *, marker=None, style=None):
    return [
        line
        for line in axes.get_lines()
        if (marker is None or line.get_marker() == marker)
        and (style is None or line.get_linestyle() == style)
    ]


def test_a_line_is_the_mean_over_seeds_at_each_rate():
    runs = rate_runs()
    for panel in panels_of(runs):
        for curve in panel.curves:
            own = [run for run in runs if run.rule == panel.rule and run.member == curve.member]
            for rate, mean in curve.mean:
                assert mean == pytest.approx(
                    np.mean([run.loss for run in own if run.log2("lr") == rate])
                )
            assert [rate for rate, _ in curve.mean] == sorted({run.log2("lr") for run in own})
            assert len(curve.runs) == len(own)


def test_a_rate_at_which_a_seed_diverged_has_a_cross_and_no_mean():
    runs = [
        replace(run, loss=None) if run.seed == 2 and run.log2("lr") == -4 else run
        for run in rate_runs()
    ]
    for panel in panels_of(runs):
        for curve in panel.curves:
            assert curve.diverged == (-4.0,)
            assert -4.0 not in dict(curve.mean)
            assert sum(rate == -4.0 for rate, _ in curve.runs) == 2
    for axes in axes_of(draw_curves(panels_of(runs)), 0):
        assert [list(line.get_xdata()) for line in lines_of(axes, marker="x")] == [[-4.0], [-4.0]]


def test_optima_intervals_mean_and_spread_are_drawn_where_the_analysis_has_them():
    runs = rate_runs()
    analysis = analysed(runs)
    figure = draw_curves(curve_panels(analysis, runs))
    for axes, transfer in zip(axes_of(figure, 1), analysis.transfers, strict=True):
        cells = [cell for cell in analysis.cells if cell.rule == transfer.rule]
        points = [line.get_xdata()[0] for line in axes.get_lines() if len(line.get_xdata()) == 1]
        assert points == pytest.approx([cell.found["lr"].value for cell in cells])
        bars = [
            tuple(line.get_xdata()) for line in axes.get_lines() if len(set(line.get_ydata())) == 1
        ]
        for cell in cells:
            assert (cell.found["lr"].low, cell.found["lr"].high) in bars
        dashed = next(line for line in axes.get_lines() if line.get_linestyle() == "--")
        assert dashed.get_xdata()[0] == pytest.approx(transfer.mean.value)
        band = axes.patches[0].get_window_extent().transformed(axes.transData.inverted())
        assert (band.x0, band.x1) == pytest.approx(
            (transfer.mean.value - transfer.sd.value, transfer.mean.value + transfer.sd.value)
        )
    # Half an octave apart: ±1 sd with ddof 0 is a quarter of an octave.
    assert analysis.transfers[0].sd.value == pytest.approx(0.25, abs=1e-6)


def test_an_interval_without_end_runs_to_an_arrow_at_the_edge_and_its_optimum_is_hollow():
    panel = panels_of(rate_runs())[0]
    found = replace(panel.curves[0].found, rate=Estimate(-6, -math.inf, math.inf), flags=("flat",))
    figure = draw_curves([replace(panel, curves=(replace(panel.curves[0], found=found),))])
    (below,) = axes_of(figure, 1)
    left, right = below.get_xlim()
    bar = next(
        line
        for line in below.get_lines()
        if len(set(line.get_ydata())) == 1 and len(line.get_xdata()) == 2
    )
    assert tuple(bar.get_xdata()) == (left, right)
    single = [line for line in below.get_lines() if len(line.get_xdata()) == 1]
    assert sorted(line.get_xdata()[0] for line in single) == [left, -6, right]
    assert (
        next(line for line in single if line.get_xdata()[0] == -6).get_markerfacecolor() == "white"
    )
    assert "optimum without a bound" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_an_explosion_leaves_the_top_and_does_not_hide_the_valley():
    calm, wild = (
        axes_of(draw_curves(panels_of(rate_runs(explode=size))), 0)[0] for size in (0.0, 50.0)
    )
    assert wild.get_ylim()[1] < 3
    assert wild.get_ylim()[0] == pytest.approx(calm.get_ylim()[0], abs=0.1)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20))
def test_the_lowest_loss_is_always_seen(losses):
    runs = [
        Measurement(rule="mup", member=MEMBERS[0], seed=1, params={"lr": 2.0**-place}, loss=loss)
        for place, loss in enumerate(losses)
    ]
    low, high = loss_limits(curve_panels(NOTHING, runs))
    assert low < min(losses) < high <= max(losses) * 1.1 + 1


def test_panels_share_their_axes_and_only_the_first_of_a_row_has_numbers():
    runs = rate_runs(rules=("sp", "mup", "complete-p", "gqa-mup"))
    above = axes_of(draw_curves(panels_of(runs)), 0)
    assert len({axes.get_ylim() for axes in above}) == len({axes.get_xlim() for axes in above}) == 1
    assert [axes.yaxis.get_tick_params()["labelleft"] for axes in above] == [
        True,
        False,
        True,
        False,
    ]


def test_where_two_parameters_were_searched_runs_are_points_and_not_joined():
    for axes in axes_of(draw_curves(panels_of(surface_runs())), 0):
        assert [line for line in lines_of(axes, style="-") if len(line.get_xdata()) > 2] == []


def test_every_panel_says_what_it_rests_on():
    runs = rate_runs()
    texts = [
        text.get_text()
        for axes in axes_of(draw_curves(panels_of(runs), axis="r"), 0)
        for text in axes.texts
    ]
    assert all(f"{len(runs) // 2} runs" in text and "3 seeds" in text for text in texts)
    assert all("sd 0.25 (log₂)" in text and "per doubling of r\n" in text for text in texts)


def test_a_drift_over_sizes_says_so_within_the_figure():
    figure = draw_curves(panels_of(rate_runs()), axis="parameters")
    assert all(
        "per doubling of size\n" in text.get_text()
        for axes in axes_of(figure, 0)
        for text in axes.texts
    )
    assert texts_outside(figure) == []


@pytest.mark.parametrize(
    "name", HOSTILE, ids=["html", "dollars", "controls", "formula", "long", "glyphs"]
)
def test_names_are_names_and_stay_within_the_figure(name):
    members = (Member(label=name, position=1.0), Member(label=f"{name} 2", position=2.0))
    runs = rate_runs(rules=(name,), members=members)
    figure = draw_curves(curve_panels(analysed(runs, axis=name), runs), axis=name)
    assert texts_outside(figure) == []
    assert taken_for_formulas(figure) == []


def test_twenty_members_fit():
    members = tuple(Member(label=f"width = {2**k}", position=2.0**k) for k in range(20))
    runs = rate_runs(seeds=(1,), members=members)
    figure = draw_curves(panels_of(runs), axis="width")
    assert texts_outside(figure) == []
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert not any(legend.overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_without_runs_there_is_nothing_to_draw():
    assert curve_panels(analysed([]), []) == []
    with pytest.raises(OptionError, match="no run to draw"):
        draw_curves([])


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    panels = panels_of(rate_runs())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"mupscale\[report\]"):
        draw_curves(panels)


@given(st.floats(-30, 30), st.floats(0.01, 60))
def test_ticks_are_a_few_distinct_powers_of_two_within_the_limits(low, span):
    ticks = octave_ticks((low, low + span))
    assert len(ticks) <= 6
    assert all(low <= tick <= low + span for tick in ticks)
    assert len({power_of_two(tick) for tick in ticks}) == len(ticks)
    assert len(ticks) >= 2 or span < 1


@given(st.text(max_size=200), st.integers(5, 40))
def test_a_short_name_is_one_printable_line(text, most):
    name = short_name(text, most)
    assert len(name) <= most
    assert name.isprintable()
