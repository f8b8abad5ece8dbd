"""`Study`: a folder that holds what is run and what came of it. Kill it at any time and run it
again.
"""

import itertools
import json
import math
import os
import shutil
import signal
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from mupscale.engines import Engine, Outcome, Session, engine_named
from mupscale.engines.jobs import TerminatedError, terminable
from mupscale.engines.ledger import Ledger
from mupscale.errors import (
    InterruptedJobsError,
    InterruptedRunError,
    MissingExtraError,
    OptionError,
    StorageError,
    StudyFailedError,
)
from mupscale.records import differences, write_whole
from mupscale.studies.cell_run import CellRun, Proposed, assignment, fingerprint_of, trainer_of
from mupscale.studies.config import StudyConfig
from mupscale.studies.names import inside
from mupscale.studies.planning import check_plan, with_reading
from mupscale.studies.storage import HURRY_SECONDS, Mirror
from mupscale.studies.trainers import check_trainer, train
from mupscale.studies.trials import TrialRecord

RECORDS, CONFIG, STATUS = "records.jsonl", "study.toml", "status.json"

Remark = Callable[[str], None]


@dataclass(frozen=True)
class Snapshot:
    """Where a study stands: trials by cell, and which run now (trial: since when)."""

    config: StudyConfig
    cells: Mapping[str, Mapping[int, TrialRecord]]
    expected: Mapping[str, int]
    "Trials that are known to belong to each cell so far."
    done: frozenset[str]
    "Cells whose search has ended."
    running: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def trials(self) -> list[TrialRecord]:
        return [trial for cell in self.cells.values() for _, trial in sorted(cell.items())]


