"""A cell while its study runs: rounds that are proposed, trials that wait, and those that have
ended.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mupscale.studies.config import Cell, StudyConfig
from mupscale.studies.planning import plan_dict
from mupscale.studies.searching import proposals, stopping
from mupscale.studies.trials import Point, TrialRecord, trial_key


@dataclass(frozen=True)
class Proposed:
    """A trial that is to be run."""

    cell: Cell
    number: int
    round: int
    point: Point
    stop: dict[str, Any] | None

    @property
    def key(self) -> str:
        return trial_key(self.cell.name, self.number)


class CellRun:
    """Knows which trials of a cell are next. It is a function of the records: making it anew loses
    nothing.
    """

    def __init__(self, config: StudyConfig, cell: Cell, ended: Iterable[TrialRecord]) -> None:
        self.config, self.cell = config, cell
        self.trials: dict[int, TrialRecord] = {trial.number: trial for trial in ended}
        self.done = False
        self._round, self._first = self._begun()
        "The round under way, and the number of its first trial."
        self._awaited: set[int] = set()
        self._waiting: deque[Proposed] = deque()
        self._propose()

    def _begun(self) -> tuple[int, int]:
        """Where to go on: a round is begun when all before it have ended, so these need not be
        proposed again.
        """
        last = max((trial.round for trial in self.trials.values()), default=0)
        before = sum(trial.round < last for trial in self.trials.values())
        whole = all(number in self.trials for number in range(before))
        return (last, before) if whole else (0, 0)

    def next(self) -> Proposed | None:
        """A trial that can start now; None while the round has to end first, or when all is
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
                stop = stops[point.seed]
                self._waiting.append(
                    Proposed(
                        self.cell, number, self._round, point, stop.to_dict() if stop else None
                    )
                )
            self._awaited = set(missing)
            self._round, self._first = self._round + 1, numbers.stop
            if missing:
                return

    @property
    def expected(self) -> int:
        """Trials that are known to belong to it so far."""
        return self._first


def assignment(config: StudyConfig, proposed: Proposed, folder: str) -> dict[str, Any]:
    """What the trial function gets."""
    cell, point = proposed.cell, proposed.point
    own = config.trainer is not None
    run = {} if own else config.run_config(cell, point.params, point.seed).to_dict()
    return {
        "trial": proposed.key,
        "rule": cell.rule_name,
        "variant": cell.variant,
        "seed": point.seed,
        "params": dict(point.params),
        "folder": folder,
        "config": run,
        "plan": plan_dict(config, cell),
        "stop": proposed.stop,
        "trainer": trainer_of(config),
    }


def trainer_of(config: StudyConfig) -> dict[str, Any]:
    """How a trial is trained, as the trial function takes it."""
    trainer, engine = config.trainer, config.engine
    if trainer is None:
        return {"kind": "reference", "ranks": engine.ranks}
    if trainer.function is not None:
        return {"kind": "function", "name": trainer.function}
    return {
        "kind": "command",
        "command": list(trainer.command or ()),
        "metrics": trainer.metrics,
        "time_limit": engine.time_limit,
        "environment": dict(trainer.environment),
    }


def fingerprint_of(work: Mapping[str, Any]) -> str:
    """Of all that decides a trial's result; places, records and early stopping are not among it."""
    trainer = {
        name: value
        for name, value in work["trainer"].items()
        if name not in ("ranks", "time_limit")
    }
    config = {
        table: {
            name: value
            for name, value in values.items()
            if f"{table}.{name}" not in _WITHOUT_EFFECT
        }
        if isinstance(values, dict)
        else values
        for table, values in work["config"].items()
    }
    decisive = {"config": config, "trainer": trainer} | {
        name: work[name] for name in ("rule", "variant", "seed", "params", "plan")
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


_WITHOUT_EFFECT = (
    "machine.device", "machine.shard", "machine.compile",
    "record.log_every", "record.eval_every", "record.checkpoint_every", "record.tensorboard",
)  # fmt: skip
