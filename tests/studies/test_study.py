"""Studies as a whole: what they find, what they keep, and what happens when something goes
wrong.
"""

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from mupscale.engines import Engine, Local, Outcome, Session
from mupscale.engines.ledger import Ledger
from mupscale.errors import (
    InterruptedJobsError,
    MissingExtraError,
    OptionError,
    StorageError,
    StudyFailedError,
)
from mupscale.studies import Snapshot, Study, StudyConfig, TrialRecord, retry_failed
from mupscale.training import run

TOY = '''
import math, os, time

def train(trial):
    """A bowl with its optimum at 2^-6.2, and noise that depends on rate and seed alone."""
    x = math.log2(trial.lr)
    for step in range(1, 11):
        trial.report(step, 4 - 0.15 * step + 0.05 * (x + 6.2) ** 2, steps=10)
        time.sleep(float(os.environ.get("TOY_SECONDS", 0)) / 10)
    loss = 2 + 0.05 * (x + 6.2) ** 2 + 0.005 * math.sin(50 * x + trial.seed)
    return {"loss": loss, "tokens": 1000}

def diverging(trial):
    return math.nan

def failing(trial):
    if not os.path.exists("repaired"):
        raise RuntimeError("a fault of its own")
    return 2.0

def some_fail(trial):
    if trial.seed == 2:
        raise RuntimeError("only seed 2")
    return train(trial)

def hungry(trial):
    if trial.seed == 2:
        return len(bytearray(1 << 42))
    return train(trial)

def dying(trial):
    if trial.seed == 2:
        os.kill(os.getpid(), 9)
    return train(trial)

def full(trial):
    raise OSError(28, "No space left on device")

def hanging(trial):
    if trial.seed == 2:
        time.sleep(1000)
    return train(trial)
'''

HERE = Local(workers=0)


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_trainer.py").write_text(TOY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "toy_trainer", raising=False)
    monkeypatch.chdir(tmp_path)


def config(function: str = "train", method: str = "adaptive", **changes: Any) -> StudyConfig:
    return StudyConfig.from_dict(
        {
            "name": "toy",
            "rules": ["sp"],
            "seeds": [1, 2, 3],
            "space": {"lr": ["2^-8", "2^-4"]},
            "search": {"method": method, "step": 1.0},
            "trainer": {"function": f"toy_trainer:{function}"},
            **changes,
        }
    )


def results(trials: list[TrialRecord]) -> list[dict[str, Any]]:
    """All but when, how long, and how often it was tried."""
    return [
        {k: v for k, v in trial.to_dict().items() if k not in ("began", "seconds", "attempts")}
        for trial in trials
    ]


def in_database(path: Path) -> list[tuple[str, ...]]:
    with sqlite3.connect(path) as database:
        query = "SELECT value_json FROM trial_user_attributes WHERE key = 'trial'"
        return sorted(json.loads(value) for (value,) in database.execute(query))