@dataclass(frozen=True)
class Study:
    """A study on disk. `Study.create` makes one, `Study.open` finds it again."""

    folder: Path
    config: StudyConfig

    @staticmethod
    def create(config: StudyConfig, folder: Path | str) -> "Study":
        """A new study, or the one that is there if it is the same; budgets, engine and storage may
        differ.

        It keeps what mupscale.toml beside the trainer's model says, unless the config has a reading
        of its own.
        """
        config = with_reading(config)
        study = Study(Path(folder), config)
        study._check()
        known = study.folder / CONFIG
        old = StudyConfig.load(known) if known.exists() else None
        if old is not None:
            _refuse_another(study.folder, old, config)
        if old != config:  # else the file stays as it was written, with its comments
            write_whole(known, config.to_toml().encode())
        return study

    @staticmethod
    def open(folder: Path | str) -> "Study":
        """A study that was begun before."""
        path = Path(folder) / CONFIG
        if not path.exists():
            raise OptionError(
                f"{folder} holds no study: {CONFIG} is not there. mupscale sweep makes one."
            )
        return Study(Path(folder), StudyConfig.load(path))

    def _check(self) -> None:
        """What can be known before anything runs."""
        if self.config.trainer is not None:
            check_plan(self.config)
        names = [
            *self.config.space,
            *self.config.vary,
            *(["variant"] if self.config.variants else []),
        ]
        check_trainer(trainer_of(self.config), names)

    def snapshot(self) -> Snapshot:
        """As the files tell it, also while another process runs it."""
        cells: dict[str, dict[int, TrialRecord]] = {cell.name: {} for cell in self.config.cells()}
        for trial in self._recorded():
            cells.setdefault(trial.cell, {})[trial.number] = trial
        runs = [
            CellRun(self.config, cell, cells[cell.name].values()) for cell in self.config.cells()
        ]
        done = frozenset(run.cell.name for run in runs if run.done)
        return Snapshot(
            self.config, cells, {run.cell.name: run.expected for run in runs}, done, self._running()
        )

    def _running(self) -> dict[str, float]:
        try:
            status = json.loads((self.folder / STATUS).read_text(encoding="utf-8"))
            os.kill(status["pid"], 0)
            return dict(status["running"])
        except (OSError, ValueError, KeyError, TypeError):  # no driver is there
            return {}

    @property
    def trials(self) -> list[TrialRecord]:
        """All that have ended, by cell and number."""
        order = {cell.name: place for place, cell in enumerate(self.config.cells())}
        return sorted(
            self._recorded(), key=lambda trial: (order.get(trial.cell, len(order)), trial.number)
        )

    def _recorded(self) -> Iterator[TrialRecord]:
        records = self.folder / RECORDS
        return _trials(Ledger.read(records)[1]) if records.exists() else iter(())

    def run(
        self,
        *,
        engine: Engine | None = None,
        report: Callable[[Snapshot], None] | None = None,
        remark: Remark | None = None,
        reuse: "Study | None" = None,
    ) -> Snapshot:
        """Run what is missing. `report` hears after each trial and each second, `remark` what a
        reader should know.

        Results of `reuse` are taken over where a trial there is the same as one here.
        """
        say = remark or (lambda _: None)
        known = (
            {}
            if reuse is None
            else {trial.fingerprint: trial for trial in reuse.trials if trial.status in _REUSABLE}
        )
        engine = engine or self._engine()
        about = {"study": self.config.identity()}
        with Ledger(self.folder / RECORDS, about) as book:
            if book.torn:
                say(
                    f"{self.folder / RECORDS}: the last line was torn and is dropped; its trial is "
                    "run again."
                )
            driver = _Driver(self, book, known, report or (lambda _: None), say)
            try:
                with driver, terminable():
                    driver.run(engine)
            except KeyboardInterrupt as stop:
                number = signal.SIGTERM if isinstance(stop, TerminatedError) else signal.SIGINT
                raise InterruptedJobsError(
                    number, len(book.results), driver.expected, str(self.folder)
                ) from stop
        return driver.snapshot()

    def _engine(self) -> Engine:
        chosen = self.config.engine
        memory = None if chosen.memory_limit is None else int(chosen.memory_limit * 1e9)
        # A command is given its time by the trial that starts it, which then still has its output.
        limit = (
            None
            if self.config.trainer is not None and self.config.trainer.command
            else chosen.time_limit
        )
        options: dict[str, Any] = {
            "retries": chosen.retries,
            "time_limit": limit,
            "memory_limit": memory,
        }
        if chosen.name == "ray":
            options |= {"address": chosen.address, "cpus": chosen.cpus, "gpus": chosen.gpus}
        else:
            options |= {"workers": chosen.workers}
        return engine_named(chosen.name, **options)


_REUSABLE = ("finished", "diverged")
_FAILED = ("failed", "oom", "timeout")
_PATIENCE = 3
"""Failed trials after which a study ends, if not one has run."""

_STATUS_SECONDS = 1.0


