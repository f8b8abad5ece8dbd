"""Finished trials in an Optuna database, one Optuna study per cell. Only this file knows how Optuna
stores trials.

The records of a study are the truth. The database mirrors them, so that `optuna-dashboard` and
other Optuna tools can open the study. It can be deleted and is rebuilt, and a faulty database never
ends a study. A thread of its own reads and writes it, because Optuna's API takes some 30 ms to add
a trial and 10 s to read 10,000.
"""

import contextlib
import functools
import hashlib
import importlib
import itertools
import json
import logging
import math
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mupscale.errors import MissingExtraError, MupscaleError, OptionError, StorageError
from mupscale.studies.trials import Space

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Record = Mapping[str, Any]
Remark = Callable[[str], object]
"""Takes a sentence for the user; also called from the mirror's thread."""

HURRY_SECONDS = 5.0
"""How long a study that was interrupted waits for the mirror."""

_MANY = 200
"""Trials that take long enough to add that the user should know."""
_RETRY_SECONDS = 10.0
_LOCK_SECONDS = 1.0
"""How long one attempt waits while another process has locked the file."""
_POSTGRES_LIMITS = {"connect_timeout": 10, "tcp_user_timeout": 10_000}
"""In seconds and milliseconds: an unplugged server is noticed instead of waited for."""
_TEMPORARY = {
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
}  # fmt: skip
"""SQLite errors after which the file may be sound, but cannot be used now."""
_ERROR_CHARACTERS = 200


class Mirror:
    """Finished trials in an Optuna storage, written by a thread.

    `sync` uses the database before the thread starts, and `close` after it has ended, so two
    threads never use it at once.
    """

    flush_seconds = 0.5
    """How often the thread writes what is missing."""

    def __init__(
        self, url: str | None, folder: Path, study: str, owner: str, remark: Remark, space: Space
    ) -> None:
        """Without a URL the database is `study.db` in the folder. `owner` distinguishes this study
        from others of the same name.
        """
        self._file = folder / "study.db" if url is None else None
        self._url = "sqlite:///study.db" if url is None else _checked_url(url)
        self._shown = str(self._file or masked(self._url))
        self._study, self._owner, self._remark, self._space = study, owner, remark, space
        self._entries: dict[str, _Entry] = {}
        self._present: set[str] = set()
        "The prints of the records that are in the database, as far as is known."
        self._database: _Database | None = None
        self._is_compared = False
        self._failure: str | None = None
        self._next_try = 0.0
        self._give_up = math.inf
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def sync(self, records: Mapping[str, Record]) -> None:
        """Open the database; the thread then adds what it lacks.

        Raises what the user has to fix, another study of the same name or a server that does not
        answer, before anything has been computed. Our own file, if unreadable, is set aside.
        """
        for trial, record in records.items():
            self.add(trial, record)
        self._leave()
        try:
            with quiet():
                self._open(compare=False)
        except Exception as error:
            if self._file is None or isinstance(error, MupscaleError):
                self._entries.clear()  # write nothing there, not even on closing
                raise self._unusable(error) from None
            self._put_off(error)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._keep_flushing, name="mupscale-mirror", daemon=True
            )
            self._thread.start()

    def add(self, trial: str, record: Record) -> None:
        """Add a finished trial, which is written soon."""
        self._entries[trial] = _Entry(trial, record)

    def flush(self) -> None:
        """Write what is missing. A failure is reported once, and writing is tried again later."""
        try:
            with quiet():
                self._write()
        except Exception as error:
            self._put_off(error)
        except BaseException:
            self._leave()  # interrupted: read again what is there, as after a failure
            raise
        else:
            self._failure = None

    def close(self, seconds: float = math.inf) -> None:
        """Write the rest, for at most about this long, and report what could not be written."""
        self._give_up = time.monotonic() + seconds
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        if self._missing() and time.monotonic() < self._give_up:
            self.flush()
        missing = self._missing()
        if missing and (self._is_compared or self._failure):
            reason = self._failure or f"not written within {seconds:g} s"
            self._remark(
                f"{self._shown} lacks {len(missing)} of {len(self._entries)} trials "
                f"({reason}). They are in the study's records, and are added when the study is "
                "next opened."
            )
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep_flushing(self) -> None:
        while not self._closing.wait(self.flush_seconds):
            if self._missing() and time.monotonic() >= self._next_try:
                self.flush()

    def _missing(self) -> list["_Entry"]:
        # A copy first, because another thread may add one meanwhile.
        return [entry for entry in [*self._entries.values()] if entry.print not in self._present]

    def _write(self) -> None:
        database, missing = self._open(compare=True), self._missing()
        if self._closing.is_set() and len(missing) > _MANY:
            self._remark(
                f"adding the last {len(missing)} trials to {self._shown}. You can interrupt this: "
                "they are added when the study is next opened."
            )
        for entry in missing:
            if time.monotonic() > self._give_up:
                return
            database.insert(f"{self._study}/{entry.cell}", entry.trial(self._space))
            self._present.add(entry.print)
        entries = self._by_cell()
        for cell in {entry.cell for entry in missing}:
            present = [entry for entry in entries[cell] if entry.print in self._present]
            database.mark(f"{self._study}/{cell}", _digest(present))

    def _by_cell(self) -> dict[str, list["_Entry"]]:
        cells: dict[str, list[_Entry]] = {}
        for entry in [*self._entries.values()]:
            cells.setdefault(entry.cell, []).append(entry)
        return cells

    def _put_off(self, error: Exception) -> None:
        """Try again later, from the beginning: the last transaction may or may not have taken
        place.
        """
        self._leave()
        self._next_try = time.monotonic() + _RETRY_SECONDS
        before, self._failure = self._failure, self._reason(error)
        if before is None:
            self._remark(
                f"could not write {self._shown}: {self._failure}. The study continues, and its "
                "results are in its records; the database is tried again every "
                f"{_RETRY_SECONDS:.0f} s."
            )

    def _leave(self) -> None:
        if self._database is not None:
            self._database.dispose()
        self._database, self._is_compared = None, False

    def _open(self, *, compare: bool) -> "_Database":
        """The database of our study; our own file, if unreadable, is set aside and made again."""
        try:
            return self._opened(compare)
        except Exception as error:
            self._leave()
            if self._file is None or not _is_unreadable(error):
                raise
            aside = _set_aside(self._file)
            self._remark(
                f"{self._file} could not be read ({self._reason(error)}). It was renamed to "
                f"{aside.name}, and a new one is made from the records."
            )
        return self._opened(compare)

    def _opened(self, compare: bool) -> "_Database":
        if self._database is None:
            if self._file is not None:
                _check_file(self._file)
            settings = _engine_settings(self._url, self._file)
            self._database = _Database(self._url, settings, self._owner, self._shown)
            self._database.claim_all(self._study)
        if compare and not self._is_compared:
            present: set[str] = set()
            for cell, entries in self._by_cell().items():
                name = f"{self._study}/{cell}"
                if self._database.marks.get(name) == _digest(entries):
                    present.update(entry.print for entry in entries)
                else:
                    present |= self._database.prints(name)
            self._present, self._is_compared = present, True
        return self._database

    def _unusable(self, error: Exception) -> MupscaleError:
        """What to tell a user whose URL does not lead to a database."""
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
            return OptionError(f"{self._shown} is not a known database: {reason}. {_URL_HINT}")
        return StorageError(
            f"could not open {self._shown}: {reason}. Start the server, or correct the URL."
        )

    def _reason(self, error: BaseException) -> str:
        """The first line of the database's own message, without the password."""
        root = _root(error)
        lines = str(root).strip().splitlines() or [type(root).__name__]
        line = lines[0].rstrip(".").replace(self._url, self._shown)
        password = re.search(r"://[^:/?#@]*:(.+)@", self._url)
        return line.replace(password[1], "***") if password else line


