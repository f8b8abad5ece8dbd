"""The mirror in Optuna's database: every record exactly once, whatever happens to the database."""

import json
import logging
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial
from sqlalchemy import event
from sqlalchemy.engine import Engine

from mupscale.errors import MissingExtraError, OptionError, StorageError
from mupscale.studies import storage
from mupscale.studies.storage import Mirror, masked
from tests.studies.postgres import PASSWORD, Server

SPACE = {"lr": (2.0**-12, 2.0**-4), "weight_decay": (0.01, 1.0)}
CELLS = ("mup.r-1", "gqa-mup.r-4")
STATUSES = ("finished", "diverged", "stopped", "failed", "oom", "timeout")


def record(
    number: int, cell: str = CELLS[0], status: str = "finished", **changes: Any
) -> dict[str, Any]:
    return {
        "cell": cell, "rule": cell.partition(".")[0], "variant": {"n_kv_heads": 3},
        "number": number, "round": 0, "seed": 1 + number % 3,
        "params": {"lr": 2.0**-7, "weight_decay": 0.1}, "status": status,
        "loss": 3.0 + number / 8 if status == "finished" else None, "step": 30, "steps": 30,
        "tokens": 4096, "curve": [[10, 5.5], [20, 4.5], [30, 4.25]], "attempts": 1,
        "began": 1.7e9 + number, "seconds": 2.5, "error": None,
    } | changes  # fmt: skip