class _Driver:
    """Decides what runs next, and writes down what has ended."""

    def __init__(
        self,
        study: Study,
        book: Ledger,
        known: Mapping[str, TrialRecord],
        report: Callable[[Snapshot], None],
        remark: Remark,
    ) -> None:
        self.study, self.config, self.book, self.known = study, study.config, book, known
        self.report, self.remark = report, remark
        ended: dict[str, list[TrialRecord]] = {}
        for trial in _trials(book.results):
            ended.setdefault(trial.cell, []).append(trial)
        self.cells = [
            CellRun(self.config, cell, ended.get(cell.name, ())) for cell in self.config.cells()
        ]
        self._turn = deque(range(len(self.cells)))
        self._submitted: dict[str, tuple[Proposed, str, float]] = {}
        self._ran = any(trial.has_run for trials in ended.values() for trial in trials)
        self._failures: list[TrialRecord] = []
        self._places = 1
        self._stops: Counter[str] = Counter()
        self._status_due = 0.0
        self.mirror = self._mirrored()

    def _mirrored(self) -> Mirror | None:
        """The database, with what it lacked; without Optuna the records must do, unless a database
        was asked for.
        """
        config, folder = self.config, self.study.folder
        mirror = Mirror(
            config.storage, folder, config.name, _owner(folder), self.remark, config.widest_space()
        )
        try:
            mirror.sync(self.book.results)
        except MissingExtraError as error:
            if config.storage is not None:
                raise
            self.remark(f"no study.db: {error}")
            return None
        return mirror

    @property
    def expected(self) -> int:
        return sum(cell.expected for cell in self.cells)

    def run(self, engine: Engine) -> None:
        self.report(self.snapshot())
        if all(cell.done for cell in self.cells):
            return
        with engine.session(train) as session:
            while self._fill(session) or self._submitted:
                self._tell_status()
                for outcome in session.finished(timeout=_STATUS_SECONDS):
                    if not self._tried_again(outcome, session):
                        self._take(outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the mirror, but not for long if the user is waiting for an error."""
        if self.mirror is not None:
            self.mirror.close(math.inf if kind is None else HURRY_SECONDS)
        (self.study.folder / STATUS).unlink(missing_ok=True)

    def _fill(self, session: Session) -> bool:
        """Submit what can start: one trial for each place, and one more that waits beside it."""
        filled = False
        self._places = max(1, session.capacity)
        while len(self._submitted) < 2 * self._places:
            proposed = self._next()
            if proposed is None:
                return filled
            filled = True
            if not self._reused(proposed):
                work, fingerprint = self._work(proposed)
                self._submitted[proposed.key] = (proposed, fingerprint, time.time())
                session.submit(proposed.key, work)
        return filled

    def _next(self) -> Proposed | None:
        """From the cells in turn, so that all come along together."""
        for _ in range(len(self._turn)):
            cell = self.cells[self._turn[0]]
            self._turn.rotate(-1)
            proposed = cell.next()
            if proposed is not None:
                return proposed
        return None

    def _work(self, proposed: Proposed) -> tuple[dict[str, Any], str]:
        folder = inside(self.study.folder, "trials", proposed.cell.name, f"{proposed.number:04d}")
        work = assignment(self.config, proposed, str(folder))
        return work, fingerprint_of(work)

    def _reused(self, proposed: Proposed) -> bool:
        if not self.known:
            return False
        _, fingerprint = self._work(proposed)
        found = self.known.get(fingerprint)
        if found is not None:
            self._keep(
                proposed,
                fingerprint,
                {name: getattr(found, name) for name in _RESULT},
                attempts=found.attempts,
            )
        return found is not None

    def _tried_again(self, outcome: Outcome, session: Session) -> bool:
        """A trial whose machine asked it to stop has saved its state, and goes on. A full disk is
        not its fault.
        """
        error = outcome.failure.error if outcome.failure else None
        if isinstance(error, StorageError):
            raise error
        again = (
            isinstance(error, InterruptedRunError)
            and self._stops[outcome.job] < self.config.engine.retries
        )
        if again:
            self._stops[outcome.job] += 1
            session.submit(outcome.job, self._work(self._submitted[outcome.job][0])[0])
        return again

    def _take(self, outcome: Outcome) -> None:
        proposed, fingerprint, began = self._submitted.pop(outcome.job)
        result: dict[str, Any]
        if outcome.failure is None:
            result = dict(outcome.result)
        else:
            status = outcome.failure.kind if outcome.failure.kind in _FAILED else "failed"
            result = {"status": status, "loss": None, "error": str(outcome.failure.error)}
        attempts = max(outcome.attempts, int(result.pop("attempts", None) or 1))
        trial = self._keep(proposed, fingerprint, {"began": began} | result, attempts=attempts)
        if not self.config.keep_runs and trial.status not in _FAILED:
            shutil.rmtree(
                inside(self.study.folder, "trials", trial.cell, f"{trial.number:04d}"),
                ignore_errors=True,
            )
        self._watch(trial)

    def _keep(
        self, proposed: Proposed, fingerprint: str, result: Mapping[str, Any], attempts: int
    ) -> TrialRecord:
        """On disk first, then everywhere else."""
        cell = proposed.cell
        trial = TrialRecord(
            cell=cell.name,
            rule=cell.rule_name,
            variant=cell.variant,
            number=proposed.number,
            round=proposed.round,
            seed=proposed.point.seed,
            params=dict(proposed.point.params),
            fingerprint=fingerprint,
            attempts=attempts,
            **result,
        )
        record = trial.to_dict()
        self.book.append(trial.key, record)
        if self.mirror is not None:
            self.mirror.add(trial.key, record)
        next(one for one in self.cells if one.cell is cell).add(trial)
        self.report(self.snapshot())
        return trial

    def _watch(self, trial: TrialRecord) -> None:
        """End a study in which nothing runs: the fault is in its settings, and every trial would
        cost its time.
        """
        self._ran = self._ran or trial.has_run
        if trial.status in _FAILED:
            self.remark(f"{trial.key} {trial.status}: {_first_line(trial.error)}")
            self._failures.append(trial)
        if not self._ran and len(self._failures) >= _PATIENCE:
            folder = self.study.folder
            raise StudyFailedError(
                f"the first {_PATIENCE} trials all failed, the last with: {trial.error}\nTheir "
                "folders are kept in "
                f"{folder / 'trials'}. Mend it, and run again with --retry-failed."
            )

    def _tell_status(self) -> None:
        """For `--status` in another terminal; not so often that it costs anything."""
        now = time.monotonic()
        if now < self._status_due:
            return
        self._status_due = now + _STATUS_SECONDS
        content = {"pid": os.getpid(), "running": self._running()}
        write_whole(self.study.folder / STATUS, json.dumps(content).encode())
        self.report(self.snapshot())

    def _running(self) -> dict[str, float]:
        """Those that were submitted first; the others wait beside them."""
        first = itertools.islice(self._submitted.items(), self._places)
        return {key: began for key, (_, _, began) in first}

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.config,
            {cell.cell.name: cell.trials for cell in self.cells},
            {cell.cell.name: cell.expected for cell in self.cells},
            frozenset(cell.cell.name for cell in self.cells if cell.done),
            self._running(),
        )


_RESULT = (
    "status",
    "loss",
    "step",
    "steps",
    "tokens",
    "train_loss",
    "curve",
    "began",
    "seconds",
    "error",
)


def _trials(rows: Mapping[str, Any]) -> Iterator[TrialRecord]:
    for key, values in rows.items():
        yield TrialRecord.from_dict(key, values)


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0]


def _owner(folder: Path) -> str:
    """A name that no other folder has, for databases that several studies share."""
    path = folder / ".owner"
    if not path.exists():
        write_whole(path, uuid.uuid4().hex.encode())
    return path.read_text(encoding="utf-8").strip()


def _refuse_another(folder: Path, old: StudyConfig, new: StudyConfig) -> None:
    changed = list(differences(old.identity(), new.identity()))
    if changed and (folder / RECORDS).exists():
        raise OptionError(
            f"{folder} holds another study ({'; '.join(changed)}). Choose another --output, or "
            "begin a new study that "
            f"takes over what is the same: --output NEW --fork {folder}."
        )


def retry_failed(study: Study) -> int:
    """Forget trials that failed, so that they run again; their records go to failed.jsonl. How many
    they were.
    """
    path = study.folder / RECORDS
    with Ledger(path, {"study": study.config.identity()}) as book:
        failed = {key: row for key, row in book.results.items() if row["status"] in _FAILED}
        if failed:
            with (study.folder / "failed.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(
                    json.dumps({"job": key, "result": row}) + "\n" for key, row in failed.items()
                )
            book.forget(failed)
    return len(failed)
