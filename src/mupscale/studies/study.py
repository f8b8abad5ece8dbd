"""`Study`: a folder with a study's config and results. Kill it at any time, and run it again to
continue.
"""

import itertools
import json
import math
import os
import shutil
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from mupscale.engines import Engine, Outcome, Session, engine_named
from mupscale.engines.jobs import interruptible
from mupscale.engines.ledger import Ledger
from mupscale.errors import (
    InterruptedRunError,
    MissingExtraError,
    OptionError,
    StorageError,
    StudyFailedError,
)
from mupscale.records import differences, json_line, write_whole
from mupscale.studies.cell_run import CellRun, Proposed, assignment, fingerprint_of
from mupscale.studies.config import StudyConfig
from mupscale.studies.joining import joined_config, same_training
from mupscale.studies.names import inside
from mupscale.studies.planning import check_plan, with_reading
from mupscale.studies.storage import HURRY_SECONDS, Mirror, Remark
from mupscale.studies.trainers import TrialAssignment, check_trainer, train
from mupscale.studies.trials import FAILED, TrialRecord

RECORDS, CONFIG, STATUS = "records.jsonl", "study.toml", "status.json"


@dataclass(frozen=True)
class Snapshot:
    """The state of a study: trials by cell, and which are running (trial: start time)."""

    config: StudyConfig
    cells: Mapping[str, Mapping[int, TrialRecord]]
    expected: Mapping[str, int]
    "The number of trials per cell that are known so far."
    done: frozenset[str]
    "Cells whose search has ended."
    running: Mapping[str, float] = field(default_factory=dict[str, float])
    copies: frozenset[str] = frozenset()
    "Cells of joined studies that show the trials of another cell, since they train the same."

    @property
    def trials(self) -> list[TrialRecord]:
        return [trial for cell in self.cells.values() for _, trial in sorted(cell.items())]