def records(count: int = 12, **changes: Any) -> dict[str, dict[str, Any]]:
    made = [record(n // 2, CELLS[n % 2], STATUSES[n % 6], **changes) for n in range(count)]
    return {f"{one['cell']}/{one['number']:04d}": one for one in made}


class Said(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture(autouse=True)
def by_hand(monkeypatch):
    """Nothing is written but by `flush`, and nobody waits for a lock, unless a test says so."""
    monkeypatch.setattr(Mirror, "flush_seconds", 1000.0)
    monkeypatch.setattr(storage, "_LOCK_SECONDS", 0.05)
    # Optuna waits about a second before each of four more attempts.
    monkeypatch.setattr("optuna.storages._rdb.storage.random.random", lambda: 0.0)


@pytest.fixture
def said() -> Said:
    return Said()


def mirror(
    folder: Path, said: Said, url: str | None = None, study: str = "gqa", owner: str = "me"
) -> Mirror:
    return Mirror(url, folder, study, owner, said, SPACE)


def write(folder: Path, said: Said, content: dict[str, Any], **settings: Any) -> None:
    with mirror(folder, said, **settings) as opened:
        opened.sync(content)


def studies(where: Path | str) -> dict[str, list[FrozenTrial]]:
    """What Optuna finds."""
    url = where if isinstance(where, str) else f"sqlite:///{where / 'study.db'}"
    database = optuna.storages.RDBStorage(url.replace("postgresql:", "postgresql+psycopg2:"))
    names = optuna.get_all_study_names(database)
    found = {name: optuna.load_study(study_name=name, storage=database).trials for name in names}
    database.engine.dispose()
    return found


def assert_mirrored(where: Path | str, content: dict[str, Any], study: str = "gqa") -> None:
    """Each record is there once, and nothing else is."""
    found = [(name, trial) for name, trials in studies(where).items() for trial in trials]
    assert Counter(trial.user_attrs["trial"] for _, trial in found) == Counter(list(content))
    for name, trial in found:
        one = content[trial.user_attrs["trial"]]
        assert name == f"{study}/{one['cell']}"
        assert trial.user_attrs["status"] == one["status"]
        assert trial.value == one["loss"]


@contextmanager
def statements() -> Iterator[list[str]]:
    """Every SQL statement that is carried out meanwhile."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


class TestWhatOptunaSees:
    def only(self, folder: Path, said: Said, one: dict[str, Any]) -> FrozenTrial:
        write(folder, said, {"mup.r-1/0000": one})
        assert said == []
        return studies(folder)["gqa/mup.r-1"][0]

    def test_a_study_for_each_cell_that_minimizes(self, tmp_path, said):
        write(tmp_path, said, records())
        summaries = optuna.get_all_study_summaries(f"sqlite:///{tmp_path}/study.db")
        assert {summary.study_name for summary in summaries} == {f"gqa/{cell}" for cell in CELLS}
        assert {summary.direction.name for summary in summaries} == {"MINIMIZE"}

    def test_each_status_has_its_state(self, tmp_path, said):
        write(tmp_path, said, {s: record(0, status=s, error="x" * 5000) for s in STATUSES})
        trials = {trial.user_attrs["status"]: trial for trial in studies(tmp_path)["gqa/mup.r-1"]}
        states = ("COMPLETE", "FAIL", "PRUNED", "FAIL", "FAIL", "FAIL")
        assert {s: trial.state.name for s, trial in trials.items()} == dict(
            zip(STATUSES, states, strict=True)
        )
        for status, trial in trials.items():
            assert trial.value == (3.0 if status == "finished" else None)
            assert trial.intermediate_values == {10: 5.5, 20: 4.5, 30: 4.25}
            assert trial.user_attrs["error"] == "x" * 200

    def test_the_parameters_on_their_log_axes(self, tmp_path, said):
        trial = self.only(tmp_path, said, record(0))
        assert trial.params == {"lr": 2.0**-7, "weight_decay": 0.1}
        assert trial.distributions == {
            name: FloatDistribution(*bounds, log=True) for name, bounds in SPACE.items()
        }

    def test_a_point_outside_the_space_widens_it(self, tmp_path, said):
        trial = self.only(
            tmp_path, said, record(0, params={"lr": 2.0**-2, "weight_decay": 0.1, "std": 0.02})
        )
        assert trial.distributions["lr"] == FloatDistribution(2.0**-12, 2.0**-2, log=True)
        assert trial.params["std"] == 0.02

    def test_what_a_log_axis_cannot_hold_is_an_attribute(self, tmp_path, said):
        trial = self.only(tmp_path, said, record(0, params={"lr": 2.0**-7, "weight_decay": 0.0}))
        assert trial.params == {"lr": 2.0**-7}
        assert trial.user_attrs["weight_decay"] == 0.0

    def test_all_else_that_tells_trials_apart(self, tmp_path, said):
        attributes = self.only(tmp_path, said, record(0, tokens=None)).user_attrs
        assert attributes.pop("record")
        assert attributes == {
            "trial": "mup.r-1/0000", "seed": 1, "rule": "mup", "variant": {"n_kv_heads": 3},
            "status": "finished", "attempts": 1, "seconds": 2.5,
        }  # fmt: skip

    def test_a_gap_in_a_curve_is_left_out(self, tmp_path, said):
        trial = self.only(
            tmp_path, said, record(0, status="diverged", curve=[[10, 5.5], [20, None]])
        )
        assert trial.intermediate_values == {10: 5.5}

    @pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
    def test_when_it_ran_anywhere_on_earth(self, zone, tmp_path, said, monkeypatch):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        try:
            trial = self.only(tmp_path, said, record(0, began=1.7e9, seconds=90.0))
        finally:
            monkeypatch.undo()
            time.tzset()
        assert trial.datetime_start is not None
        assert trial.duration is not None
        assert trial.duration.total_seconds() == 90
        offset = {"America/New_York": -5, "Asia/Kolkata": 5.5}[zone]
        assert (
            trial.datetime_start - datetime(2023, 11, 14, 22, 13, 20)
        ).total_seconds() == offset * 3600

    def test_when_nobody_noted_it_is_now(self, tmp_path, said):
        trial = self.only(tmp_path, said, record(0, began=None))
        assert trial.datetime_complete is not None
        assert abs((datetime.now() - trial.datetime_complete).total_seconds()) < 60

    def test_the_best_trial_is_that_of_the_records(self, tmp_path, said):
        content = records(24)
        write(tmp_path, said, content)
        study = optuna.load_study(
            study_name="gqa/mup.r-1", storage=f"sqlite:///{tmp_path}/study.db"
        )
        losses = {
            k: r["loss"]
            for k, r in content.items()
            if r["cell"] == "mup.r-1" and r["loss"] is not None
        }
        assert study.best_trial.user_attrs["trial"] == min(losses, key=lambda key: losses[key])

    def test_optuna_goes_on_from_there(self, tmp_path, said):
        write(tmp_path, said, records(24))
        url = f"sqlite:///{tmp_path}/study.db"
        sampler = optuna.samplers.TPESampler(n_startup_trials=2, seed=0)
        study = optuna.load_study(study_name="gqa/mup.r-1", storage=url, sampler=sampler)
        study.optimize(lambda trial: trial.suggest_float("lr", *SPACE["lr"], log=True), n_trials=2)
        assert [trial.number for trial in study.trials] == list(range(14))


class TestWhatIsMissing:
    def test_only_that_is_added(self, tmp_path, said):
        content = records()
        write(tmp_path, said, dict(list(content.items())[:5]))
        for _ in range(2):
            write(tmp_path, said, content)
        assert_mirrored(tmp_path, content)
        assert said == []

    def test_numbers_go_on_in_the_order_of_the_records(self, tmp_path, said):
        content = records(40)
        write(tmp_path, said, dict(list(content.items())[:10]))
        write(tmp_path, said, content)
        for name, trials in studies(tmp_path).items():
            assert [trial.number for trial in trials] == list(range(20))
            assert [t.user_attrs["trial"] for t in trials] == [
                k for k in content if k.startswith(name[4:] + "/")
            ]

    def test_it_is_found_with_as_many_questions_however_much_is_there(self, tmp_path, said):
        counts: list[int] = []
        for size in (8, 80):
            write(tmp_path, said, records(size))
            with mirror(tmp_path, said) as opened, statements() as seen:
                opened.sync(records(size))
            counts.append(len(seen))
        assert counts[0] == counts[1] < 30

    def test_adding_takes_as_many_statements_however_much_is_there(self, tmp_path, said):
        counts: list[int] = []
        with mirror(tmp_path, said) as opened:
            opened.sync(records(2))
            for size in (8, 80):
                opened.sync(records(size))
                opened.flush()
                opened.add(f"{CELLS[0]}/{size:04d}", record(size))
                with statements() as seen:
                    opened.flush()
                counts.append(len(seen))
        assert counts[0] == counts[1]

    def test_a_record_is_known_again_after_it_was_on_disk(self, tmp_path, said):
        content = records(4, curve=((10, 5.5), (20, 0.1 + 0.2)), variant={"b": 1, "a": (1, 2)})
        write(tmp_path, said, content)
        write(tmp_path, said, json.loads(json.dumps(content)))
        assert_mirrored(tmp_path, content)

    @pytest.mark.parametrize("fault", [KeyboardInterrupt, ConnectionError])
    def test_what_was_written_though_it_did_not_look_so_is_not_written_again(
        self, fault, tmp_path, said, monkeypatch
    ):
        def without_an_answer(*arguments: Any, insert: Any = storage._Database.insert) -> None:
            insert(*arguments)
            raise fault

        with mirror(tmp_path, said) as opened:
            opened.sync(records(4))
            opened.flush()
            opened.add("mup.r-1/0099", record(99))
            with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
                patched.setattr(storage._Database, "insert", without_an_answer)
                opened.flush()
            opened.add("mup.r-1/0098", record(98))
        assert_mirrored(tmp_path, records(4) | {f"mup.r-1/00{n}": record(n) for n in (98, 99)})

    def test_a_trial_that_failed_and_was_run_again_is_there_both_ways(self, tmp_path, said):
        key = "mup.r-1/0000"
        write(tmp_path, said, {key: record(0, status="failed")})
        write(tmp_path, said, {key: record(0)})
        write(tmp_path, said, {key: record(0)})
        assert [trial.state.name for trial in studies(tmp_path)["gqa/mup.r-1"]] == [
            "FAIL",
            "COMPLETE",
        ]

    def test_a_database_that_was_thrown_away_is_made_again(self, tmp_path, said):
        write(tmp_path, said, records())
        before = studies(tmp_path)
        (tmp_path / "study.db").unlink()
        write(tmp_path, said, records())
        assert studies(tmp_path) == before
        assert said == []

    def test_a_study_in_a_hurry_does_not_wait_for_it(self, tmp_path, said):
        opened = mirror(tmp_path, said)
        opened.sync(records(4))
        opened.flush()
        opened.add("mup.r-1/0099", record(99))
        opened.close(seconds=0.0)
        assert said[-1].endswith(
            "study.db lacks 1 of 5 trials (not written within 0 s). They are in the study's "
            "records, and are added when the study is next opened."
        )
        assert_mirrored(tmp_path, records(4))
        write(tmp_path, said, records(4) | {"mup.r-1/0099": record(99)})
        assert_mirrored(tmp_path, records(4) | {"mup.r-1/0099": record(99)})

    def test_a_long_wait_at_the_end_is_announced(self, tmp_path, said, monkeypatch):
        monkeypatch.setattr(storage, "_MANY", 5)
        write(tmp_path, said, records(6))
        assert [text.partition(" to ")[0] for text in said] == ["adding the last 6 trials"]
        write(tmp_path, said, records(6))
        assert len(said) == 1

    def test_what_is_there_is_not_read_again(self, tmp_path, said, monkeypatch):
        """Optuna takes seconds to read thousands of trials; a mark on each study stands for
        them.
        """
        write(tmp_path, said, records())
        monkeypatch.setattr(storage._Database, "prints", None)
        write(tmp_path, said, records())
        assert said == []

    def test_soon_without_being_asked(self, tmp_path, said, monkeypatch):
        monkeypatch.setattr(Mirror, "flush_seconds", 0.05)
        with mirror(tmp_path, said) as opened:
            opened.sync({})
            opened.add("mup.r-1/0000", record(0))
            deadline = time.monotonic() + 60
            while not studies(tmp_path).get("gqa/mup.r-1"):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert_mirrored(tmp_path, {"mup.r-1/0000": record(0)})

    def test_a_folder_with_any_name(self, tmp_path, said):
        folder = tmp_path / "a b?c=d%20{e}#ü"
        folder.mkdir()
        write(folder, said, records())
        shutil.copy(folder / "study.db", tmp_path)
        assert_mirrored(tmp_path, records())


class TestWhoseItIs:
    def test_another_study_of_the_same_name_is_refused_before_anything_runs(self, tmp_path, said):
        write(tmp_path, said, records())
        for content in ({}, records(2)):
            with pytest.raises(
                OptionError,
                match=r"study\.db holds a study named 'gqa'.*Choose another name or another",
            ):
                write(tmp_path, said, content, owner="you")
        assert_mirrored(tmp_path, records())

    def test_studies_of_other_names_share_a_database(self, tmp_path, said):
        write(tmp_path, said, records())
        write(tmp_path, said, records(4), study="gqa-2", owner="you")
        write(tmp_path, said, records(14))
        assert {name: len(trials) for name, trials in studies(tmp_path).items()} == {
            "gqa/mup.r-1": 7, "gqa/gqa-mup.r-4": 7, "gqa-2/mup.r-1": 2, "gqa-2/gqa-mup.r-4": 2,
        }  # fmt: skip

    def test_a_study_of_optuna_with_our_name_is_not_ours(self, tmp_path, said):
        theirs = optuna.create_study(
            study_name="gqa/mup.r-1", storage=f"sqlite:///{tmp_path}/study.db"
        )
        write(
            tmp_path, said, records()
        )  # an empty one: we may have been killed before it was marked
        assert_mirrored(tmp_path, records())
        optuna.delete_study(study_name="gqa/mup.r-1", storage=f"sqlite:///{tmp_path}/study.db")
        theirs = optuna.create_study(
            study_name="gqa/mup.r-1", storage=f"sqlite:///{tmp_path}/study.db"
        )
        theirs.add_trial(optuna.create_trial(value=1.0))
        with pytest.raises(OptionError, match="does not belong to this folder"):
            write(tmp_path, said, records())


def overwrite(file: Path, start: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(start)
        opened.write(content)


def set_schema(file: Path, version: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (version,))
        connection.commit()


def spoil_curves(file: Path) -> None:
    """A page that nobody reads on opening."""
    with closing(sqlite3.connect(file)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'trial_intermediate_values'"
        page = connection.execute(query).fetchone()[0]
    overwrite(file, 4096 * (page - 1), b"\xa5" * 4096)


SPOILT = {
    "curves": spoil_curves,
    "header": lambda file: overwrite(file, 0, b"\xff" * 100),
    "middle page": lambda file: overwrite(file, 4096 * 12, os.urandom(4096 * 8)),
    "all but the header": lambda file: overwrite(file, 100, b"\xa5" * (file.stat().st_size - 100)),
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2 + 7),
    "not a database": lambda file: file.write_text("Dear diary, " * 1000),
    "an older Optuna": lambda file: set_schema(file, "v3.0.0.d"),
    "a newer Optuna": lambda file: set_schema(file, "v99.0.0.a"),
}


class TestAFileThatCannotBeRead:
    @pytest.mark.parametrize("spoil", list(SPOILT.values()), ids=list(SPOILT))
    def test_it_is_set_aside_and_made_again(self, spoil, tmp_path, said):
        content = records(60)
        write(tmp_path, said, content)
        before = studies(tmp_path)
        spoil(tmp_path / "study.db")
        spoilt = (tmp_path / "study.db").read_bytes()
        write(tmp_path, said, content)
        assert studies(tmp_path) == before
        assert (tmp_path / "study.db.corrupt-1").read_bytes() == spoilt
        assert len(said) == 1
        assert "study.db could not be read (" in said[0]
        assert "It was renamed to study.db.corrupt-1" in said[0]

    def test_an_empty_file_is_filled(self, tmp_path, said):
        (tmp_path / "study.db").touch()
        write(tmp_path, said, records())
        assert_mirrored(tmp_path, records())
        assert said == []

    def test_none_is_ever_deleted(self, tmp_path, said):
        for text in ("one", "two"):
            (tmp_path / "study.db").write_text(text * 100)
            write(tmp_path, said, records())
        assert (tmp_path / "study.db.corrupt-1").read_text().startswith("one")
        assert (tmp_path / "study.db.corrupt-2").read_text().startswith("two")
        assert_mirrored(tmp_path, records())

    def test_its_journal_goes_with_it(self, tmp_path):
        """A journal that stays would be rolled back into the new file, which is how SQLite files
        are corrupted.
        """
        for name in ("study.db", "study.db-journal"):
            (tmp_path / name).write_text(name)
        storage._set_aside(tmp_path / "study.db")
        assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
            "study.db.corrupt-1": "study.db", "study.db.corrupt-1-journal": "study.db-journal",
        }  # fmt: skip

    def test_in_the_middle_of_a_study(self, tmp_path, said):
        with mirror(tmp_path, said) as opened:
            opened.sync(records(60))
            opened.flush()
            SPOILT["all but the header"](tmp_path / "study.db")
            opened.add("mup.r-1/0099", record(99))
            opened.flush()
            opened.flush()
        assert_mirrored(tmp_path, records(60) | {"mup.r-1/0099": record(99)})
        assert (tmp_path / "study.db.corrupt-1").exists()

    def test_a_study_that_was_deleted_meanwhile_is_made_again(self, tmp_path, said):
        with mirror(tmp_path, said) as opened:
            opened.sync(records())
            opened.flush()
            optuna.delete_study(study_name="gqa/mup.r-1", storage=f"sqlite:///{tmp_path}/study.db")
            opened.add("mup.r-1/0099", record(99))
            opened.flush()
            opened.flush()
        assert_mirrored(tmp_path, records() | {"mup.r-1/0099": record(99)})

    def test_a_file_that_the_user_named_stays_where_it_is(self, tmp_path, said):
        (tmp_path / "mine.db").write_text("spoilt " * 100)
        with pytest.raises(
            StorageError, match=r"could not open sqlite:///.*mine\.db: file is not a database"
        ):
            write(tmp_path, said, records(), url=f"sqlite:///{tmp_path}/mine.db")
        assert (tmp_path / "mine.db").read_text().startswith("spoilt")


class TestADatabaseThatIsNotToBeHadNow:
    @contextmanager
    def locked(self, folder: Path) -> Iterator[None]:
        with closing(sqlite3.connect(folder / "study.db")) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield
            other.rollback()

    def test_a_lock_is_waited_out(self, tmp_path, said):
        with mirror(tmp_path, said) as opened:
            opened.sync(records(4))
            opened.flush()
            with self.locked(tmp_path):
                for number in (97, 98, 99):
                    opened.add(f"mup.r-1/00{number}", record(number))
                    opened.flush()
            assert len(said) == 1
            assert "study.db: database is locked. The study continues" in said[0]
            opened.flush()
        assert len(said) == 1
        assert_mirrored(tmp_path, records(4) | {f"mup.r-1/00{n}": record(n) for n in (97, 98, 99)})

    def test_also_at_the_beginning(self, tmp_path, said):
        write(tmp_path, said, records(4))
        with mirror(tmp_path, said) as opened:
            with self.locked(tmp_path):
                opened.sync(records(8))
            opened.flush()
        assert len(said) == 1
        assert_mirrored(tmp_path, records(8))
        assert not (tmp_path / "study.db.corrupt-1").exists()

    def test_each_time_that_it_is_lost_is_said(self, tmp_path, said):
        with mirror(tmp_path, said) as opened:
            opened.sync({})
            for number in (1, 2):
                opened.add(f"mup.r-1/000{number}", record(number))
                with self.locked(tmp_path):
                    opened.flush()
                opened.flush()
        assert len(said) == 2

    def test_what_is_missing_in_the_end_is_said_and_added_next_time(self, tmp_path, said):
        with self.locked_until_closed(tmp_path, said) as opened:
            opened.add("mup.r-1/0099", record(99))
        assert said[-1].endswith(
            "study.db lacks 1 of 5 trials (database is locked). They are in the study's records, "
            "and are added when "
            "the study is next opened."
        )
        content = records(4) | {"mup.r-1/0099": record(99)}
        write(tmp_path, said, content)
        assert_mirrored(tmp_path, content)

    @contextmanager
    def locked_until_closed(self, folder: Path, said: Said) -> Iterator[Mirror]:
        opened = mirror(folder, said)
        opened.sync(records(4))
        opened.flush()
        with self.locked(folder):
            yield opened
            opened.close()

    def test_a_folder_that_takes_no_file(self, tmp_path, said):
        (tmp_path / "study.db").mkdir()
        with mirror(tmp_path, said) as opened:
            opened.sync(records(4))
            assert "unable to open database file" in said[0]
            (tmp_path / "study.db").rmdir()
            opened.flush()
        assert len(said) == 1
        assert_mirrored(tmp_path, records(4))

    def test_a_limit_on_files_stands_for_a_full_disk(self, tmp_path, said):
        content = records(120)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with mirror(tmp_path, said) as opened:
            opened.sync(records(4))
            opened.flush()
            try:
                resource.setrlimit(
                    resource.RLIMIT_FSIZE, ((tmp_path / "study.db").stat().st_size + 8192, limit[1])
                )
                opened.sync(content)
                opened.flush()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limit)
                signal.signal(signal.SIGXFSZ, before)
            assert len(said) == 1
            opened.flush()
        assert_mirrored(tmp_path, content)
        assert not (tmp_path / "study.db.corrupt-1").exists()

    @pytest.mark.skipif(
        shutil.which("mount") is None or os.geteuid() != 0, reason="needs a small disk of its own"
    )
    def test_and_a_small_disk_is_one(self, tmp_path, said):
        small = tmp_path / "small"
        small.mkdir()
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", small],
            check=False,
            capture_output=True,
        ).returncode:
            pytest.skip("may not mount")
        try:
            content = records(300)
            with mirror(small, said) as opened:
                opened.sync(content)
                opened.flush()
                assert "database or disk is full" in said[0]
                subprocess.run(["mount", "-o", "remount,size=9m", small], check=True)
                opened.flush()
            assert len(said) == 1
            assert_mirrored(small, content)
        finally:
            subprocess.run(["umount", small], check=True)


KILLED = textwrap.dedent("""
    import json, sys
    from pathlib import Path
    from mupscale.studies import storage

    def loudly(*arguments, insert=storage._Database.insert):
        print(flush=True)
        insert(*arguments)

    storage._Database.insert = loudly
    with storage.Mirror(None, Path(sys.argv[1]), "gqa", "me", print, {}) as opened:
        opened.sync(json.loads(Path(sys.argv[2]).read_text()))
""")


def test_a_kill_in_the_middle_of_a_flush_loses_and_doubles_nothing(tmp_path, said):
    content = records(150)
    (tmp_path / "content.json").write_text(json.dumps(content))
    sizes = [0]
    for inserted in (2, 60):
        command = [sys.executable, "-c", KILLED, tmp_path, tmp_path / "content.json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(inserted):
                process.stdout.readline()
            process.kill()
        with closing(sqlite3.connect(tmp_path / "study.db")) as connection:
            sizes += connection.execute("SELECT count(*) FROM trials").fetchone()
    assert sizes == sorted(sizes)
    assert 24 <= sizes[-1] < 150
    write(tmp_path, said, content)
    assert_mirrored(tmp_path, content)
    assert said == []


class TestItKeepsToItself:
    def test_nothing_is_printed(self, tmp_path, said, capfd):
        write(tmp_path, said, records())
        write(tmp_path, said, records(14))
        assert capfd.readouterr() == ("", "")

    def test_what_a_program_has_optuna_log_is_still_logged(self, tmp_path, said):
        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda entry: lines.append(entry.getMessage())  # pyright: ignore[reportAttributeAccessIssue]
        level = optuna.logging.get_verbosity()
        logging.getLogger("optuna").addHandler(handler)
        try:
            write(tmp_path, said, records())
            assert lines == []
            optuna.create_study(study_name="own")
        finally:
            logging.getLogger("optuna").removeHandler(handler)
        assert len(lines) == 1
        assert optuna.logging.get_verbosity() == level
        assert handler.filters == []

    def test_it_can_be_closed_twice_and_unopened(self, tmp_path, said):
        opened = mirror(tmp_path, said)
        opened.close()
        opened.close()
        assert list(tmp_path.iterdir()) == []


class TestURLs:
    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("journal://study.log", "is not an SQL database"),
            ("redis://me:s3cr3t@host/0", "is not an SQL database"),
            ("study.log", "is not the URL of a database"),
            ("", "is not the URL of a database"),
            ("nonsense://me:s3cr3t@host/x", "is not a known database"),
        ],
    )
    def test_what_is_refused_and_why(self, url, message, tmp_path, said):
        with pytest.raises(
            OptionError, match=rf"{message}.*Write postgresql://USER@HOST/DATABASE"
        ) as caught:
            write(tmp_path, said, {}, url=url)
        assert PASSWORD not in str(caught.value)

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("postgresql://me:s3cr3t@host/x", "postgresql://me:***@host/x"),
            ("postgresql://me:s3@cr3t@host:1/x", "postgresql://me:***@host:1/x"),
            ("postgresql://me@host/x?password=s3cr3t", "postgresql://me@host/x?password=***"),
            ("postgresql://me@host/x", "postgresql://me@host/x"),
            ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ],
    )
    def test_a_password_is_never_shown(self, url, shown):
        assert masked(url) == shown

    def test_a_missing_driver_says_what_to_install(self, tmp_path, said, monkeypatch):
        monkeypatch.setitem(sys.modules, "psycopg2", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'mupscale\[postgres\]'"):
            write(tmp_path, said, {}, url="postgresql://me@host/x")

    def test_a_driver_that_is_nobodys_extra(self, tmp_path, said, monkeypatch):
        monkeypatch.setitem(sys.modules, "MySQLdb", None)
        with pytest.raises(
            OptionError, match=r"the driver of mysql://me:\*\*\*@host/x is not installed"
        ):
            write(tmp_path, said, {}, url="mysql://me:s3cr3t@host/x")

    def test_a_missing_optuna_says_what_to_install(self, tmp_path, said, monkeypatch):
        monkeypatch.setitem(sys.modules, "optuna", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'mupscale\[study\]'"):
            write(tmp_path, said, {})

    def test_sqlite_elsewhere(self, tmp_path, said):
        (tmp_path / "a{b}").mkdir()
        write(tmp_path, said, records(), url=f"sqlite:///{tmp_path}/a{{b}}/study.db")
        shutil.move(tmp_path / "a{b}" / "study.db", tmp_path)
        assert_mirrored(tmp_path, records())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    made = Server()
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def server(cluster: Server) -> Iterator[Server]:
    cluster.start()
    yield cluster
    for name in optuna.get_all_study_names(
        cluster.url.replace("postgresql:", "postgresql+psycopg2:")
    ):
        optuna.delete_study(
            study_name=name, storage=cluster.url.replace("postgresql:", "postgresql+psycopg2:")
        )
    cluster.stop()


class TestPostgreSQL:
    def test_it_holds_what_sqlite_holds(self, server, tmp_path, said):
        for url in (server.url, None):
            for count in (4, 40):
                write(tmp_path, said, records(count), url=url)
        assert studies(server.url) == studies(tmp_path)
        assert said == []

    def test_a_server_that_goes_and_comes_back(self, server, tmp_path, said):
        with mirror(tmp_path, said, url=server.url) as opened:
            opened.sync(records(4))
            opened.flush()
            server.stop()
            for number in (98, 99):
                opened.add(f"mup.r-1/00{number}", record(number))
                opened.flush()
            assert len(said) == 1
            assert PASSWORD not in said[0]
            assert (
                "could not write "
                f"postgresql+psycopg2://mupscale:***@127.0.0.1:{server.port}/postgres: " in said[0]
            )
            server.start()
            opened.flush()
        assert len(said) == 1
        assert_mirrored(server.url, records(4) | {f"mup.r-1/00{n}": record(n) for n in (98, 99)})

    def test_one_that_is_not_there_is_said_at_the_beginning(self, cluster, tmp_path, said):
        with pytest.raises(
            StorageError, match=r"could not open postgresql.*Connection refused"
        ) as caught:
            write(tmp_path, said, records(), url=cluster.url)
        assert PASSWORD not in str(caught.value)
        assert caught.value.__cause__ is None

    def test_another_machine_with_a_study_of_the_same_name(self, server, tmp_path, said):
        write(tmp_path, said, records(), url=server.url)
        with pytest.raises(OptionError, match=r"mupscale:\*\*\*@.* holds a study named 'gqa'"):
            write(tmp_path, said, {}, url=server.url, owner="you")
        assert_mirrored(server.url, records())

    def test_a_database_of_another_optuna_is_left_alone(self, server, tmp_path, said):
        write(tmp_path, said, records(4), url=server.url)
        self.set_version(server, "v3.0.0.d")
        try:
            with pytest.raises(StorageError, match="optuna storage upgrade"):
                write(tmp_path, said, records(4), url=server.url)
            assert said == []
        finally:
            self.set_version(server, "v3.2.0.a")
        assert_mirrored(server.url, records(4))

    def set_version(self, server: Server, version: str) -> None:
        import psycopg2

        with (
            closing(psycopg2.connect(server.url)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("UPDATE alembic_version SET version_num = %s", (version,))
