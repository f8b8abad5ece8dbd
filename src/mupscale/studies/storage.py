"""Finished trials in an Optuna database, one Optuna study a cell; the one file that knows how
Optuna stores.

The records of a study are the truth. The database is a mirror of them, so that `optuna-dashboard`
and every other tool of Optuna opens the study. It can be thrown away and is made again, and no
fault of it ends a study.
"""

import contextlib
import hashlib
import importlib
import itertools
import json
import logging
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mupscale.errors import MissingExtraError, MupscaleError, OptionError, StorageError

if TYPE_CHECKING:
    from optuna.distributions import FloatDistribution
    from optuna.trial import FrozenTrial, TrialState
    from sqlalchemy.engine import Engine

Record = Mapping[str, Any]
Space = Mapping[str, tuple[float, float]]
Remark = Callable[[str], object]
"""Takes a sentence for the user; called from a thread as well."""

_KNOWN_SCHEMAS = {"v3.2.0.a"}
"""Where whole batches are written by `_insert_rows` (all of Optuna 3.2 to 5.0); any other, by
Optuna's `add_trials`.
"""
_BATCH = 500
"""Trials a transaction: short enough that a dashboard is not kept waiting."""
_RETRY_SECONDS = 10.0
_LOCK_SECONDS = 1.0
"""How long one attempt waits for whoever has locked the file; there will be others."""
_POSTGRES_LIMITS = {"connect_timeout": 10, "tcp_user_timeout": 10_000}
"""In seconds and in milliseconds: an unplugged server is noticed rather than waited for."""
_PASSING = {
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
}  # fmt: skip
"""What SQLite says when the file may be sound, but cannot be used now."""
_ERROR_CHARACTERS = 200