class TestRun:
    def test_every_trial_is_recorded_once_everywhere(self, tmp_path: Path) -> None:
        study = Study.create(config(), tmp_path / "s")
        heard: list[int] = []
        end = study.run(engine=HERE, report=lambda snapshot: heard.append(len(snapshot.trials)))
        keys = [trial.key for trial in study.trials]
        assert list(dict.fromkeys(heard)) == list(range(len(keys) + 1))
        assert len(set(keys)) == len(keys)
        assert end.done == {"sp"}
        assert in_database(tmp_path / "s/study.db") == keys
        assert not any((tmp_path / "s/trials").rglob("attempts*"))

    def test_a_finished_study_runs_nothing_and_says_the_same(self, tmp_path: Path) -> None:
        study = Study.create(config(), tmp_path / "s")
        first = study.run(engine=HERE)
        again = Study.open(tmp_path / "s").run(engine=_Refusing())
        assert results(again.trials) == results(first.trials)

    def test_workers_and_their_number_change_nothing(self, tmp_path: Path) -> None:
        alone, together = (
            results(Study.create(config(), tmp_path / str(n)).run(engine=Local(workers=n)).trials)
            for n in (0, 2)
        )
        assert alone == together

    def test_cells_come_along_together(self, tmp_path: Path) -> None:
        study = Study.create(
            config(method="grid", rules=["sp"], vary={"width": [16, 32]}), tmp_path / "s"
        )
        order: list[str] = []
        study.run(
            engine=HERE,
            report=lambda s: (
                order.append(max((t.began or 0, t.cell) for t in s.trials)[1]) if s.trials else None
            ),
        )
        assert {order[0], order[1]} == {"sp.width-16", "sp.width-32"}

    def test_a_trial_of_the_reference_model_is_a_training_run(self, tmp_path: Path) -> None:
        settings = {
            "trainer": None,
            "rules": ["gqa-mup"],
            "seeds": [5],
            "space": {"lr": ["2^-7", "2^-6"]},
            "model": {
                "width": 16,
                "depth": 1,
                "n_heads": 2,
                "n_kv_heads": 1,
                "vocabulary": 256,
                "context": 16,
            },
            "data": {"sequence": 16},
            "length": {"steps": 4, "batch": 2},
            "record": {"eval_batches": 1},
        }
        values = {**config().to_dict(), **settings, "search": {"method": "grid", "step": 1.0}}
        study = Study.create(
            StudyConfig.from_dict({k: v for k, v in values.items() if v is not None}),
            tmp_path / "s",
        )
        low, high = study.run(engine=HERE).trials
        for trial in (low, high):
            expected = run(
                study.config.run_config(study.config.cells()[0], trial.params, 5),
                tmp_path / trial.key,
            )
            assert (trial.loss, trial.tokens) == (expected.validation_loss, expected.tokens)
        assert low.loss != high.loss

    def test_without_optuna_the_records_must_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "optuna", None)
        remarks: list[str] = []
        trials = (
            Study.create(config(), tmp_path / "s").run(engine=HERE, remark=remarks.append).trials
        )
        assert trials
        assert not (tmp_path / "s/study.db").exists()
        assert any("mupscale[study]" in remark for remark in remarks)
        elsewhere = config(name="other", storage="postgresql://me@host/studies")
        with pytest.raises(MissingExtraError):
            Study.create(elsewhere, tmp_path / "t").run(engine=HERE)


class _Refusing:
    """An engine that must not be asked."""

    def session(self, function: Callable[[Any], Any]) -> Any:
        raise AssertionError("nothing was to be run")


class _Interrupted:
    """An engine on which somebody presses Ctrl-C after some trials."""

    def __init__(self, after: int) -> None:
        self.after = after

    @contextmanager
    def session(self, function: Callable[[Any], Any]) -> Generator[Session]:
        with HERE.session(function) as inner:
            yield _Counting(inner, self.after)


class _Counting:
    capacity = 2

    def __init__(self, inner: Session, left: int) -> None:
        self.inner, self.left = inner, left

    def submit(self, job: str, payload: Any) -> None:
        self.inner.submit(job, payload)

    def finished(self, timeout: float | None = None) -> list[Outcome]:
        if self.left <= 0:
            raise KeyboardInterrupt
        outcomes = self.inner.finished(timeout)
        self.left -= len(outcomes)
        return outcomes


