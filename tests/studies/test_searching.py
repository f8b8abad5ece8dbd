import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mupscale.studies import StudyConfig, TrialRecord
from mupscale.studies.cell_run import CellRun
from mupscale.studies.config import Cell
from mupscale.studies.quick import QUICK
from mupscale.studies.searching import proposals, stopping

SEEDS = (1, 2, 3)


def configured(method: str, **search: Any) -> StudyConfig:
    return StudyConfig.from_dict(
        {**QUICK, "seeds": list(SEEDS), "search": {"method": method, **search}}
    )


def bowl(x: float, seed: int) -> float:
    """An optimum at 2^-6.3, and noise that depends on the point alone, as that of a real run
    does.
    """
    noise = np.random.default_rng([round(1e6 * (x + 100)), seed]).normal()
    return 2 + 0.05 * (x + 6.3) ** 2 + 0.01 * seed + 0.005 * float(noise)


def carried_out(
    config: StudyConfig, loss: Callable[[float, int], float | None] = bowl
) -> list[TrialRecord]:
    cell = config.cells()[0]
    run = CellRun(config, cell, ())
    ended: list[TrialRecord] = []
    while (proposed := run.next()) is not None:
        ended.append(trial_of(cell, proposed.number, proposed.round, proposed.point, loss))
        run.add(ended[-1])
    assert run.done
    return ended


def trial_of(
    cell: Cell,
    number: int,
    which_round: int,
    point: Any,
    loss: Callable[[float, int], float | None],
) -> TrialRecord:
    value = loss(math.log2(point.params["lr"]), point.seed)
    return TrialRecord(
        cell=cell.name, rule=cell.rule_name, variant=cell.variant, number=number,
        round=which_round, seed=point.seed, params=point.params,
        status="diverged" if value is None else "finished", loss=value, step=10, steps=10,
        tokens=100,
    )  # fmt: skip


class TestMethods:
    def test_the_grid_holds_every_half_power_for_every_seed_once(self) -> None:
        trials = carried_out(configured("grid"))
        points = sorted((trial.log2_lr, trial.seed) for trial in trials)
        assert points == sorted((x / 2, seed) for x in range(-16, -7) for seed in SEEDS)

    def test_a_grid_of_two_parameters_is_their_product(self) -> None:
        space = {"lr": ["2^-6", "2^-4"], "weight_decay": ["2^-2", "2^0"]}
        config = StudyConfig.from_dict(
            {**QUICK, "seeds": [1], "space": space, "search": {"method": "grid", "step": 1.0}}
        )
        points = {
            (math.log2(t.params["lr"]), math.log2(t.params["weight_decay"]))
            for t in carried_out(config)
        }
        assert points == {(x, y) for x in (-6, -5, -4) for y in (-2, -1, 0)}

    def test_random_points_are_log_uniform_and_the_same_for_every_rule(self) -> None:
        config = StudyConfig.from_dict(
            {**QUICK, "rules": ["mup", "gqa-mup"], "search": {"method": "random", "trials": 400}}
        )
        xs = np.array([trial.log2_lr for trial in carried_out(config)])
        assert xs.min() >= -8
        assert xs.max() <= -4
        # The mean of 400 uniform numbers on an interval of 4 has a standard error of 4/√12/20 =
        # 0.058.
        assert abs(xs.mean() + 6) < 4 * 0.058
        first, second = (CellRun(config, cell, ()) for cell in config.cells())
        for _ in range(5):
            one, other = first.next(), second.next()
            assert one is not None
            assert other is not None
            assert one.point == other.point

    @pytest.mark.parametrize("method", ["random", "tpe", "adaptive"])
    def test_a_budget_is_kept_and_can_grow(self, method: str) -> None:
        few, more = (
            carried_out(configured(method, trials=n, at_once=3, tolerance=0.001)) for n in (7, 11)
        )
        assert (len(few), len(more) >= len(few)) == (7, True)
        assert [t.params for t in more[: len(few)]] == [t.params for t in few]

    def test_a_budget_of_tokens_ends_a_search(self) -> None:
        assert len(carried_out(configured("random", tokens=900))) == 9

    def test_tpe_comes_to_prefer_the_optimum(self) -> None:
        trials = carried_out(configured("tpe", trials=60))
        early, late = ([abs(t.log2_lr + 6.3) for t in part] for part in (trials[:10], trials[-20:]))
        assert np.median(late) < np.median(early) / 2

    def test_adaptive_ends_by_itself_near_the_optimum_with_fewer_trials_than_the_grid(self) -> None:
        trials = carried_out(configured("adaptive"))
        assert len(trials) < len(carried_out(configured("grid"))) / 2
        assert len({trial.seed for trial in trials}) > 1

    def test_adaptive_flees_rates_that_diverge(self) -> None:
        trials = carried_out(
            configured("adaptive"), lambda x, seed: None if x > -6.9 else bowl(x + 1.2, seed)
        )
        finished = [trial.log2_lr for trial in trials if trial.loss is not None]
        assert finished
        assert min(finished) < -7


class TestOrderDoesNotMatter:
    @pytest.mark.parametrize("method", ["grid", "random", "tpe", "adaptive"])
    def test_a_round_depends_on_former_rounds_alone(self, method: str) -> None:
        config = configured(method, trials=12, at_once=3)
        cell = config.cells()[0]
        undisturbed = {trial.number: trial for trial in carried_out(config)}
        # Interrupted after every trial, and trials of a round end in the other order.
        ended: dict[int, TrialRecord] = {}
        for _ in range(100):
            run = CellRun(config, cell, ended.values())
            waiting = []
            while (proposed := run.next()) is not None:
                waiting.append(proposed)
            if not waiting:
                break
            last = waiting[-1]
            ended[last.number] = trial_of(cell, last.number, last.round, last.point, bowl)
        assert {n: (t.params, t.seed, t.round) for n, t in ended.items()} == {
            n: (t.params, t.seed, t.round) for n, t in undisturbed.items()
        }

    def test_failed_trials_do_not_stall_a_search(self) -> None:
        config = configured("adaptive", trials=9)
        cell = config.cells()[0]
        run, count = CellRun(config, cell, ()), 0
        while (proposed := run.next()) is not None:
            trial = trial_of(cell, proposed.number, proposed.round, proposed.point, bowl)
            run.add(replace(trial, status="failed", loss=None))
            count += 1
        assert count <= 9


class TestStopping:
    def test_a_trial_is_measured_against_the_best_of_its_own_seed(self) -> None:
        config = configured("adaptive")
        trials = [
            replace(trial, curve=[[5, trial.seed + 3.0], [10, trial.seed + 2.0]])
            for trial in carried_out(config)
        ]
        for seed in {trial.seed for trial in trials}:
            found = stopping(config, trials, seed)
            assert found is not None
            assert found["losses"] == [seed + 3.0, seed + 2.0]

    def test_a_grid_and_a_study_that_does_not_want_it_stop_nothing(self) -> None:
        trials = [
            replace(trial, curve=[[10, 2.0]]) for trial in carried_out(configured("adaptive"))
        ]
        assert stopping(configured("grid"), trials, 1) is None
        assert stopping(configured("adaptive", stop_hopeless=False), trials, 1) is None

    def test_the_first_round_has_nothing_to_be_measured_against(self) -> None:
        config = configured("adaptive")
        assert proposals(config, config.space, [])
        assert stopping(config, [], 1) is None