class Mirror:
    """Finished trials in an Optuna storage. It can be thrown away and made again."""

    flush_seconds = 0.5
    """A trial is in the database at the latest so long after it was added."""

    def __init__(
        self, url: str | None, folder: Path, study: str, owner: str, remark: Remark, space: Space
    ) -> None:
        """Without a URL the database is `study.db` in the folder. `owner` tells this study from its
        namesakes.
        """
        self._file = folder / "study.db" if url is None else None
        self._url = "sqlite:///study.db" if url is None else _checked_url(url)
        self._shown = str(self._file or masked(self._url))
        self._study, self._owner, self._remark, self._space = study, owner, remark, space
        self._records: dict[str, Record] = {}
        self._missing: dict[str, Record] = {}
        self._memory = threading.Lock()  # for the two above
        self._writing = threading.Lock()  # for all below
        self._database: _Database | None = None
        self._failure: str | None = None
        self._next_try = 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def sync(self, records: Mapping[str, Record]) -> None:
        """Open the database and add what it lacks.

        A file that cannot be read is set aside and made again. What the user has to mend, another
        study of the same name or a server that does not answer, is raised here, before anything has
        been computed.
        """
        with self._memory:
            self._records.update(records)
            self._missing.update(records)
        with self._writing:
            self._leave()
            try:
                self._open()
            except Exception as error:
                if self._file is None or isinstance(error, MupscaleError):
                    self._missing.clear()  # nothing is to be written there, not even on closing
                    raise self._unusable(error) from None
                self._put_off(error)
        if self._database is not None:
            self.flush()
        self._start()

    def add(self, trial: str, record: Record) -> None:
        """One more finished trial, which is written soon."""
        with self._memory:
            self._records[trial] = record
            self._missing[trial] = record
        self._start()

    def flush(self) -> None:
        """Write what is missing. A database that does not take it is remarked on once, and tried
        again later.
        """
        with self._writing:
            try:
                self._write()
            except Exception as error:
                self._put_off(error)
            except BaseException:
                self._leave()  # interrupted: as after a failure, what is there is read anew
                raise
            else:
                self._failure = None

    def close(self) -> None:
        """Write the rest, and say what could not be written."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        if self._missing:
            self.flush()
        if self._missing:
            self._remark(
                f"{self._shown} lacks {len(self._missing)} of {len(self._records)} trials "
                f"({self._failure}). They are "
                "in the study's records, and are added when the study is next opened."
            )
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        if self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(
                target=self._keep_flushing, name="mupscale-mirror", daemon=True
            )
            self._thread.start()

    def _keep_flushing(self) -> None:
        while not self._closing.wait(self.flush_seconds):
            if self._missing and time.monotonic() >= self._next_try:
                self.flush()

    def _write(self) -> None:
        database = self._database or self._open()
        with self._memory:
            missing = dict(self._missing)
        with _quiet():
            for cell, keys in _by_cell(missing):
                trials = [_as_trial(key, missing[key], self._space) for key in keys]
                database.insert(f"{self._study}/{cell}", trials)
                with self._memory:
                    for key in keys:
                        del self._missing[key]

    def _put_off(self, error: Exception) -> None:
        """Later, and from the beginning: whether the last transaction took place is read from the
        database then.
        """
        self._leave()
        self._next_try = time.monotonic() + _RETRY_SECONDS
        before, self._failure = self._failure, self._reason(error)
        if before is None:
            self._remark(
                f"could not write {self._shown}: {self._failure}. The study goes on, and its "
                "results are in its "
                f"records; the database is tried again every {_RETRY_SECONDS:.0f} s."
            )

    def _leave(self) -> None:
        if self._database is not None:
            self._database.dispose()
        self._database = None

    def _open(self) -> "_Database":
        """The database, ours, with what it lacks found out. If our own file cannot be read, a new
        one.
        """
        with _quiet():
            try:
                return self._opened()
            except Exception as error:
                if self._file is None or not _is_unreadable(error):
                    raise
                aside = _set_aside(self._file)
                self._remark(
                    f"{self._file} could not be read ({self._reason(error)}). It is now "
                    f"{aside.name}, and a new one "
                    "is made from the records."
                )
            return self._opened()

    def _opened(self) -> "_Database":
        if self._file is not None:
            _check_file(self._file)
        database = _Database(self._url, _engine_settings(self._url, self._file), self._owner)
        try:
            database.claim_all(self._study)
            present = database.prints()
        except BaseException as error:
            database.dispose()
            if isinstance(error, _OwnedByAnotherError):
                raise OptionError(
                    f"{self._shown} holds a study named {self._study!r} that does not belong to "
                    "this folder. Choose "
                    "another name or another database."
                ) from None
            raise
        with self._memory:
            self._missing = {
                key: record
                for key, record in self._records.items()
                if _print(record) not in present
            }
        self._database = database
        return database

    def _unusable(self, error: Exception) -> MupscaleError:
        """What a user reads whose URL does not lead to a database."""
        if isinstance(error, MupscaleError):
            return error
        reason = self._reason(error)
        if isinstance(error, ImportError):
            if self._url.startswith("postgresql"):
                return MissingExtraError("psycopg2", "postgres")
            return OptionError(
                f"the driver of {self._shown} is not installed ({reason}). Install it with pip."
            )
        if type(error).__name__ in ("NoSuchModuleError", "ArgumentError"):
            return OptionError(
                f"{self._shown} is not a database that is known here: {reason}. {_URL_HINT}"
            )
        return StorageError(
            f"could not open {self._shown}: {reason}. Start the server, or correct the URL."
        )

    def _reason(self, error: BaseException) -> str:
        """The first line of what the database itself said, without the password."""
        root = _root(error)
        lines = str(root).strip().splitlines() or [type(root).__name__]
        password = _PASSWORD.search(self._url)
        said = lines[0].rstrip(".").replace(self._url, self._shown)
        return (
            said.replace(password["password"], "***") if password and password["password"] else said
        )


_URL_HINT = "Write postgresql://USER@HOST/DATABASE, or nothing for SQLite in the study's folder."
_PASSWORD = re.compile(r"://[^:/?#@]*:(?P<password>.*)@")


def _checked_url(url: str) -> str:
    """A URL that names its driver, since what `postgresql://` stands for depends on SQLAlchemy's
    version.

    >>> _checked_url("postgresql://me@host/studies")
    'postgresql+psycopg2://me@host/studies'
    """
    scheme, separator, rest = url.partition("://")
    if scheme.split("+")[0] in ("journal", "redis", "rediss", "grpc"):
        raise OptionError(
            f"storage {masked(url)!r} is not an SQL database, and one torn write spoils a journal "
            f"for good. {_URL_HINT}"
        )
    if not separator:
        raise OptionError(f"storage {masked(url)!r} is not the URL of a database. {_URL_HINT}")
    return f"postgresql+psycopg2://{rest}" if scheme in ("postgres", "postgresql") else url


def masked(url: str) -> str:
    """The URL as it may be printed.

    >>> masked("postgresql://me:secret@host/studies?password=secret&x=1")
    'postgresql://me:***@host/studies?password=***&x=1'
    """
    url = re.sub(r"(://[^:/?#@]*:).*@", r"\1***@", url)
    return re.sub(r"([?&]password=)[^&]*", r"\1***", url)


def _engine_settings(url: str, file: Path | None) -> dict[str, Any]:
    if file is not None:
        return {"creator": lambda: _connected(file)}
    limits = _POSTGRES_LIMITS if url.startswith("postgresql+psycopg") else {}
    return {"connect_args": dict(limits), "pool_pre_ping": True}  # trials can be hours apart


def _connected(file: Path) -> sqlite3.Connection:
    """Without waiting for the disk: after a power cut the file may be broken, and is then made
    again.

    Not in WAL mode, which needs memory shared between all who have the file open: that is not to be
    had on the network disks of clusters.
    """
    connection = sqlite3.connect(file, timeout=_LOCK_SECONDS, check_same_thread=False)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _check_file(file: Path) -> None:
    """Every page is sound, which Optuna would find out only on coming to it."""
    if not file.exists():
        return
    with contextlib.closing(_connected(file)) as connection:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(found)


def _is_unreadable(error: Exception) -> bool:
    """Rather than locked, full or out of reach, which passes, or not ours, or a mistake, which no
    other file mends.
    """
    root = _root(error)
    if isinstance(root, MupscaleError):
        return False
    if isinstance(root, sqlite3.Error):
        return getattr(root, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _PASSING
    return isinstance(root, (RuntimeError, ValueError, LookupError, AssertionError))


def _root(error: BaseException) -> BaseException:
    """What happened below the layers of Optuna and SQLAlchemy."""
    inner = getattr(error, "orig", None) or error.__cause__
    return _root(inner) if isinstance(inner, BaseException) else error


def _set_aside(file: Path) -> Path:
    """Renamed, together with a journal of it, which SQLite would otherwise roll back into the new
    file.
    """
    number = next(
        n for n in itertools.count(1) if not file.with_name(f"{file.name}.corrupt-{n}").exists()
    )
    aside = file.with_name(f"{file.name}.corrupt-{number}")
    for suffix in ("", "-journal", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            file.with_name(file.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Without what Optuna logs in this thread; what a user's own program has it log goes on."""
    _optuna()
    ours = threading.get_ident()

    def of_others(entry: logging.LogRecord) -> bool:
        return entry.thread != ours

    handlers = list(logging.getLogger("optuna").handlers)
    for handler in handlers:
        handler.addFilter(of_others)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(of_others)