_URL_HINT = "Write postgresql://USER@HOST/DATABASE, or nothing for SQLite in the study's folder."


def _checked_url(url: str) -> str:
    """A URL that names its driver, because the default driver of `postgresql://` depends on
    SQLAlchemy's version.

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
    """Without waiting for the disk: a file that a power cut corrupts is made again.

    Not in WAL mode, which needs memory shared between all who have the file open: the network disks
    of clusters do not offer that.
    """
    connection = sqlite3.connect(file, timeout=_LOCK_SECONDS, check_same_thread=False)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _check_file(file: Path) -> None:
    """Check every page, because Optuna would notice a bad one only when it reads it."""
    if not file.exists():
        return
    with contextlib.closing(_connected(file)) as connection:
        result = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if result != "ok":
        raise sqlite3.DatabaseError(result)


def _is_unreadable(error: Exception) -> bool:
    """Whether a new file would help: not if this one is locked, full, out of reach or another
    study's.
    """
    root = _root(error)
    if isinstance(root, MupscaleError):
        return False
    if isinstance(root, sqlite3.Error):
        return getattr(root, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _TEMPORARY
    return isinstance(root, (RuntimeError, ValueError, LookupError, AssertionError))


def _root(error: BaseException) -> BaseException:
    """The error below the layers of Optuna and SQLAlchemy."""
    inner = getattr(error, "orig", None) or error.__cause__
    return _root(inner) if isinstance(inner, BaseException) else error


def _set_aside(file: Path) -> Path:
    """Rename the file with its journal, which SQLite would otherwise roll back into the new
    file.
    """
    names = (file.with_name(f"{file.name}.corrupt-{n}") for n in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    for suffix in ("", "-journal", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            file.with_name(file.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Hide what Optuna logs in this thread; a user's own use of Optuna still logs."""
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


