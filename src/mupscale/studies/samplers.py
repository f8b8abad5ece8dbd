"""Our searches as Optuna samplers and pruners, and Optuna's as our searches. Only this file knows
Optuna's samplers.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mupscale.errors import MissingExtraError, OptionError
from mupscale.studies.adaptive import TOLERANCE, Observation, next_points
from mupscale.studies.stopping import FAR, hopeless, reference
from mupscale.studies.storage import quiet
from mupscale.studies.trials import Point, Space, TrialRecord

try:
    import optuna
    from optuna.distributions import BaseDistribution, FloatDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import RandomSampler
    from optuna.storages import InMemoryStorage
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise MissingExtraError("optuna", "study") from error

if TYPE_CHECKING:
    from optuna.study import Study


def tpe_round(
    space: Space, seeds: Sequence[int], seed: int, trials: Sequence[TrialRecord], count: int
) -> list[Point]:
    """Optuna's TPE, given the trials so far. Trials of a round take each other into account
    (constant liar).
    """
    mixed = int(np.random.default_rng([seed, len(trials)]).integers(2**31))
    sampler = optuna.samplers.TPESampler(
        seed=mixed, constant_liar=True, multivariate=len(space) > 1
    )
    with quiet():
        study = optuna.create_study(storage=InMemoryStorage(), sampler=sampler)
    distributions: dict[str, BaseDistribution] = {
        name: FloatDistribution(low, high, log=True) for name, (low, high) in space.items()
    }
    for trial in trials:
        study.add_trial(_frozen(trial, distributions))
    points: list[Point] = []
    for k in range(count):
        params = study.ask(fixed_distributions=distributions).params
        points.append(Point(params, seeds[(len(trials) + k) % len(seeds)]))
    return points


def _frozen(trial: TrialRecord, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
    """A diverged or stopped trial is a pruned one: worse than all that finished, ranked by its last
    loss.
    """
    curve = {int(step): loss for step, loss in trial.curve}
    return optuna.trial.create_trial(
        state=TrialState.COMPLETE if trial.loss is not None else TrialState.PRUNED,
        value=trial.loss,
        params=dict(trial.params),
        distributions=distributions,
        intermediate_values=curve,
    )


class AdaptiveSampler(RandomSampler):
    """Our adaptive search of one parameter for `optuna.create_study(sampler=…)`.

    The parameter must be a float on a logarithmic scale. The study stops when its optimum is known
    to ± `tolerance` octaves (powers of two). Other parameters are sampled at random.
    """

    def __init__(
        self, parameter: str = "lr", *, tolerance: float = TOLERANCE, seed: int | None = None
    ) -> None:
        super().__init__(seed=seed)
        self.parameter, self.tolerance = parameter, tolerance

    def sample_independent(
        self,
        study: "Study",
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        if param_name != self.parameter:
            return super().sample_independent(study, trial, param_name, param_distribution)
        if not isinstance(param_distribution, FloatDistribution) or not param_distribution.log:
            raise OptionError(
                f"{param_name}: the adaptive search needs suggest_float({param_name!r}, …, "
                "log=True)."
            )
        low, high = math.log2(param_distribution.low), math.log2(param_distribution.high)
        found = next_points(self._observations(study), (low, high), [0], 1, 0.0)
        # The optimum is known, but the study continues.
        x = found[0][0] if found else (low + high) / 2
        return float(np.clip(2.0**x, param_distribution.low, param_distribution.high))

    def _observations(self, study: "Study") -> list[Observation]:
        trials = study.get_trials(
            deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        )
        return [
            Observation(
                math.log2(one.params[self.parameter]),
                one.value if one.state == TrialState.COMPLETE else None,
                0,
            )
            for one in trials
            if self.parameter in one.params
        ]

    def after_trial(
        self, study: "Study", trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        observations = self._observations(study)
        if values is not None and self.parameter in trial.params:
            observations.append(Observation(math.log2(trial.params[self.parameter]), values[0], 0))
        distribution = trial.distributions.get(self.parameter)
        if isinstance(distribution, FloatDistribution):
            span = (math.log2(distribution.low), math.log2(distribution.high))
            if not next_points(observations, span, [0], 1, self.tolerance):
                study.stop()


class HopelessPruner(BasePruner):
    """Our early stopping for `optuna.create_study(pruner=…)`: prunes trials that are far behind the
    best one.

    `steps` is the step of the last `trial.report(loss, step)` of a full trial. All trials must see
    the same batches in the same order, and report the mean training loss since their last report.
    """

    def __init__(self, steps: int, *, far: float = FAR) -> None:
        self.steps, self.far = steps, far

    def prune(self, study: "Study", trial: FrozenTrial) -> bool:
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        best = min(
            (one for one in complete if one.intermediate_values),
            key=lambda one: one.value or 0.0,
            default=None,
        )
        step = trial.last_step
        if best is None or step is None:
            return False
        curve = sorted(best.intermediate_values.items())
        stop = reference(curve, self.steps, self.far)
        return hopeless(stop, step / self.steps, trial.intermediate_values[step])
