"""A cell while its study runs: proposed rounds, waiting trials, and finished ones."""

import hashlib
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mupscale.studies.config import Cell, StudyConfig
from mupscale.studies.planning import plan_dict
from mupscale.studies.searching import proposals, stopping
from mupscale.studies.trainers import TrialAssignment
from mupscale.studies.trials import Point, TrialRecord, trial_key


@dataclass(frozen=True)
class Proposed:
    """A trial to run."""

    cell: Cell
    number: int
    round: int
    point: Point
    stop: dict[str, Any] | None

    @property
    def key(self) -> str:
        return trial_key(self.cell.name, self.number)


class CellRun:
    """Which trials of a cell are next. It depends only on the records, so it can be rebuilt at any
    time.
    """

    def __init__(self, config: StudyConfig, cell: Cell, ended: Iterable[TrialRecord]) -> None:
        self.config, self.cell = config, cell
        self.trials: dict[int, TrialRecord] = {trial.number: trial for trial in ended}
        self.done = False
        self._round, self._first = self._begun()
        "The current round, and the number of its first trial."
        self._awaited: set[int] = set()
        self._waiting: deque[Proposed] = deque()
        self._propose()

    def _begun(self) -> tuple[int, int]:
        """Where to continue: a round starts when all before it have ended, so these need not be
        proposed again.
        """
        last = max((trial.round for trial in self.trials.values()), default=0)
        before = sum(trial.round < last for trial in self.trials.values())
        whole = all(number in self.trials for number in range(before))
        return (last, before) if whole else (0, 0)

    def next(self) -> Proposed | None:
        """A trial that can start now; None while the round has to end first, or if the search is
        done.
        """
        return self._waiting.popleft() if self._waiting else None

    def add(self, trial: TrialRecord) -> None:
        self.trials[trial.number] = trial
        self._awaited.discard(trial.number)
        if not self._awaited and not self._waiting:
            self._propose()

    def _propose(self) -> None:
        while not self.done:
            former = [self.trials[number] for number in range(self._first)]
            points = proposals(self.config, self.cell.space, former)
            self.done = not points
            numbers = range(self._first, self._first + len(points))
            missing = [number for number in numbers if number not in self.trials]
            stops = {
                seed: stopping(self.config, former, seed)
                for seed in {point.seed for point in points}
            }
            for number in missing:
                point = points[number - self._first]
                self._waiting.append(
                    Proposed(self.cell, number, self._round, point, stops[point.seed])
                )
            self._awaited = set(missing)
            self._round, self._first = self._round + 1, numbers.stop
            if missing:
                return

    @property
    def expected(self) -> int:
        """The number of trials that are known so far."""
        return self._first


def assignment(config: StudyConfig, proposed: Proposed, folder: str) -> TrialAssignment:
    """What `train` gets to run a proposed trial."""
    cell, point = proposed.cell, proposed.point
    run = config.run_config(cell, point.params, point.seed) if config.trainer is None else None
    return TrialAssignment(
        trial=proposed.key,
        rule=cell.rule_name,
        variant=cell.variant,
        seed=point.seed,
        params=dict(point.params),
        folder=folder,
        config=run,
        plan=plan_dict(config, cell, point.params),
        stop=proposed.stop,
        trainer=config.trainer,
        ranks=config.engine.ranks,
        time_limit=config.engine.time_limit,
    )


def fingerprint_of(work: TrialAssignment) -> str:
    """A hash of everything that decides a trial's result: not where it runs, what it records or
    when it is stopped early.
    """
    config: dict[str, Any] = {} if work.config is None else work.config.to_dict()
    for table, names in _WITHOUT_EFFECT.items():
        for name in names:
            config.get(table, {}).pop(name, None)
    trainer: dict[str, Any] = {"kind": "reference"}
    if work.trainer is not None and work.trainer.function is not None:
        trainer = {"kind": "function", "name": work.trainer.function}
    elif work.trainer is not None:
        trainer = {
            "kind": "command",
            "command": list(work.trainer.command or ()),
            "metrics": work.trainer.metrics,
            "environment": dict(work.trainer.environment),
        }
    decisive = {
        "config": config,
        "trainer": trainer,
        "rule": work.rule,
        "variant": work.variant,
        "seed": work.seed,
        "params": work.params,
        "plan": work.plan,
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


_WITHOUT_EFFECT = {
    "machine": ("device", "shard", "compile"),
    "record": ("log_every", "eval_every", "checkpoint_every", "tensorboard"),
}
