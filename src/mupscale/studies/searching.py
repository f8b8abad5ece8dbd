"""Which trials come next. A round is proposed from the trials of earlier rounds alone.

So a proposal does not depend on the order in which trials end, on the number of workers, or on how
often the study was interrupted: proposing again gives the same round.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mupscale.studies.adaptive import adaptive_round
from mupscale.studies.config import Search, StudyConfig
from mupscale.studies.paired import paired_round
from mupscale.studies.stopping import reference
from mupscale.studies.trials import Point, Space, TrialRecord, best

IN_FLIGHT = 4
"""Trials of a study that are proposed together by default: a search learns from trial to trial, but
workers must not wait.
"""

ADAPTIVE_TRIALS = 60
"""Default budget per cell: an optimum that is not known by then is not worth the search."""


def proposals(config: StudyConfig, space: Space, trials: Sequence[TrialRecord]) -> list[Point]:
    """The next round of a cell, given the trials of all earlier rounds; empty if the search is
    done.
    """
    search, left = config.search, _left(config.search, trials)
    if left <= 0:
        return []
    if search.method == "grid":
        return [] if trials else grid(space, config.seeds, search.step)[:left]
    if search.method == "random":
        count = left if search.trials is not None else len(config.seeds)
        return [
            random_point(space, config.seeds, search.seed, len(trials) + k)
            for k in range(min(count, left))
        ]
    if search.method == "paired":
        return paired_round(space, config.seeds, trials, search.step)[:left]
    count = search.at_once or max(1, round(IN_FLIGHT / len(config.cells())))
    if search.method == "tpe":
        from mupscale.studies.samplers import tpe_round

        return tpe_round(space, config.seeds, search.seed, trials, min(count, left))
    return adaptive_round(space, config.seeds, trials, count, search.tolerance)[:left]


def _left(search: Search, trials: Sequence[TrialRecord]) -> int:
    """The number of trials left in the budget."""
    spent = sum(trial.tokens or 0 for trial in trials)
    if search.tokens is not None and spent >= search.tokens:
        return 0
    default = ADAPTIVE_TRIALS if search.method == "adaptive" else 1_000_000
    return (search.trials or default) - len(trials)


def grid(space: Space, seeds: Sequence[int], step: float) -> list[Point]:
    """All combinations of values this many octaves apart, first for the first seed.

    >>> points = grid({"lr": (2**-8, 2**-7)}, [1], 0.5)
    >>> [round(math.log2(point.params["lr"]), 6) for point in points]
    [-8.0, -7.5, -7.0]
    """
    axes = [
        [2.0**x for x in _steps(math.log2(low), math.log2(high), step)]
        for low, high in space.values()
    ]
    return [
        Point(dict(zip(space, values, strict=True)), seed)
        for seed in seeds
        for values in itertools.product(*axes)
    ]


def _steps(low: float, high: float, step: float) -> list[float]:
    return [low + k * step for k in range(math.floor((high - low) / step + 1e-9) + 1)]


def random_point(space: Space, seeds: Sequence[int], seed: int, number: int) -> Point:
    """Log-uniform; the same for every cell, so that rules are compared at the same points."""
    uniform = np.random.default_rng([seed, number]).random(len(space))
    params = {
        name: float(low * (high / low) ** share)
        for (name, (low, high)), share in zip(space.items(), uniform, strict=True)
    }
    return Point(params, seeds[number % len(seeds)])


def stopping(
    config: StudyConfig, trials: Sequence[TrialRecord], seed: int
) -> dict[str, Any] | None:
    """What a new trial is compared with: the best one of its seed so far, which saw the same
    batches.
    """
    if not config.search.stop_hopeless or config.search.method not in ("adaptive", "tpe"):
        return None
    found = best([trial for trial in trials if trial.seed == seed])
    if found is None or not found.curve or not found.steps:
        return None
    return reference(found.curve, found.steps)