@dataclass(frozen=True)
class Study:
    """A study on disk. `Study.create` makes one; `Study.open` opens it again."""

    folder: Path
    config: StudyConfig
    parts: tuple["Study", ...] = ()
    "The studies in the folders of this folder, if it is read as one study."

    @staticmethod
    def create(config: StudyConfig, folder: Path | str) -> "Study":
        """Create a study, or open the one in this folder if only budgets, engine or storage differ.

        The study includes the mupscale.toml beside the trainer's model, unless the config has its
        own reading.
        """
        config = with_reading(config)
        study = Study(Path(folder), config)
        study._check()
        known = study.folder / CONFIG
        old = StudyConfig.load(known) if known.exists() else None
        if old is not None:
            _refuse_another(study.folder, old, config)
        if old != config:  # an unchanged file keeps its comments
            write_whole(known, config.to_toml().encode())
        return study

    @staticmethod
    def open(folder: Path | str) -> "Study":
        """Open a study that was created before. A folder whose folders hold studies is read as one
        study, which cannot be run.
        """
        folder = Path(folder)
        if (folder / CONFIG).exists():
            return Study(folder, StudyConfig.load(folder / CONFIG))
        parts = tuple(Study.open(path.parent) for path in sorted(folder.glob(f"*/{CONFIG}")))
        if not parts:
            raise OptionError(
                f"{folder} holds no study: it has no {CONFIG}. Create one with mupscale sweep."
            )
        return Study(folder, joined_config(folder.name, [part.config for part in parts]), parts)

    @property
    def records(self) -> tuple[Path, ...]:
        """The files that hold the results."""
        return tuple(part.folder / RECORDS for part in self.parts) or (self.folder / RECORDS,)

    def _check(self) -> None:
        """Check what can be checked before anything runs."""
        if self.config.trainer is not None:
            check_plan(self.config)
        names = [
            *self.config.space,
            *self.config.vary,
            *(["variant"] if self.config.variants else []),
        ]
        check_trainer(self.config.trainer, names)

    def snapshot(self) -> Snapshot:
        """The state according to the files, also while another process runs the study."""
        if self.parts:
            return self._joined()
        return _snapshot(_cell_runs(self.config, self._recorded()), self._running())

    def _joined(self) -> Snapshot:
        """The parts together. Cells of two parts become one, with its trials numbered anew."""
        order = [cell.name for cell in self.config.cells()]
        by_cell: dict[str, list[TrialRecord]] = {name: [] for name in order}
        expected, done = dict.fromkeys(order, 0), set(order)
        running: dict[str, float] = {}
        for part in (study.snapshot() for study in self.parts):
            for name, trials in part.cells.items():
                by_cell[name] += [trial for _, trial in sorted(trials.items())]
                expected[name] += part.expected[name]
            done -= part.cells.keys() - part.done
            running |= part.running
        cells = {
            name: {n: replace(trial, number=n) for n, trial in enumerate(trials)}
            for name, trials in by_cell.items()
        }
        copies = dict(self._copied(expected))
        for name, source in copies.items():
            rule = next(cell.rule_name for cell in self.config.cells() if cell.name == name)
            cells[name] = {
                n: replace(trial, cell=name, rule=rule) for n, trial in cells[source].items()
            }
            expected[name] = expected[source]
            if source not in done:
                done.discard(name)
        empty = {name for name, count in expected.items() if not count}
        return Snapshot(
            self.config, cells, expected, frozenset(done - empty), running, frozenset(copies)
        )

    def _copied(self, expected: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Cells that no part has, each with a cell of another rule that trains the same."""
        cells = self.config.cells()
        for cell in (one for one in cells if not expected[one.name]):
            for other in (one for one in cells if expected[one.name]):
                if same_training(self.config, cell, other):
                    yield cell.name, other.name
                    break

    def _running(self) -> dict[str, float]:
        try:
            status = json.loads((self.folder / STATUS).read_text(encoding="utf-8"))
            os.kill(status["pid"], 0)
            return dict(status["running"])
        except (OSError, ValueError, KeyError, TypeError):  # no process runs the study
            return {}

    @property
    def trials(self) -> list[TrialRecord]:
        """All trials that have ended, by cell and number."""
        if self.parts:
            return self.snapshot().trials
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
        """Run what is missing. `report` is called after each trial and every second, `remark` with
        messages for the user.

        Results of the study `reuse` are copied for trials with the same fingerprint.
        """
        if self.parts:
            names = ", ".join(part.folder.name for part in self.parts)
            raise OptionError(f"{self.folder} joins several studies ({names}). Run each of them.")
        say = remark or (lambda _: None)
        others = [] if reuse is None else reuse.trials
        known = {trial.fingerprint: trial for trial in others if trial.status in _REUSABLE}
        engine = engine or self.engine
        about = {"study": self.config.identity()}
        with Ledger(self.folder / RECORDS, about) as book:
            if book.torn:
                say(f"{self.folder / RECORDS}: dropped a torn last line; its trial runs again.")
            driver = _Driver(self, book, known, report or (lambda _: None), say)
            with interruptible(driver.progress, self.folder), driver:
                driver.run(engine)
        return driver.snapshot()

    @property
    def engine(self) -> Engine:
        """What its config asks for."""
        chosen = self.config.engine
        memory = None if chosen.memory_limit is None else int(chosen.memory_limit * 1e9)
        # The trial that starts a command limits its time, and then still has its output.
        by_command = self.config.trainer is not None and self.config.trainer.command
        limit = None if by_command else chosen.time_limit
        names = ("address", "cpus", "gpus") if chosen.name == "ray" else ("workers",)
        own = {name: getattr(chosen, name) for name in names}
        return engine_named(
            chosen.name, retries=chosen.retries, time_limit=limit, memory_limit=memory, **own
        )


_REUSABLE = ("finished", "diverged")
_PATIENCE = 3
"""A study ends after this many failed trials if no trial has run."""

_STATUS_SECONDS = 1.0


class _Driver:
    """Decides what runs next, and records what has ended."""

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
        self.cells = _cell_runs(self.config, _trials(book.results))
        self._turn = deque(self.cells)
        self._submitted: dict[str, tuple[Proposed, str, float]] = {}
        self._ran = any(trial.has_run for cell in self.cells for trial in cell.trials.values())
        self._failures: list[TrialRecord] = []
        self._places = 1
        self._stops: Counter[str] = Counter()
        self._status_due = 0.0
        self.mirror = self._mirrored()

    def _mirrored(self) -> Mirror | None:
        """The Optuna database; None if Optuna is not installed and the config names no database."""
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

    def progress(self) -> tuple[int, int]:
        """The number of trials that have ended, and that are known so far."""
        return len(self.book.results), sum(cell.expected for cell in self.cells)

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
        with suppress(OSError):
            (self.study.folder / STATUS).unlink()

    def _fill(self, session: Session) -> bool:
        """Submit what can start: one trial per worker, and one more that waits for it."""
        filled = False
        self._places = max(1, session.capacity)
        while len(self._submitted) < 2 * self._places:
            proposed = self._next()
            if proposed is None:
                return filled
            filled = True
            work, fingerprint = self._work(proposed)
            if (earlier := self.known.get(fingerprint)) is not None:
                result = {name: getattr(earlier, name) for name in _RESULT}
                self._keep(proposed, fingerprint, result, attempts=earlier.attempts)
            else:
                self._submitted[proposed.key] = (proposed, fingerprint, time.time())
                session.submit(proposed.key, work)
        return filled

    def _next(self) -> Proposed | None:
        """From the cells in turn, so that all progress evenly."""
        for _ in self.cells:
            self._turn.rotate(-1)
            if (proposed := self._turn[-1].next()) is not None:
                return proposed
        return None

    def _folder(self, proposed: Proposed) -> Path:
        return inside(self.study.folder, "trials", proposed.cell.name, f"{proposed.number:04d}")

    def _work(self, proposed: Proposed) -> tuple[TrialAssignment, str]:
        work = assignment(self.config, proposed, str(self._folder(proposed)))
        return work, fingerprint_of(work)

    def _tried_again(self, outcome: Outcome, session: Session) -> bool:
        """Resubmit a trial that its machine asked to stop: it has saved its state. A full disk ends
        the study.
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
            status = outcome.failure.kind if outcome.failure.kind in FAILED else "failed"
            result = {"status": status, "loss": None, "error": str(outcome.failure.error)}
        attempts = max(outcome.attempts, int(result.pop("attempts", None) or 1))
        trial = self._keep(proposed, fingerprint, {"began": began} | result, attempts=attempts)
        if not self.config.keep_runs and trial.status not in FAILED:
            shutil.rmtree(self._folder(proposed), ignore_errors=True)
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
        """End a study in which no trial runs: the fault is in its settings, and every further trial
        would fail too.
        """
        self._ran = self._ran or trial.has_run
        if trial.status in FAILED:
            self.remark(f"{trial.key} {trial.status}: {(trial.error or '').partition(chr(10))[0]}")
            self._failures.append(trial)
        if not self._ran and len(self._failures) >= _PATIENCE:
            raise StudyFailedError(
                f"the first {_PATIENCE} trials all failed, the last with: {trial.error}\nTheir "
                f"folders are kept in {self.study.folder / 'trials'}. Fix the cause, and run again "
                "with --retry-failed."
            )

    def _tell_status(self) -> None:
        """For `--status` in another terminal; at most once per second."""
        now = time.monotonic()
        if now < self._status_due:
            return
        self._status_due = now + _STATUS_SECONDS
        content = {"pid": os.getpid(), "running": self._running()}
        with suppress(StorageError):  # the study does not need it
            write_whole(self.study.folder / STATUS, json.dumps(content).encode())
        self.report(self.snapshot())

    def _running(self) -> dict[str, float]:
        """Those that were submitted first; the others wait for a worker."""
        first = itertools.islice(self._submitted.items(), self._places)
        return {key: began for key, (_, _, began) in first}

    def snapshot(self) -> Snapshot:
        return _snapshot(self.cells, self._running())


def _cell_runs(config: StudyConfig, trials: Iterable[TrialRecord]) -> list[CellRun]:
    ended: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        ended.setdefault(trial.cell, []).append(trial)
    return [CellRun(config, cell, ended.get(cell.name, ())) for cell in config.cells()]


def _snapshot(cells: Sequence[CellRun], running: Mapping[str, float]) -> Snapshot:
    return Snapshot(
        cells[0].config,
        {run.cell.name: run.trials for run in cells},
        {run.cell.name: run.expected for run in cells},
        frozenset(run.cell.name for run in cells if run.done),
        running,
    )


_RESULT = (
    *("status", "loss", "step", "steps", "tokens"),
    *("train_loss", "curve", "began", "seconds", "error"),
)


def _trials(rows: Mapping[str, Any]) -> Iterator[TrialRecord]:
    for key, values in rows.items():
        yield TrialRecord.from_dict(key, values)


def _owner(folder: Path) -> str:
    """A name unique to this folder, for databases that several studies share."""
    path = folder / ".owner"
    if not path.exists():
        write_whole(path, uuid.uuid4().hex.encode())
    return path.read_text(encoding="utf-8").strip()


def _refuse_another(folder: Path, old: StudyConfig, new: StudyConfig) -> None:
    changed = list(differences(old.identity(), new.identity()))
    if changed and (folder / RECORDS).exists():
        raise OptionError(
            f"{folder} holds another study ({'; '.join(changed)}). Choose another --output, or "
            "start a new study that reuses the trials that are the same: --output NEW --fork "
            f"{folder}."
        )


def retry_failed(study: Study) -> int:
    """Remove failed trials from the records, so that they run again; failed.jsonl keeps them. How
    many there were.
    """
    with Ledger(study.folder / RECORDS, {"study": study.config.identity()}) as book:
        failed = {key: row for key, row in book.results.items() if row["status"] in FAILED}
        if failed:
            with (study.folder / "failed.jsonl").open("ab") as file:
                file.writelines(
                    json_line({"job": key, "result": row}, key) for key, row in failed.items()
                )
            book.forget(failed)
    return len(failed)