class _Entry:
    """A record with its key."""

    def __init__(self, key: str, record: Record) -> None:
        self.key, self.record = key, record
        self.cell: str = record["cell"]

    @functools.cached_property
    def print(self) -> str:
        """Differs between any two records, also of one trial that failed and was run again."""
        return _hashed(json.dumps(self.record, sort_keys=True))

    def trial(self, space: Space) -> "FrozenTrial":
        """The record as Optuna sees it: a trial that was stopped early is PRUNED, one that diverged
        or failed is FAIL. A value that a log axis cannot hold, such as a decay of 0, is an
        attribute.
        """
        from optuna.distributions import FloatDistribution
        from optuna.trial import TrialState, create_trial

        record = self.record
        state = TrialState.PRUNED if record["status"] == "stopped" else TrialState.FAIL
        if record["status"] == "finished" and record["loss"] is not None:
            state = TrialState.COMPLETE
        params = {k: float(v) for k, v in record["params"].items() if v is not None and v > 0}
        ends = {name: (*space.get(name, ()), value) for name, value in params.items()}
        names = ("seed", "rule", "variant", "status", "tokens", "attempts", "seconds")
        attributes = {name: record.get(name) for name in names}
        attributes["error"] = str(record.get("error") or "")[:_ERROR_CHARACTERS] or None
        trial = create_trial(
            state=state,
            value=record["loss"] if state is TrialState.COMPLETE else None,
            params=params,
            # A point outside the space, added by hand, widens it.
            distributions={k: FloatDistribution(min(v), max(v), log=True) for k, v in ends.items()},
            user_attrs={"trial": self.key, "record": self.print}
            | {name: value for name, value in attributes.items() if value is not None}
            | {name: value for name, value in record["params"].items() if name not in params},
            intermediate_values={
                int(step): float(loss) for step, loss in record["curve"] if loss is not None
            },
        )
        spent = timedelta(seconds=record.get("seconds") or 0.0)
        began = record.get("began")
        start = datetime.now() - spent if began is None else datetime.fromtimestamp(began)
        trial.datetime_start, trial.datetime_complete = start, start + spent
        return trial


def _digest(entries: Iterable[_Entry]) -> str:
    return _hashed("".join(sorted(entry.print for entry in entries)))


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Database:
    """An Optuna storage and the Optuna studies in it that are ours."""

    def __init__(self, url: str, settings: dict[str, Any], owner: str, shown: str) -> None:
        from optuna.storages import RDBStorage

        # Optuna takes the URL for a template.
        template = url.replace("{", "{{").replace("}", "}}")
        self._storage = RDBStorage(template, engine_kwargs=settings)
        self._owner, self._shown = owner, shown
        self.marks: dict[str, str | None] = {}
        "Our studies, each with the digest of the records that are in it."

    def claim_all(self, study: str) -> None:
        """Raise an error unless every cell of the study that is here is ours."""
        # Not get_all_study_summaries, which reads every trial.
        for other in self._storage.get_all_studies():
            if other.user_attrs.get("owner") == self._owner:
                self.marks[other.study_name] = other.user_attrs.get("records")
            elif other.study_name.startswith(f"{study}/"):
                self._claim(other.study_name)

    def prints(self, name: str) -> set[str]:
        """Of the records that are in the Optuna study of this name."""
        trials = self._study(name).get_trials(deepcopy=False) if name in self.marks else []
        return {trial.user_attrs["record"] for trial in trials if "record" in trial.user_attrs}

    def insert(self, name: str, trial: "FrozenTrial") -> None:
        """In one transaction."""
        if name not in self.marks:
            self._claim(name)
        self._study(name).add_trial(trial)

    def mark(self, name: str, records: str) -> None:
        """Note which records are in the study, so that opening it need not read its trials."""
        self._study(name).set_user_attr("records", records)
        self.marks[name] = records

    def dispose(self) -> None:
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _study(self, name: str) -> Any:
        # A new one each time, because Optuna's keeps every trial that it has seen.
        return _optuna().load_study(study_name=name, storage=self._storage)

    def _claim(self, name: str) -> None:
        """Create or find a study. An empty one without an owner is ours: we were killed before we
        marked it.
        """
        study = _optuna().create_study(study_name=name, storage=self._storage, load_if_exists=True)
        owner = study.user_attrs.get("owner")
        if owner is None and not study.get_trials(deepcopy=False):
            study.set_user_attr("owner", self._owner)
        elif owner != self._owner:
            raise OptionError(
                f"{self._shown} holds a study named {name.partition('/')[0]!r} that does not "
                "belong to this folder. Choose another name or another database."
            )
        self.marks[name] = study.user_attrs.get("records")
