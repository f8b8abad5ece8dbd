"""Transfer over a family: against textbook formulas, and on families whose truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from drills.optimum_coverage import study_coverage
from mupscale.analysis.contrasts import (
    CellValue,
    contrast,
    member_noise,
    pooled_spread,
    seed_table,
)
from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import CellAnalysis, analyse, loss_above
from mupscale.analysis.measurements import Measurement, Member
from mupscale.analysis.optima import fit_optimum

RATES = np.linspace(-8, -4, 9)
MEMBERS = [Member(label=f"r = {r}", position=r) for r in (1, 4, 16)]


def study(optima, losses=None, *, seeds=(1, 2, 3), noise=0.003, curvature=0.1, random=None):
    """Runs of rules: optima[rule][member]."""
    random = random or np.random.default_rng(0)
    return [
        Measurement(
            rule=rule, member=member, seed=seed, params={"lr": 2.0**x}, steps=100,
            loss=(losses or {}).get(rule, 2.0) + 0.01 * seed
            + curvature / 2 * (x - at) ** 2 + random.normal(0, noise),
        )
        for rule, places in optima.items()
        for member, at in zip(MEMBERS, places, strict=False)
        for seed in seeds
        for x in RATES
    ]  # fmt: skip


class TestContrasts:
    def located(self, table):
        return [CellValue(float(np.mean(row)), 1.0, 2, dict(enumerate(row))) for row in table]

    def test_a_difference_of_two_cells_is_the_paired_t_test(self):
        table = np.random.default_rng(0).normal(0, 1, (2, 6)) + np.arange(6)
        cells = self.located(table)
        found = contrast(cells, [1, -1], seed_table(cells), 0.95)
        reference = stats.ttest_rel(*table).confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((reference.low, reference.high))

    def test_one_cell_is_the_one_sample_t_test(self):
        values = np.random.default_rng(1).normal(0, 1, 5)
        cells = self.located([values])
        found = contrast(cells, [1], seed_table(cells), 0.95)
        reference = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((reference.low, reference.high))

    def test_mean_squares_are_those_of_the_two_way_table(self):
        """Against least squares with dummy variables."""
        table = np.random.default_rng(2).normal(0, 1, (4, 3)) + np.array([0, 1, 3])
        found = seed_table(self.located(table))
        cell, seed = np.indices(table.shape)
        dummies = [np.eye(4)[cell.ravel()], np.eye(3)[seed.ravel()]]
        rest = [_residual(design, table) for design in (dummies[0], np.column_stack(dummies))]
        assert found.of_interaction == pytest.approx(rest[1] / 6)
        assert found.of_seeds == pytest.approx((rest[0] - rest[1]) / 2)

    def test_the_same_runs_in_two_cells_cancel(self):
        cells = [CellValue(1.0, 0.1, 2, {1: 0.9, 2: 1.1}, fingerprint="base")] * 2
        assert contrast(cells, [1, -1], seed_table(cells), 0.95) == Estimate(0.0, 0.0, 0.0)

    def test_cells_with_other_seeds_are_taken_as_independent(self):
        cells = [CellValue(1.0, 0.3, 5, {1: 1.0}), CellValue(0.0, 0.4, 5, {2: 0.0})]
        found = contrast(cells, [1, -1], seed_table(cells), 0.95)
        freedom = 0.25**2 / (0.09**2 / 5 + 0.16**2 / 5)
        assert found.high - 1 == pytest.approx(0.5 * stats.t.ppf(0.975, freedom))

    def test_the_pooled_spread_has_the_degrees_of_freedom_of_all_cells(self):
        table = np.random.default_rng(4).normal(0, 0.1, (9, 3))
        found = pooled_spread(self.located(table))
        assert found is not None
        assert found.variance == pytest.approx(table.var(axis=1, ddof=1).mean())
        assert 4 < found.degrees_of_freedom <= 18

    UNLIKE = np.array([[0.1]] * 8 + [[0.37]])

    def test_unequal_spreads_are_not_pooled(self):
        """Then a sum of cells is one number for each seed, judged by the t-test of one sample."""
        table = np.random.default_rng(5).normal(size=(9, 6)) * self.UNLIKE
        cells, weights = self.located(table), [-1, *[0] * 7, 1]
        known = seed_table(cells)
        assert known is not None
        assert not known.alike
        assert pooled_spread(cells) is None
        found = contrast(cells, weights, known, 0.95)
        reference = stats.ttest_1samp(weights @ table, 0).confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
        # What seeds do not show adds up in squares, with its own degrees of freedom.
        bent = [replace(cell, extra_error=0.2) for cell in cells]
        half = contrast(bent, weights, known, 0.95).high - found.value
        rest = 0.2 * 2**0.5 * stats.t.ppf(0.975, 4)
        assert half == pytest.approx(math.hypot(reference.high - found.value, rest))

    def test_seeds_that_agree_by_chance_do_not_shorten_the_interval(self):
        """Spreads differ, and the difference of two cells happens to be the same for each seed."""
        table = np.random.default_rng(5).normal(size=(9, 6)) * self.UNLIKE
        table[1] = table[0] + 0.3
        cells, weights = self.located(table), [-1, 1, *[0] * 7]
        known = seed_table(cells)
        assert known is not None
        assert not known.alike
        found = contrast(cells, weights, known, 0.95)
        pooled = contrast(cells, weights, replace(known, alike=True), 0.95)
        assert (found.low, found.high) == pytest.approx((pooled.low, pooled.high))
        assert found.high > 0.35

    def test_members_with_unequal_spreads_have_the_freedom_of_their_cells(self):
        random = np.random.default_rng(6)
        table = random.normal(size=(9, 6)) * self.UNLIKE + random.normal(size=6)
        cells = self.located(table)
        known = seed_table(cells)
        assert known is not None
        assert not known.alike
        assert known.effects
        noise, freedom = member_noise(cells, known)
        rest = table - table.mean(axis=0)
        own = rest.var(axis=1, ddof=1) * 9 / 8 / 6
        assert noise == pytest.approx(own.mean())
        assert freedom == pytest.approx(own.sum() ** 2 / (own**2 / 5).sum())

    @pytest.mark.parametrize("common", [0.0, 0.1])
    def test_intervals_hold_where_pooled_ones_do_not(self, common, monkeypatch):
        """1000 tables of nine cells and six seeds. In the last cell, seeds lie 3.7 times as far
        apart, and the difference to the first is asked for; its true value is 0.
        """

        def held(level, spreads):
            monkeypatch.setattr("mupscale.analysis.contrasts.POOLING_LEVEL", level)
            random, weights = np.random.default_rng(8), [-1, *[0] * 7, 1]
            found = []
            for _ in range(1000):
                table = random.normal(size=(9, 6)) * spreads + common * random.normal(size=6)
                cells = self.located(table)
                found.append(contrast(cells, weights, seed_table(cells), 0.95))
            halves = [(one.high - one.low) / 2 for one in found]
            return np.mean([not one.excludes(0) for one in found]), np.mean(halves)

        pooled, ours = held(0.0, self.UNLIKE)[0], held(0.25, self.UNLIKE)[0]
        assert pooled < 0.8
        assert ours > 0.92
        # Where spreads are equal, hardly anything is lost.
        (share, half), (_, least) = held(0.25, 0.1), held(0.0, 0.1)
        assert share > 0.935
        assert half < 1.1 * least


def _residual(design, table):
    solution = np.linalg.lstsq(design, table.ravel(), rcond=None)[0]
    return float(np.square(table.ravel() - design @ solution).sum())


class TestTransfer:
    def test_variance_mean_and_sd_are_over_members(self):
        rule = analyse(study({"a": (-6.0, -5.8, -6.4)}, noise=1e-6), axis="r").transfers[0]
        assert rule.mean.value == pytest.approx(-6.0667, abs=1e-3)
        assert rule.variance == pytest.approx(np.var([-6.0, -5.8, -6.4]), abs=1e-3)
        assert rule.sd.value == pytest.approx(math.sqrt(rule.variance))

    def test_drift_is_octaves_for_each_doubling(self):
        rule = analyse(study({"a": (-6.0, -6.2, -6.4)}), axis="r").transfers[0]
        assert rule.drift.value == pytest.approx(-0.1, abs=0.02)
        assert rule.drift.excludes(0)

    def test_noise_alone_is_no_drift(self):
        rule = analyse(study({"a": (-6.0, -6.0, -6.0)}, noise=0.01), axis="r").transfers[0]
        assert not rule.drift.excludes(0)
        assert rule.variance < 4 * rule.noise_variance

    def test_regret_is_the_loss_at_the_proxys_optimum_less_that_at_its_own(self):
        rule = analyse(study({"a": (-6.0, -6.5, -5.5)}, noise=1e-5), axis="r").transfers[0]
        assert [one.member for one in rule.regrets] == MEMBERS[1:]
        assert [one.loss.value for one in rule.regrets] == pytest.approx(
            [0.1 / 2 * 0.25] * 2, rel=0.02
        )
        assert [one.octaves.value for one in rule.regrets] == pytest.approx([0.5, -0.5], abs=0.01)

    def test_a_regret_beyond_the_fitted_rates_is_extrapolated(self):
        """The curve of the last member has runs only up to half an octave above its optimum."""
        runs = study({"a": (-5.0, -6.0, -7.5)}, noise=1e-5)
        kept = [
            one for one in runs if one.member != MEMBERS[2] or math.log2(one.params["lr"]) < -6.9
        ]
        for measured, expected in ((runs, [False, True]), (kept, [False, True])):
            rule = analyse(measured, axis="r").transfers[0]
            assert [one.extrapolated for one in rule.regrets] == expected
        near = analyse(study({"a": (-5.5, -6.0, -7.0)}, noise=1e-5), axis="r").transfers[0]
        assert [one.extrapolated for one in near.regrets] == [False, False]

    def test_the_proxy_is_the_least_of_the_family_in_whatever_order(self):
        runs = study({"a": (-6.0, -6.5, -5.5)})
        assert analyse(runs[::-1], axis="r").transfers[0].regrets[0].proxy == MEMBERS[0]

    def test_a_member_whose_optimum_was_not_bracketed_is_not_compared(self):
        found = analyse(study({"a": (-6.0, -6.1, -1.0)}), axis="r")
        assert "edge" in found.cells[2].flags
        assert found.transfers[0].members == tuple(MEMBERS[:2])

    @pytest.mark.parametrize("spreads", [[0.1] * 9, np.geomspace(0.05, 0.2, 9).tolist()])
    def test_intervals_of_a_study_hold(self, spreads):
        """Nine cells of three seeds: optima, drifts and differences of rules, also if cells are
        unequally noisy.
        """
        optima, drifts, differences, _ = study_coverage(60, spreads)
        assert optima > 0.9
        assert drifts > 0.9
        assert differences > 0.9


class TestComparisons:
    def test_a_lower_loss_is_better_where_the_interval_says_so(self):
        found = analyse(study({"a": (-6.0,) * 3, "b": (-6.0,) * 3}, {"b": 1.95}), axis="r")
        loss = found.comparisons[0]
        assert (loss.quantity, loss.better) == ("loss at the optimum", "b")
        assert loss.difference.value == pytest.approx(0.05, abs=0.005)

    def test_of_equal_rules_none_is_better(self):
        random = np.random.default_rng(4)
        better = [
            one.better
            for _ in range(20)
            for one in analyse(
                study({"a": (-6.0,) * 3, "b": (-6.0,) * 3}, noise=0.01, random=random), axis="r"
            ).comparisons
        ]
        assert sum(one is not None for one in better) <= 0.15 * len(better)

    def test_a_rule_that_drifts_is_told_from_one_that_holds_still(self):
        found = analyse(study({"still": (-6.0,) * 3, "drifting": (-6.0, -6.5, -7.0)}), axis="r")
        assert {one.quantity: one.better for one in found.comparisons}["drift"] == "still"

    def test_one_seed_tells_no_difference_in_loss(self):
        found = analyse(
            study({"a": (-6.0,) * 3, "b": (-6.0,) * 3}, {"b": 1.0}, seeds=(1,)), axis="r"
        )
        assert all(one.better is None for one in found.comparisons if "loss" in one.quantity)

    def test_rules_that_are_the_same_on_the_proxy_are_compared_on_the_others(self):
        runs = study({"a": (-6.0, -6.2)})
        twin = [
            Measurement(**{**vars(run), "rule": "b"}) for run in runs if run.member == MEMBERS[0]
        ]
        rest = study({"b": (-6.0, -6.6)}, random=np.random.default_rng(9))
        found = analyse(
            [*runs, *twin, *(run for run in rest if run.member == MEMBERS[1])], axis="r"
        )
        assert {one.quantity: one.better for one in found.comparisons}["drift"] == "a"


class TestTwoParameters:
    def runs(self, rule="a", at=((-6.0, -2.0), (-6.0, -3.0)), steps=(100, 400)):
        random = np.random.default_rng(0)
        return [
            Measurement(
                rule=rule, member=member, seed=1, steps=length,
                params={"lr": 2.0**x, "weight_decay": 2.0**y},
                loss=2 + 0.04 * (x - lr) ** 2 + 0.02 * (y - decay) ** 2 + random.normal(0, 0.002),
            )
            for member, (lr, decay), length in zip(MEMBERS, at, steps, strict=False)
            for x, y in random.uniform((-8, -6), (-4, 2), (80, 2))
        ]  # fmt: skip

    def test_variances_of_rate_decay_and_time_scale(self):
        """Four times the steps and half the decay: τ is 2^(6+2)/100 and 2^(6+3)/400, an octave
        apart.
        """
        found = analyse(self.runs(), axis="r")
        assert found.parameters == ("lr", "weight_decay")
        row = found.variances["fitted"][0].variances
        assert row == pytest.approx(
            {"lr": 0.0, "weight_decay": 0.25, "tau_epoch": 0.25, "loss": 0.0}, abs=0.05
        )
        assert set(found.variances["lowest"][0].variances) == set(row)

    def test_drift_of_the_rate_and_regret_along_the_valley(self):
        rule = analyse(self.runs(at=((-6.0, -2.0), (-5.0, -2.0))), axis="r").transfers[0]
        assert rule.drift.value == pytest.approx(0.5, abs=0.1)
        assert rule.regrets[0].loss.value == pytest.approx(0.04, rel=0.25)


class TestLittleData:
    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_few_runs_have_no_transfer(self, count):
        found = analyse(study({"a": (-6.0,)})[:count], axis="r")
        assert all(rule.mean is None for rule in found.transfers)
        assert found.comparisons == ()

    def test_all_diverged(self):
        runs = [Measurement(**{**vars(run), "loss": None}) for run in study({"a": (-6.0, -6.0)})]
        found = analyse(runs, axis="r")
        assert [cell.found for cell in found.cells] == [{}, {}]
        assert found.cells[0].diverged == len(RATES) * 3

    def test_a_seed_that_is_missing_in_one_cell(self):
        runs = [
            run
            for run in study({"a": (-6.0, -6.3, -6.6)})
            if run.seed != 3 or run.member != MEMBERS[1]
        ]
        rule = analyse(runs, axis="r").transfers[0]
        assert rule.drift.value == pytest.approx(-0.15, abs=0.03)
        assert rule.drift.bounded


@pytest.mark.parametrize("octaves", [-3.0, -2.0, -0.5, 0.5, 2.0])
def test_a_distance_costs_the_curve_and_at_least_half_its_parabola(octaves):
    """On its flat side a cubic turns down, where it would promise a loss below the minimum."""
    optimum = fit_optimum([-9, -8, -7, -6, -5], [2.42, 2.20, 2.11, 2.19, 2.41])
    assert optimum is not None
    bent = replace(optimum, bend=(0.1, 0.04))
    cell = CellAnalysis("mup", Member(label=""), 5, 0, (0,), None, bent, None)
    curve, parabola = 0.1 * octaves**2 + 0.04 * octaves**3, 0.1 * octaves**2
    assert loss_above(cell, octaves) == pytest.approx(max(curve, parabola / 2))
    assert (loss_above(cell, octaves) > curve + 1e-9) == (octaves < -1.25)