class TestNothingIsLost:
    @pytest.mark.parametrize("method", ["adaptive", "grid"])
    def test_interrupted_again_and_again_it_ends_as_an_undisturbed_one(
        self, tmp_path: Path, method: str
    ) -> None:
        expected = results(
            Study.create(config(method=method), tmp_path / "a").run(engine=HERE).trials
        )
        study = Study.create(config(method=method), tmp_path / "b")
        for _ in range(50):
            try:
                end = study.run(engine=_Interrupted(after=2))
                break
            except InterruptedJobsError as error:
                assert error.exit_status == 130  # noqa: PT017
                assert str(tmp_path / "b") in str(error)  # noqa: PT017
        assert results(end.trials) == expected
        assert in_database(tmp_path / "b/study.db") == [trial.key for trial in end.trials]

    def test_a_torn_record_is_dropped_with_a_remark_and_run_again(self, tmp_path: Path) -> None:
        study = Study.create(config(), tmp_path / "s")
        expected = results(study.run(engine=HERE).trials)
        records = tmp_path / "s/records.jsonl"
        records.write_bytes(records.read_bytes()[:-20])
        remarks: list[str] = []
        assert results(study.run(engine=HERE, remark=remarks.append).trials) == expected
        assert any("torn" in remark for remark in remarks)

    def test_status_is_read_while_a_line_is_being_written(self, tmp_path: Path) -> None:
        study = Study.create(config(), tmp_path / "s")
        count = len(study.run(engine=HERE).trials)
        records = tmp_path / "s/records.jsonl"
        records.write_bytes(records.read_bytes() + b'{"job": "sp/00')
        before = records.read_bytes()
        assert len(study.snapshot().trials) == count
        assert records.read_bytes() == before

    @pytest.mark.parametrize("damage", [b"not a database at all", b""])
    def test_a_corrupt_database_is_rebuilt_from_the_records(
        self, tmp_path: Path, damage: bytes
    ) -> None:
        study = Study.create(config(), tmp_path / "s")
        trials = study.run(engine=HERE).trials
        for name in ("study.db", "study.db-wal", "study.db-shm"):
            (tmp_path / "s" / name).unlink(missing_ok=True)
        (tmp_path / "s/study.db").write_bytes(damage)
        study.run(engine=_Refusing(), remark=lambda _: None)
        assert in_database(tmp_path / "s/study.db") == [trial.key for trial in trials]

    def test_a_second_driver_is_refused(self, tmp_path: Path) -> None:
        study = Study.create(config(), tmp_path / "s")
        with (
            Ledger(tmp_path / "s/records.jsonl", {"study": study.config.identity()}),
            pytest.raises(OptionError, match="in use by another process"),
        ):
            study.run(engine=HERE)

    def test_records_of_another_study_are_refused(self, tmp_path: Path) -> None:
        Study.create(config(), tmp_path / "s").run(engine=HERE)
        other = config(seeds=[1, 2])
        with pytest.raises(OptionError, match=r"seeds: \[1, 2, 3\] → \[1, 2\].*--fork"):
            Study.create(other, tmp_path / "s")

    def test_a_fork_takes_over_what_is_the_same(self, tmp_path: Path) -> None:
        old = Study.create(config(method="grid"), tmp_path / "s")
        old.run(engine=HERE)
        more = Study.create(config(method="grid", seeds=[1, 2, 3, 4]), tmp_path / "t")
        ran: list[str] = []
        end = more.run(engine=_Spying(ran), reuse=Study.open(tmp_path / "s"))
        assert len(ran) == 5
        assert {trial.seed for trial in end.trials if trial.key in ran} == {4}
        assert len(end.trials) == 20

    def test_a_file_that_says_the_same_keeps_its_comments(self, tmp_path: Path) -> None:
        study = Study.create(config(), tmp_path / "s")
        path = tmp_path / "s/study.toml"
        path.write_text("# why\n" + path.read_text(), encoding="utf-8")
        Study.create(study.config, tmp_path / "s")
        assert path.read_text().startswith("# why")

    def test_a_changed_budget_goes_on(self, tmp_path: Path) -> None:
        few = config(search={"method": "random", "trials": 4})
        more = config(search={"method": "random", "trials": 6})
        first = Study.create(few, tmp_path / "s").run(engine=HERE).trials
        assert results(Study.create(more, tmp_path / "s").run(engine=HERE).trials)[:4] == results(
            first
        )

    def test_a_full_disk_is_one_error_and_the_study_goes_on_once_there_is_room(
        self, tmp_path: Path
    ) -> None:
        expected = results(Study.create(config(), tmp_path / "a").run(engine=HERE).trials)
        study = Study.create(config(), tmp_path / "b")
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
            with pytest.raises(StorageError, match=r"records\.jsonl|study") as raised:
                study.run(engine=HERE, remark=lambda _: None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, before)
        assert raised.value.exit_status == 4
        assert results(study.run(engine=HERE, remark=lambda _: None).trials) == expected


class _Spying:
    def __init__(self, ran: list[str]) -> None:
        self.ran = ran

    @contextmanager
    def session(self, function: Callable[[Any], Any]) -> Generator[Session]:
        with HERE.session(function) as inner:
            spied = _Counting(inner, 10**9)
            submit = spied.submit
            spied.submit = lambda job, payload: (self.ran.append(job), submit(job, payload))[1]  # type: ignore[method-assign]
            yield spied


