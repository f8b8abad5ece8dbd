from dataclasses import replace

import pytest

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import CellAnalysis, Comparison, Regret, RuleTransfer, StudyAnalysis
from mupscale.analysis.measurements import Member
from mupscale.analysis.surfaces import Surface
from mupscale.errors import UnknownNameError
from mupscale.recipes.choosing import AT_PROXY, choose

SMALL, LARGE = Member(label="small", position=1.0), Member(label="large", position=4.0)


def cell(rule, member, loss):
    found = {name: Estimate(-6.0, -6.1, -5.9) for name in ("lr", "weight_decay")}
    surface = Surface(
        ("lr", "weight_decay"), found, loss, 0.0, ((1.0, 0.0), (0.0, 1.0)), 0.01, 9, 1, ()
    )
    return CellAnalysis(rule, member, 9, 0, (1,), None, None, surface)


def moved(rule, given_up):
    regret = Regret(SMALL, LARGE, Estimate(given_up, 0.0, 1.0), Estimate(0.0, -1.0, 1.0))
    return RuleTransfer(rule, (SMALL, LARGE), Estimate(-6, -7, -5), None, 0.0, 0.0, None, (regret,))


CELLS = (cell("a", SMALL, 2.0), cell("a", LARGE, 1.0), cell("b", SMALL, 2.1), cell("b", LARGE, 1.1))


def analysis(given_up, *comparisons, cells=CELLS):
    transfers = tuple(moved(rule, loss) for rule, loss in given_up.items())
    return StudyAnalysis("width", ("lr", "weight_decay"), cells, transfers, comparisons, {}, 0.95)


def test_the_loss_that_the_proxys_optimum_gives_up_counts():
    assert choose(analysis({"a": 0.0, "b": 0.0}), None)[0] == "a"
    assert choose(analysis({"a": 0.5, "b": 0.0}), None)[0] == "b"


def test_better_is_said_only_where_an_interval_says_it():
    gap = Comparison(AT_PROXY, "nats", "b", "a", Estimate(0.1, 0.05, 0.15), better="a")
    _, why = choose(analysis({"a": 0.0, "b": 0.0}, gap), None)
    assert "better than b (-0.1000 [-0.1500, -0.0500] nats)" in why
    open_gap = replace(gap, difference=Estimate(0.1, -0.05, 0.25), better=None)
    _, why = choose(analysis({"a": 0.0, "b": 0.0}, open_gap), None)
    assert "indistinguishable from b" in why
    assert "better" not in why


def test_a_rule_that_is_asked_for_may_be_worse():
    gap = Comparison(AT_PROXY, "nats", "b", "a", Estimate(0.1, 0.05, 0.15), better="a")
    assert choose(analysis({"a": 0.0, "b": 0.0}, gap), "b")[1].startswith(
        "as requested; worse than a (+0.1000"
    )


def test_rules_are_compared_on_the_members_that_all_have():
    cells = (*CELLS[:2], CELLS[2])  # b was not finished on the large model, whose loss is lower
    assert choose(analysis({"a": 0.0, "b": 0.0}, cells=cells), None)[0] == "a"
    # a was not finished on the large model: over all of its own models, b would have less loss.
    assert choose(analysis({"a": 0.0, "b": 0.0}, cells=(CELLS[0], *CELLS[2:])), None)[0] == "a"


def test_what_is_asked_for_is_taken_if_it_was_swept():
    found = analysis({"a": 0.0, "b": 0.0})
    assert choose(found, "b") == ("b", "as requested")
    with pytest.raises(UnknownNameError, match=r"unknown rule of this study 'c'.*Known: a, b"):
        choose(found, "c")
    assert choose(analysis({"a": 0.0}, cells=CELLS[:2]), None) == (
        "a",
        "the only rule in the study",
    )