def _optuna() -> Any:
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise MissingExtraError("optuna", "study") from error


def _by_cell(records: Mapping[str, Record]) -> Iterator[tuple[str, list[str]]]:
    """Each cell with some keys of its own, as they came, at most a batch at a time."""
    cells: dict[str, list[str]] = {}
    for key, record in records.items():
        cells.setdefault(record["cell"], []).append(key)
    for cell, keys in cells.items():
        for start in range(0, len(keys), _BATCH):
            yield cell, keys[start : start + _BATCH]


def _as_trial(key: str, record: Record, space: Space) -> "FrozenTrial":
    """The record as Optuna sees it: a diverged, failed or lost trial is FAIL, one that was stopped
    early PRUNED.
    """
    from optuna.trial import create_trial

    state = _state(record)
    positive = {
        name: float(value)
        for name, value in record["params"].items()
        if value is not None and value > 0
    }
    trial = create_trial(
        state=state,
        value=record["loss"] if state.name == "COMPLETE" else None,
        params=positive,
        distributions={
            name: _distribution(value, space.get(name)) for name, value in positive.items()
        },
        user_attrs=_attributes(key, record)
        | {k: v for k, v in record["params"].items() if k not in positive},
        intermediate_values={
            int(step): float(loss) for step, loss in record["curve"] if loss is not None
        },
    )
    trial.datetime_start, trial.datetime_complete = _times(record)
    return trial


