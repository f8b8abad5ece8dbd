"""The exponent of the key/value factor, against bowls whose answers are known in closed form."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mupscale.analysis import exponents
from mupscale.analysis.contrasts import CellValue
from mupscale.analysis.exponents import (
    Exponents,
    Factored,
    fit_exponents,
    log2_paper_factor,
    still_by_fit,
)
from mupscale.analysis.measurements import Measurement, Member
from mupscale.analysis.seed_blocks import SeedBlocks
from mupscale.errors import DimensionError

RATES = np.arange(-8, -3.9, 0.5)


def made(
    still, loss, *, share=0.3, noise=0.001, seeds=3, levels=(1, 4, 12), factors=(-1, 0, 1, 2, 3)
) -> list[Factored]:
    """Quadratic bowls: the optimum is at −6 where γ = still, and the loss at its own optimum is
    lowest at γ = loss.
    """
    random = np.random.default_rng(5)
    still, loss = (
        dict.fromkeys(levels, one) if not isinstance(one, dict) else one for one in (still, loss)
    )
    tried = []
    for r in levels:
        lever = log2_paper_factor(r)
        for z in [0.0] if r == 1 else factors:
            others = 0.0 if r == 1 else share * (still[r] - loss[r]) * lever
            apart = 0.0 if r == 1 else others + loss[r] * lever
            x = RATES + 6
            bowls = 0.05 * ((1 - share) * (x - others) ** 2 + share * (x + z - apart) ** 2)
            runs = [
                Measurement(
                    rule="",
                    member=Member(label=""),
                    seed=seed,
                    params={"lr": 2.0**rate},
                    loss=float(y),
                )
                for seed in range(seeds)
                for rate, y in zip(
                    RATES, 2 + bowls + noise * random.standard_normal(len(RATES)), strict=True
                )
            ]
            tried.append(Factored(r, float(z), runs))
    return tried


def test_two_questions_have_two_answers():
    found: Exponents = fit_exponents(made(still=0.4, loss=1.3))
    for answer, true in ((found.still, 0.4), (found.loss, 1.3)):
        assert answer.gamma.low <= true <= answer.gamma.high
        assert answer.gamma.bounded
        assert answer.more_seeds == 0
        assert abs(answer.gamma.value - true) < 0.25
        assert all(one.low <= true <= one.high for one in answer.by_r.values())
        assert answer.one_serves > 0.05
    assert found.loss.gamma.excludes(0.4)
    assert found.runs == 11 * 27


def test_each_fit_finds_the_exponent_and_says_where_it_finds_none():
    tried = made(still=0.4, loss=1.3, noise=0.0005)
    for one in still_by_fit(tried).values():
        assert one is not None
        assert one.value == pytest.approx(0.4, abs=0.15)
        assert one.low <= 0.4 <= one.high
        assert one.degrees_of_freedom == 2
    # One factor at r = 12 is no curve.
    assert set(still_by_fit(tried[:7]).values()) == {None}


def test_an_exponent_that_differs_between_r_is_noticed():
    found = fit_exponents(made(still=0.5, loss={4: 0.0, 12: 1.5}, noise=0.0005))
    assert found.loss.one_serves < 0.01
    assert found.still.one_serves > 0.01


def test_without_an_effect_of_the_factor_nothing_is_bounded():
    """Key/value weights that do not matter: every γ leaves the optimum still, and none has a lower
    loss.
    """
    found = fit_exponents(made(still=0.5, loss=0.5, share=0.0, noise=0.005))
    assert not found.still.gamma.bounded
    assert not found.loss.gamma.bounded
    assert (found.still.gamma.low, found.still.gamma.high) == (-math.inf, math.inf)


def test_an_answer_beyond_what_was_swept_has_no_end_there():
    found = fit_exponents(made(still=3.0, loss=3.0, factors=(-1, 0, 1)))
    for answer in (found.still, found.loss):
        assert answer.gamma.high == math.inf
        assert answer.gamma.low > 0
        assert answer.more_seeds is None
        assert answer.gamma.value <= answer.swept[1]


def test_the_lowest_exponent_is_kept_however_the_processor_rounds(monkeypatch):
    """One row of a matrix product may be rounded otherwise than the same row among many."""
    exact = exponents._Curve.height

    def rounded(curve, gammas):
        return exact(curve, gammas) * (1 + 1e-15 * (len(gammas) > 1))

    monkeypatch.setattr(exponents._Curve, "height", rounded)
    found = fit_exponents(made(still=3.0, loss=3.0, factors=(-1, 0, 1)))
    assert found.loss.gamma.low <= found.loss.gamma.value


def test_more_noise_asks_for_more_seeds():
    quiet, loud = (
        fit_exponents(made(still=0.5, loss=0.5, share=0.15, noise=n)).still for n in (0.004, 0.02)
    )
    assert quiet.gamma.high - quiet.gamma.low < loud.gamma.high - loud.gamma.low
    assert not loud.gamma.bounded
    assert loud.more_seeds is None or loud.more_seeds > 0


def test_two_factors_make_a_line_for_optima_and_no_curve_for_losses():
    found = fit_exponents(made(still=0.5, loss=0.5, factors=(-1, 2)))
    assert found.still.gamma.low <= 0.5 <= found.still.gamma.high
    assert found.loss.gamma is None


def test_optima_at_the_edge_are_no_part_of_the_answer():
    tried = made(still=0.5, loss=0.5)
    edge = [
        Measurement(
            rule="", member=Member(label=""), seed=run.seed, params=run.params, loss=2 - 0.01 * k
        )
        for k, run in enumerate(sorted(tried[-1].runs, key=lambda run: run.params["lr"]))
    ]
    found = fit_exponents([*tried[:-1], Factored(12, 3.0, edge)])
    assert [cell.usable for cell in found.cells].count(False) == 1
    assert found.still.swept[1] == pytest.approx(2 / log2_paper_factor(12))


def test_the_base_is_needed_once():
    with pytest.raises(DimensionError, match="needs the base once"):
        fit_exponents(made(still=0, loss=0)[1:])


def test_what_a_seed_does_in_a_block_leaves_comparisons_within_it_alone():
    """Shifts common to a block change the variance between blocks only, as the split plot has
    it.
    """
    random = np.random.default_rng(0)
    table = random.standard_normal((2, 4, 3))
    blocks = lambda t: [[CellValue(0, 0, 1, dict(enumerate(row))) for row in block] for block in t]  # noqa: E731
    shifted = table + 50 * random.standard_normal((2, 1, 3))
    one, other = SeedBlocks.of(blocks(table)), SeedBlocks.of(blocks(shifted))
    within, between = (
        np.array([[1.0, -1, 0, 0, 0, 0, 0, 0]]),
        np.array([[1.0, 0, 0, 0, -1, 0, 0, 0]]),
    )
    assert one.variance(within)[0] == pytest.approx(other.variance(within)[0])
    assert other.variance(between)[0] > 100 * one.variance(between)[0]
    # Two cells of one block: twice the pooled variance within blocks, over the seeds.
    rest = table - table.mean(axis=2, keepdims=True)
    rest = rest - rest.mean(axis=1, keepdims=True)
    assert one.variance(within)[0] == pytest.approx(2 * np.square(rest).sum() / (2 * 3 * 2) / 3)


def test_blocks_with_unequal_spreads_are_not_pooled():
    """A sum of cells is then one number for each seed."""
    random = np.random.default_rng(1)
    table = random.standard_normal((2, 4, 6)) * np.array([0.1, 0.1, 0.1, 1.0])[:, None]
    found = SeedBlocks.of(
        [[CellValue(0, 0, 1, dict(enumerate(row))) for row in block] for block in table]
    )
    assert found is not None
    weights = random.standard_normal((3, 8))
    weights -= weights.mean(axis=1, keepdims=True)
    sums = weights @ table.reshape(8, 6)
    variance, freedom = found.by_seed(weights)
    assert variance == pytest.approx(sums.var(axis=1, ddof=1) / 6)
    assert freedom == 5


def test_unequal_spreads_lengthen_the_interval_and_never_shorten_it():
    """In one cell, the optimum of each seed is moved, by nothing on average."""
    tried = made(still=0.5, loss=0.5, noise=0.0005, seeds=6)
    moved = np.array([0.6, -0.6, 0.4, -0.4, 0.2, -0.2])
    wild = [
        replace(run, params={"lr": run.params["lr"] * 2 ** moved[run.seed]})
        for run in tried[-4].runs
    ]
    unlike = [*tried[:-4], replace(tried[-4], runs=wild), *tried[-3:]]
    calm, found = (fit_exponents(one).still.gamma for one in (tried, unlike))
    assert found.degrees_of_freedom == 5
    assert found.high - found.low > 2 * (calm.high - calm.low)


@pytest.mark.parametrize("question", ["still", "loss"])
def test_intervals_hold_the_truth_about_as_often_as_they_say(question):
    """A short version of drills/exponent_coverage.py, without lean: at least 85 % of 20 draws."""
    random = np.random.default_rng(7)
    held = 0
    for _ in range(20):
        tried = made(still=0.3, loss=0.8, noise=0.0)
        for place, one in enumerate(tried):
            level, moved = 0.004 * random.standard_normal(3), 0.07 * random.standard_normal(3)
            runs = [
                Measurement(
                    rule="", member=run.member, seed=run.seed,
                    params={"lr": run.params["lr"] * 2 ** moved[run.seed]},
                    loss=run.loss + level[run.seed] + 0.01 * random.standard_normal(),
                )
                for run in one.runs
            ]  # fmt: skip
            tried[place] = Factored(one.r, one.log2_factor, runs)
        gamma = fit_exponents(tried).answer(question).gamma
        held += gamma.low <= (0.3 if question == "still" else 0.8) <= gamma.high
    assert held >= 17
