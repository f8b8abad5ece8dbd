"""A Voronoi map shows the losses of its runs, and the optimum and mean where the fits have them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from mupscale.analysis.measurements import Member
from mupscale.errors import OptionError
from mupscale.reports import draw_maps, map_grids
from mupscale.reports.maps import coordinate
from tests.reports.made_studies import (
    HOSTILE,
    MEMBERS,
    RULES,
    analysed,
    rate_runs,
    surface_runs,
    taken_for_formulas,
    texts_outside,
)


def grids_of(runs):
    return map_grids(analysed(runs), runs)


def panels_of(figure):
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def collections(axes) -> tuple[PolyCollection, PolyCollection]:
    """Cells with a loss, and cells that diverged."""
    ended, diverged = (one for one in axes.collections if isinstance(one, PolyCollection))
    return ended, diverged


def test_decay_and_tau_each_have_a_map_with_a_row_a_rule_and_a_column_a_member():
    decay, tau = grids_of(surface_runs())
    assert (decay.names, tau.names) == (("lr", "weight_decay"), ("lr", "tau_epoch"))
    assert (decay.rules, decay.members) == (RULES, MEMBERS)
    assert len(panels_of(draw_maps(decay))) == 4


def test_tau_is_one_over_decay_rate_and_steps():
    runs = surface_runs(steps=384)
    _, tau = grids_of(runs)
    for run in runs:
        expected = math.log2(1 / (run.params["weight_decay"] * run.params["lr"] * 384))
        assert coordinate(run, "tau_epoch") == pytest.approx(expected)
        assert (run.log2("lr"), coordinate(run, "tau_epoch")) in tau.maps[
            run.rule, run.member
        ].points


def test_a_search_over_tau_has_the_same_maps_as_the_search_over_decay_that_it_stands_for():
    by_decay = surface_runs()
    by_tau = [
        replace(
            run, params={"lr": run.params["lr"], "tau_epoch": 2 ** coordinate(run, "tau_epoch")}
        )
        for run in by_decay
    ]
    tau, decay = grids_of(by_tau)
    expected_decay, expected_tau = grids_of(by_decay)
    for found, expected in ((tau, expected_tau), (decay, expected_decay)):
        for key, one in found.maps.items():
            np.testing.assert_allclose(one.points, expected.maps[key].points, atol=1e-9)
            assert one.losses == expected.maps[key].losses


def test_the_optimum_over_tau_is_the_optimum_over_decay_turned():
    """Exact bowls have one minimum, whatever the coordinates."""
    decay, tau = grids_of(surface_runs(steps=256))
    for key, one in decay.maps.items():
        assert one.fit.found["lr"].value == pytest.approx(-6, abs=1e-6)
        assert one.fit.found["weight_decay"].value == pytest.approx(-2, abs=1e-6)
        turned = tau.maps[key].fit
        assert turned.found["lr"].value == pytest.approx(-6, abs=1e-6)
        assert turned.found["tau_epoch"].value == pytest.approx(6 + 2 - 8, abs=1e-6)
    for grid, mean in ((decay, (-6, -2)), (tau, (-6, 0))):
        assert [grid.means[rule] for rule in RULES] == [pytest.approx(mean, abs=1e-6)] * 2


def test_each_cell_has_the_colour_of_its_loss_and_those_that_diverged_are_hatched():
    decay, _ = grids_of(surface_runs())
    for axes, one in zip(panels_of(draw_maps(decay)), decay.maps.values(), strict=True):
        ended, diverged = collections(axes)
        known = [loss for loss in one.losses if loss is not None]
        assert list(ended.get_array()) == pytest.approx([loss - min(known) for loss in known])
        assert ended.norm(0.0) == 0.0
        assert len(diverged.get_paths()) == one.diverged == 2
        assert diverged.get_hatch()
        assert f"49 runs, {one.diverged} diverged" in axes.get_title()


def test_all_panels_share_one_scale_of_colours_and_their_axes():
    panels = panels_of(draw_maps(grids_of(surface_runs())[0]))
    assert len({id(collections(axes)[0].norm) for axes in panels}) == 1
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in panels}) == 1


def test_seeds_at_one_place_are_one_cell_with_their_mean_unless_one_diverged():
    first = surface_runs()
    runs = first + [
        replace(run, seed=2, loss=None if run.loss is None else run.loss + 0.2) for run in first
    ]
    runs[49 * 4] = replace(runs[49 * 4], loss=None)
    one = next(iter(grids_of(runs)[0].maps.values()))
    assert (len(one.points), one.runs, one.diverged) == (49, 98, 5)
    assert one.losses[0] is None
    assert one.losses[1] == pytest.approx(first[1].loss + 0.1)


def test_nothing_is_shown_beyond_what_was_searched():
    """Over τ the searched rectangle leans; every run lies within it."""
    for one in grids_of(surface_runs())[1].maps.values():
        corners = np.array(one.outline)
        edges = np.roll(corners, -1, axis=0) - corners
        for place in one.points:
            side = edges[:, 0] * (place[1] - corners[:, 1]) - edges[:, 1] * (
                place[0] - corners[:, 0]
            )
            assert np.all(side > 0) or np.all(side < 0)


def test_a_member_without_runs_under_a_rule_says_so():
    runs = [run for run in surface_runs() if (run.rule, run.member) != (RULES[1], MEMBERS[1])]
    last = panels_of(draw_maps(grids_of(runs)[0]))[-1]
    assert [text.get_text() for text in last.texts] == ["no runs"]


def test_all_diverged_gives_hatched_maps_without_an_optimum():
    runs = [replace(run, loss=None) for run in surface_runs()]
    decay, _ = grids_of(runs)
    assert decay.means == {}
    for axes in panels_of(draw_maps(decay)):
        assert len(collections(axes)[1].get_paths()) == 49
        assert axes.get_title().startswith("no loss")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_run_and_runs_in_a_line_have_maps(count):
    runs = surface_runs()[:count]
    for grid in grids_of(runs):
        assert texts_outside(draw_maps(grid)) == []


def test_there_is_no_map_without_two_parameters_and_none_over_tau_without_steps():
    assert grids_of(rate_runs()) == []
    assert (
        grids_of([replace(run, params={**run.params, "std": 0.1}) for run in surface_runs()]) == []
    )
    assert [grid.names[1] for grid in grids_of(surface_runs(steps=None))] == ["weight_decay"]
    with pytest.raises(OptionError, match="no run to draw"):
        draw_maps(replace(grids_of(surface_runs())[0], maps={}))


@pytest.mark.parametrize(
    "name", HOSTILE, ids=["html", "dollars", "controls", "formula", "long", "glyphs"]
)
def test_names_are_names_and_stay_within_the_figure(name):
    runs = surface_runs(
        rules=(name,), members=(Member(label=name, position=1.0), Member(label=f"2{name}"))
    )
    for grid in grids_of(runs):
        figure = draw_maps(grid, axis=name)
        assert texts_outside(figure) == []
        assert taken_for_formulas(figure) == []


def test_the_mean_is_over_optima_that_the_runs_bound():
    decay = grids_of(surface_runs())[0]
    falling = [
        replace(run, loss=2 + run.log2("lr")) if run.member == MEMBERS[1] else run
        for run in surface_runs()
    ]
    assert set(decay.means) == set(RULES)
    assert grids_of(falling)[0].means == {}