def _state(record: Record) -> "TrialState":
    from optuna.trial import TrialState

    if record["status"] == "finished" and record["loss"] is not None:
        return TrialState.COMPLETE
    return TrialState.PRUNED if record["status"] == "stopped" else TrialState.FAIL


def _distribution(value: float, bounds: tuple[float, float] | None) -> "FloatDistribution":
    """The study's own, widened for a point that was added by hand."""
    from optuna.distributions import FloatDistribution

    low, high = bounds or (value, value)
    return FloatDistribution(min(low, value), max(high, value), log=True)


def _attributes(key: str, record: Record) -> dict[str, Any]:
    """What the dashboard shows beside the parameters; what a log axis cannot hold, as no decay, is
    added to it.
    """
    named = {
        name: record.get(name)
        for name in ("seed", "rule", "variant", "status", "tokens", "attempts", "seconds")
    }
    error = str(record.get("error") or "")[:_ERROR_CHARACTERS] or None
    return {"trial": key, "record": _print(record)} | {
        name: value for name, value in {**named, "error": error}.items() if value is not None
    }


def _print(record: Record) -> str:
    """Tells a record from any other, also from an earlier one of the same trial, which failed and
    was run again.
    """
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


def _times(record: Record) -> tuple[datetime, datetime]:
    spent = timedelta(seconds=record.get("seconds") or 0.0)
    began = record.get("began")
    start = datetime.now() - spent if began is None else datetime.fromtimestamp(began)
    return start, start + spent


class _OwnedByAnotherError(Exception):
    """An Optuna study that has our name but not our owner."""


class _Database:
    """An Optuna storage and the Optuna studies in it that are ours."""

    def __init__(self, url: str, settings: dict[str, Any], owner: str) -> None:
        from optuna.storages import RDBStorage

        # Optuna takes the URL for a template.
        template = url.replace("{", "{{").replace("}", "}}")
        self._storage = RDBStorage(template, engine_kwargs=settings)
        self._owner = owner
        self._claimed: set[str] = set()
        self._whole_batches = self._storage.get_current_version() in _KNOWN_SCHEMAS

    def claim_all(self, study: str) -> None:
        """Every cell of the study that is here is ours, or `_OwnedByAnotherError` is raised."""
        for found in self._storage.get_all_studies():
            if found.user_attrs.get("owner") == self._owner:
                self._claimed.add(found.study_name)
            elif found.study_name.startswith(f"{study}/"):
                self._claim(found.study_name)

    def prints(self) -> set[str]:
        """The fingerprints of the records that are here."""
        if self._whole_batches:
            return _read_prints(self._storage.engine, self._owner)
        trials = [
            trial
            for name in self._claimed
            for trial in self._study(name).get_trials(deepcopy=False)
        ]
        return {trial.user_attrs["record"] for trial in trials if "record" in trial.user_attrs}

    def insert(self, name: str, trials: Sequence["FrozenTrial"]) -> None:
        """All of them, in this order, into the Optuna study of this name."""
        if name not in self._claimed:
            self._claim(name)
        if self._whole_batches:
            _insert_rows(self._storage.engine, name, trials)
        else:
            self._study(name).add_trials(trials)

    def dispose(self) -> None:
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _study(self, name: str) -> Any:
        # A new one each time: Optuna's keeps every trial that it has seen.
        return _optuna().load_study(study_name=name, storage=self._storage)

    def _claim(self, name: str) -> None:
        """Made, or found. One that nobody owns is ours if it is empty: we were killed between
        making and marking it.
        """
        study = _optuna().create_study(study_name=name, storage=self._storage, load_if_exists=True)
        owner = study.user_attrs.get("owner")
        if owner is None and not study.get_trials(deepcopy=False):
            study.set_user_attr("owner", self._owner)
        elif owner != self._owner:
            raise _OwnedByAnotherError
        self._claimed.add(name)