class TestFaults:
    def test_nan_is_diverged_and_not_a_loss(self, tmp_path: Path) -> None:
        study = Study.create(
            config("diverging", search={"method": "grid", "step": 2.0}), tmp_path / "s"
        )
        trials = study.run(engine=HERE).trials
        assert {(trial.status, trial.loss) for trial in trials} == {("diverged", None)}

    def test_a_study_in_which_nothing_runs_ends_early_with_the_reason(self, tmp_path: Path) -> None:
        study = Study.create(config("failing", method="grid"), tmp_path / "s")
        with pytest.raises(StudyFailedError, match="a fault of its own") as raised:
            study.run(engine=HERE)
        assert raised.value.exit_status == 1
        assert len(study.trials) == 3
        (tmp_path / "repaired").touch()
        assert retry_failed(study) == 3
        assert {trial.status for trial in study.run(engine=HERE).trials} == {"finished"}
        assert len((tmp_path / "s/failed.jsonl").read_text().splitlines()) == 3

    @pytest.mark.parametrize(
        ("function", "engine", "status"),
        [
            ("some_fail", Local(workers=1), "failed"),
            ("hungry", Local(workers=1), "oom"),
            ("dying", Local(workers=1, retries=1), "oom"),
            ("hanging", Local(workers=1, time_limit=20), "timeout"),
        ],
    )
    def test_a_trial_that_fails_costs_no_other(
        self, tmp_path: Path, function: str, engine: Engine, status: str
    ) -> None:
        small = config(function, seeds=[1, 2], search={"method": "grid", "step": 8.0})
        good, bad = Study.create(small, tmp_path / "s").run(engine=engine).trials
        assert (good.status, bad.status) == ("finished", status)
        assert bad.error
        assert bad.attempts == (2 if function == "dying" else 1)

    def test_a_full_disk_in_a_trial_ends_the_study_and_not_the_trial(self, tmp_path: Path) -> None:
        study = Study.create(config("full", method="grid"), tmp_path / "s")
        with pytest.raises(StorageError, match="No space left"):
            study.run(engine=HERE)
        assert study.trials == []

    def test_a_trial_that_was_asked_to_stop_goes_on(self, tmp_path: Path) -> None:
        """As by a machine that is taken away in good order: SIGTERM to the worker, in the middle of
        real training.
        """
        values = config().to_dict() | {
            "rules": ["gqa-mup"],
            "seeds": [5],
            "search": {"method": "grid", "step": 8.0},
            "model": {"width": 16, "depth": 1, "n_heads": 2, "vocabulary": 256, "context": 16},
            "data": {"sequence": 16},
            "length": {"steps": 1200, "batch": 2},
            "record": {"eval_batches": 1},
        }
        values.pop("trainer")
        study = Study.create(StudyConfig.from_dict(values), tmp_path / "s")
        thread = threading.Thread(target=_ask_to_stop, args=(tmp_path / "s/trials",))
        thread.start()
        (trial,) = study.run(engine=Local(workers=1)).trials
        thread.join()
        assert (trial.status, trial.attempts) == ("finished", 2)
        whole = run(
            study.config.run_config(study.config.cells()[0], trial.params, 5), tmp_path / "whole"
        )
        assert trial.loss == whole.validation_loss

    def test_a_link_out_of_the_study_is_refused(self, tmp_path: Path) -> None:
        study = Study.create(config(), tmp_path / "s")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "s/trials").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OptionError, match="leads out"):
            study.run(engine=HERE)
        assert not any((tmp_path / "elsewhere").iterdir())

    def test_a_folder_without_a_study_is_said_to_be_one(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match="holds no study"):
            Study.open(tmp_path)

    def test_a_rule_without_a_plan_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match="all rules would train alike"):
            Study.create(config(rules=["mup"]), tmp_path / "s")


def _ask_to_stop(trials: Path) -> None:
    """SIGTERM to the one worker, once its run has taken some steps."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for metrics in trials.rglob("metrics.jsonl"):
            if metrics.stat().st_size > 1000:
                for process in psutil.Process().children(recursive=True):
                    if not process.children() and "mupscale.engines.worker" in " ".join(
                        process.cmdline()
                    ):
                        process.terminate()
                return
        time.sleep(0.02)


DRIVER = """
import sys
from pathlib import Path
from mupscale.engines import Local
from mupscale.studies import Study
Study.open(Path(sys.argv[1])).run(engine=Local(workers=2))
"""


def driven(folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder.parent), *sys.path]),
        "TOY_SECONDS": "0.05",
    }
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(folder)], env=environment
    )


def test_a_driver_that_is_killed_leaves_a_study_that_goes_on(tmp_path: Path) -> None:
    expected = results(Study.create(config(method="grid"), tmp_path / "a").run(engine=HERE).trials)
    study = Study.create(config(method="grid"), tmp_path / "b")
    process = driven(tmp_path / "b")
    deadline = time.monotonic() + 60
    while len(_so_far(study)) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 4 <= len(_so_far(study)) < len(expected)
    assert driven(tmp_path / "b").wait(timeout=60) == 0
    assert results(study.trials) == expected
    assert in_database(tmp_path / "b/study.db") == [trial.key for trial in study.trials]


def _so_far(study: Study) -> list[TrialRecord]:
    return study.trials if (study.folder / "records.jsonl").exists() else []


def test_a_snapshot_knows_what_is_left(tmp_path: Path) -> None:
    snapshot: Snapshot = Study.create(config(method="grid"), tmp_path / "s").snapshot()
    assert (snapshot.trials, snapshot.expected, snapshot.done) == ([], {"sp": 15}, frozenset())
