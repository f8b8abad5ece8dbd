"""Our search and our early stopping in plain Optuna."""

import math

import optuna
import pytest

from mupscale.errors import OptionError
from mupscale.studies.samplers import AdaptiveSampler, HopelessPruner


@pytest.fixture(autouse=True)
def quiet():
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(level)


def bowl(trial: optuna.Trial) -> float:
    x = math.log2(trial.suggest_float("lr", 2**-8, 2**-4, log=True))
    return 2 + 0.05 * (x + 6.4) ** 2 + 0.004 * math.sin(40 * x)


class TestSampler:
    def test_ends_the_study_by_itself_near_the_optimum(self):
        study = optuna.create_study(sampler=AdaptiveSampler())
        study.optimize(bowl, n_trials=60)
        assert 5 <= len(study.trials) < 20
        assert abs(math.log2(study.best_params["lr"]) + 6.4) < 0.8

    def test_a_smaller_tolerance_takes_more_trials(self):
        def trials(tolerance: float) -> int:
            study = optuna.create_study(sampler=AdaptiveSampler(tolerance=tolerance))
            study.optimize(bowl, n_trials=30)
            return len(study.trials)

        assert trials(0.02) > trials(0.25)

    def test_other_parameters_are_sampled_too(self):
        study = optuna.create_study(sampler=AdaptiveSampler(seed=0))
        study.optimize(
            lambda trial: bowl(trial) + 0 * trial.suggest_float("std", 0.01, 0.1), n_trials=4
        )
        assert len({trial.params["std"] for trial in study.trials}) == 4

    def test_pruned_and_failed_trials_bound_the_search(self):
        def diverging(trial: optuna.Trial) -> float:
            loss = bowl(trial)
            if trial.params["lr"] > 2**-6.2:
                raise optuna.TrialPruned
            return loss

        study = optuna.create_study(sampler=AdaptiveSampler())
        study.optimize(diverging, n_trials=12)
        complete = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
        assert len(complete) >= 4
        assert abs(math.log2(study.best_params["lr"]) + 6.4) < 0.8

    def test_a_parameter_that_is_not_logarithmic_is_refused(self):
        study = optuna.create_study(sampler=AdaptiveSampler())
        with pytest.raises(OptionError, match="log=True"):
            study.optimize(lambda trial: trial.suggest_float("lr", 0.1, 1.0), n_trials=1)


class TestPruner:
    def curve(self, trial: optuna.Trial, behind: float) -> float:
        for step in range(1, 33):
            trial.report(4 - step / 16 + behind, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 2 + behind

    def test_a_trial_far_behind_is_pruned_in_the_middle_and_others_are_not(self):
        study = optuna.create_study(pruner=HopelessPruner(steps=32))
        study.optimize(lambda trial: self.curve(trial, [0.0, 0.1, 3.0][trial.number]), n_trials=3)
        best, near, far = study.trials
        assert best.state == near.state == optuna.trial.TrialState.COMPLETE
        assert far.state == optuna.trial.TrialState.PRUNED
        # Judged from 40 % of the steps on: 13 is the first of 32 beyond.
        assert far.last_step == 13

    def test_the_first_trial_has_nothing_to_be_compared_with(self):
        study = optuna.create_study(pruner=HopelessPruner(steps=32))
        study.optimize(lambda trial: self.curve(trial, 100.0), n_trials=1)
        assert study.trials[0].state == optuna.trial.TrialState.COMPLETE