def _read_prints(engine: "Engine", owner: str) -> set[str]:
    """The user attribute `record` of all trials of an owner, in one query.

    Optuna itself reads whole trials only: 12 s for 10 000, against 0.1 s.
    """
    from optuna.storages._rdb import models
    from sqlalchemy import select

    attribute, mark = models.TrialUserAttributeModel, models.StudyUserAttributeModel
    query = (
        select(attribute.value_json)
        .join(models.TrialModel, models.TrialModel.trial_id == attribute.trial_id)
        .join(mark, mark.study_id == models.TrialModel.study_id)
        .where(attribute.key == "record", mark.key == "owner", mark.value_json == json.dumps(owner))
    )
    with engine.connect() as connection:
        return {json.loads(value) for value in connection.execute(query).scalars()}


def _insert_rows(engine: "Engine", name: str, trials: Sequence["FrozenTrial"]) -> None:
    """All trials in one transaction, through Optuna's own table classes.

    Its `add_trial` asks the database about each row before it writes it, and waits and repeats by
    itself when the database fails: 25 ms a trial with a curve of 20 points, against 4 ms alone and
    1 ms in a batch of ten.
    """
    from optuna.storages._rdb import models
    from sqlalchemy import func, insert, select
    from sqlalchemy.orm import Session

    with Session(engine) as session, session.begin():
        # As in Optuna, the study is locked meanwhile: the number of a trial is how many came before
        # it.
        study = session.execute(
            select(models.StudyModel).filter_by(study_name=name).with_for_update()
        ).scalar_one()
        of_study = select(func.count(models.TrialModel.trial_id)).filter_by(study_id=study.study_id)
        first = session.execute(of_study).scalar_one()
        rows: list[Any] = [
            models.TrialModel(
                study_id=study.study_id,
                number=number,
                state=trial.state,
                datetime_start=trial.datetime_start,
                datetime_complete=trial.datetime_complete,
            )
            for number, trial in enumerate(trials, start=first)
        ]
        session.add_all(rows)
        session.flush()
        for table, details in _details(
            [(row.trial_id, trial) for row, trial in zip(rows, trials, strict=True)]
        ):
            if details:
                session.execute(insert(table), details)


def _details(
    trials: Sequence[tuple[int, "FrozenTrial"]],
) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """The rows that belong to trials, table by table."""
    from optuna.distributions import distribution_to_json
    from optuna.storages._rdb import models

    value, point = models.TrialValueModel, models.TrialIntermediateValueModel
    yield (
        value,
        [
            {"trial_id": id_, "objective": 0}
            | _stored("value", value.value_to_stored_repr(trial.value))
            for id_, trial in trials
            if trial.value is not None
        ],
    )
    yield (
        models.TrialParamModel,
        [
            {
                "trial_id": id_,
                "param_name": name,
                "param_value": trial.distributions[name].to_internal_repr(parameter),
                "distribution_json": distribution_to_json(trial.distributions[name]),
            }
            for id_, trial in trials
            for name, parameter in trial.params.items()
        ],
    )
    yield (
        models.TrialUserAttributeModel,
        [
            {"trial_id": id_, "key": key, "value_json": json.dumps(attribute)}
            for id_, trial in trials
            for key, attribute in trial.user_attrs.items()
        ],
    )
    yield (
        point,
        [
            {"trial_id": id_, "step": step}
            | _stored("intermediate_value", point.intermediate_value_to_stored_repr(intermediate))
            for id_, trial in trials
            for step, intermediate in trial.intermediate_values.items()
        ],
    )


def _stored(column: str, pair: tuple[float | None, Any]) -> dict[str, Any]:
    return {column: pair[0], f"{column}_type": pair[1]}
