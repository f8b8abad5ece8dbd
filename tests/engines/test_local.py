"""Workers do what this process would do, survive what jobs do to them, and never outlive their
driver.
"""

import ctypes
import errno
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from mupscale.engines import Local, Outcome, Ray, engine_named, run_jobs
from mupscale.engines.process import Terms, Worker, WorkerDiedError
from mupscale.errors import (
    InterruptedJobsError,
    InterruptedRunError,
    JobError,
    MissingExtraError,
    MupscaleError,
    NonFiniteError,
    OptionError,
    StorageError,
    UnknownNameError,
)
from tests.engines.waiting import is_gone, wait_for

TWO = Local(workers=2)
HERE = Local(workers=0)


def noisy(seed: int) -> dict:
    generator = random.Random(seed)
    return {"seed": seed, "values": [generator.gauss(0, 1) for _ in range(5)]}


def workers_of(driver: int) -> list[int]:
    """Those of its children that are workers, zombies left out; by /proc, so that nothing of ours
    is asked.
    """
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text()
        except OSError:  # it ended meanwhile
            continue
        if fields[0] != "Z" and int(fields[1]) == driver and "mupscale.engines.worker" in command:
            found.append(int(stat.parent.name))
    return found


def finished_with_one_stopped(folder: Path, then: int) -> list[str]:
    """Stop the worker that gets a large payload next; when the other one has done the rest, send it
    `then`.
    """

    def work(payload):
        while payload == "wait" and not (folder / "stopped").exists():
            time.sleep(0.01)
        return os.getpid()

    with TWO.session(work) as session:
        session.submit("first", "")
        (first,) = session.finished()
        os.kill(first.result, signal.SIGSTOP)
        for job, payload in {"large": bytes(5 << 20), "meanwhile": "wait", "after": ""}.items():
            session.submit(job, payload)
        (folder / "stopped").touch()
        order = ["first", *(outcome.job for _ in range(2) for outcome in session.finished())]
        os.kill(first.result, then)
        return order + [outcome.job for outcome in session.finished()]


def all_outcomes(session) -> dict[str, Outcome]:
    """Of what was submitted."""
    ended = {}
    while outcomes := session.finished():
        ended |= {outcome.job: outcome for outcome in outcomes}
    return ended


def outcomes_of(engine: Local, function, jobs: dict) -> dict[str, Outcome]:
    with engine.session(function) as session:
        for job, payload in jobs.items():
            session.submit(job, payload)
        return all_outcomes(session)


@pytest.fixture(autouse=True)
def nothing_is_left_running():
    yield
    assert workers_of(os.getpid()) == []


class TestResults:
    def test_are_those_of_this_process(self):
        jobs = {f"job-{seed}": seed for seed in range(20)}
        assert run_jobs(noisy, jobs, engine=TWO) == {job: noisy(seed) for job, seed in jobs.items()}

    def test_come_in_the_order_of_the_jobs(self):
        def slow_first(seconds):
            time.sleep(seconds)
            return seconds

        done = run_jobs(slow_first, {"a": 0.3, "b": 0, "c": 0}, engine=TWO)
        assert list(done) == ["a", "b", "c"]

    @pytest.mark.parametrize("engine", [TWO, HERE])
    def test_are_json_values_wherever_they_were_computed(self, engine):
        assert run_jobs(lambda n: {n: (n, None)}, {"a": 1}, engine=engine) == {
            "a": {"1": [1, None]}
        }

    def test_of_lambdas_closures_and_local_classes(self):
        class Doubler:
            factor = 2

            def __call__(self, value):
                return self.factor * value + offset

        offset = 5
        assert run_jobs(lambda n: Doubler()(n), {"a": 1, "b": 2}, engine=TWO) == {"a": 7, "b": 9}
        assert run_jobs(Doubler(), {"a": 1, "b": 2}, engine=TWO) == {"a": 7, "b": 9}

    def test_of_no_jobs_at_all(self):
        assert run_jobs(noisy, {}, engine=TWO) == {}
        assert run_jobs(threading.Lock(), {}, engine=TWO) == {}  # nothing is even sent

    def test_however_large_they_are(self):
        megabyte = 1 << 20
        jobs = {
            "a": bytes(10 * megabyte),
            "b": bytes(11 * megabyte),
            "c": b"",
            "d": bytes(10 * megabyte),
        }
        done = run_jobs(lambda payload: "x" * len(payload), jobs, engine=TWO)
        assert {job: len(text) for job, text in done.items()} == {
            job: len(payload) for job, payload in jobs.items()
        }

    def test_are_reported_as_they_come(self):
        seen = []
        run_jobs(noisy, {"a": 1, "b": 2, "c": 3}, engine=TWO, report=lambda *at: seen.append(at))
        assert seen == [(1, 3), (2, 3), (3, 3)]

    def test_are_not_disturbed_by_what_a_job_prints_or_reads(self, capfd):
        def talkative(n):
            print("from print", flush=True)
            os.write(1, b"from a descriptor\n")
            subprocess.run(["echo", "from a child"], check=True)
            return [n, sys.stdin.read()]

        assert run_jobs(talkative, {"a": 1, "b": 2}, engine=TWO) == {"a": [1, ""], "b": [2, ""]}
        written = capfd.readouterr()
        assert written.out == ""
        for words in ("from print", "from a descriptor", "from a child"):
            assert written.err.count(words) == 2


class TestWorkers:
    def test_are_as_many_as_asked_but_no_more_than_jobs(self):
        def where(_):
            time.sleep(0.2)
            return os.getpid()

        assert len(set(run_jobs(where, dict.fromkeys("abcd"), engine=TWO).values())) == 2
        assert len(set(run_jobs(where, dict.fromkeys("a"), engine=Local(workers=5)).values())) == 1
        assert set(run_jobs(where, dict.fromkeys("ab"), engine=HERE).values()) == {os.getpid()}

    def test_by_default_one_for_each_core_that_may_be_used(self):
        def where(_):
            time.sleep(0.2)
            return os.getpid()

        cores = len(os.sched_getaffinity(0))
        assert (
            len(set(run_jobs(where, dict.fromkeys(map(str, range(2 * cores)))).values())) == cores
        )

    def test_are_not_started_in_vain(self, monkeypatch):
        started = []
        monkeypatch.setattr(
            "mupscale.engines.local.Worker", lambda *to: started.append(Worker(*to)) or started[-1]
        )
        run_jobs(abs, {"a": 1}, engine=Local(workers=5))
        assert len(started) == 1

    def test_get_the_function_once(self, tmp_path):
        class Loaded:
            def __reduce__(self):
                return load, ()

        def load():
            with (tmp_path / "loads").open("a") as file:
                file.write("x")
            return lambda _: None

        run_jobs(Loaded(), dict.fromkeys("abcd"), engine=Local(workers=1))
        assert (tmp_path / "loads").read_text() == "x"

    def test_one_that_stands_still_does_not_hold_up_the_others(self, tmp_path):
        """A payload larger than its pipe is on the way to it meanwhile."""

        assert finished_with_one_stopped(tmp_path, signal.SIGCONT) == [
            "first",
            "meanwhile",
            "after",
            "large",
        ]

    def test_use_one_thread(self, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "2")

        def threads(_):
            import torch

            return torch.get_num_threads()

        assert run_jobs(threads, {"a": None}, engine=Local(workers=1)) == {"a": 1}

    def test_see_the_path_folder_and_environment_of_the_driver(self, tmp_path, monkeypatch):
        (tmp_path / "only_here.py").write_text("VALUE = 7")
        (tmp_path / "json.py").write_text(
            "raise ImportError('the current folder is not on the path')"
        )
        (tmp_path / "modules").mkdir()
        (tmp_path / "only_here.py").rename(tmp_path / "modules" / "only_here.py")
        monkeypatch.syspath_prepend(str(tmp_path / "modules"))
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONPATH", "/somewhere")

        def look(_):
            import only_here

            return [only_here.VALUE, os.getcwd(), sys.path, os.environ["PYTHONPATH"]]

        done = run_jobs(look, {"a": None}, engine=Local(workers=1))
        assert done["a"] == [7, str(tmp_path), sys.path, "/somewhere"]

    def test_ignore_the_ctrl_c_that_the_terminal_sends_to_all(self):
        def hit(_):
            os.kill(os.getpid(), signal.SIGINT)
            return "still here"

        assert run_jobs(hit, {"a": None}, engine=Local(workers=1)) == {"a": "still here"}

    @pytest.mark.parametrize("setting", [{"workers": -1}, {"retries": -2}])
    def test_a_negative_number_is_refused(self, setting):
        with pytest.raises(OptionError, match="is negative"):
            Local(**setting)


class TestDeaths:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
    def test_a_job_whose_worker_dies_is_tried_again(self, tmp_path, number):
        def dies_once(name):
            marker = tmp_path / name
            if name in "bd" and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), number)
            return name.upper()

        assert run_jobs(dies_once, {n: n for n in "abcdef"}, engine=TWO) == {
            n: n.upper() for n in "abcdef"
        }

    def test_but_not_for_ever(self, tmp_path):
        def dies(name):
            if name == "b":
                with (tmp_path / "attempts").open("a") as file:
                    file.write("x")
                os.kill(os.getpid(), signal.SIGKILL)
            return name

        ledger = tmp_path / "jobs.jsonl"
        with pytest.raises(
            JobError, match=r"job 'b': its worker died 3 times.* was killed by SIGKILL .*memory"
        ):
            run_jobs(dies, {n: n for n in "abc"}, engine=Local(workers=1), ledger=ledger)
        assert (tmp_path / "attempts").read_text() == "xxx"
        assert '{"job": "a", "result": "a"}' in ledger.read_text()
        with pytest.raises(JobError, match="its worker died once"):
            run_jobs(dies, {"b": "b"}, engine=Local(workers=1, retries=0))

    def test_an_exit_status_is_told(self):
        with pytest.raises(JobError, match=r"job 'a'.* exited with status 7"):
            run_jobs(lambda _: os._exit(7), {"a": None}, engine=Local(workers=1, retries=0))

    def test_of_a_worker_that_has_nothing_to_do_costs_nobody_an_attempt(self):
        workers = set()
        with Local(workers=1, retries=0).session(lambda _: os.getpid()) as session:
            for job in "abcd":
                session.submit(job, bytes(1 << 20))
                (outcome,) = session.finished()
                workers.add(outcome.result)
                (keeper,) = workers_of(os.getpid())
                os.kill(outcome.result, signal.SIGKILL)
                wait_for(lambda keeper=keeper: is_gone(keeper))
        assert len(workers) == 4

    def test_in_the_middle_of_a_payload(self, tmp_path):
        assert sorted(finished_with_one_stopped(tmp_path, signal.SIGKILL)) == [
            "after",
            "first",
            "large",
            "meanwhile",
        ]

    def test_is_told_by_the_answers_not_by_the_payload_that_nobody_reads(self):
        worker = Worker(b"", Terms())
        worker.assign(bytes(1 << 20))
        worker.kill()
        wait_for(worker.send)  # its end of the pipe closes when it is gone
        with pytest.raises(WorkerDiedError, match="was killed by SIGKILL"):
            worker.receive()
        worker.leave()

    def test_on_the_arrival_of_a_huge_payload(self, tmp_path):
        class DiesOnArrival:
            def __reduce__(self):
                return die_once, (bytes(10 << 20),)

        def die_once(payload):
            if not (tmp_path / "marker").exists():
                (tmp_path / "marker").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return len(payload)

        assert run_jobs(lambda n: n, {"a": DiesOnArrival()}, engine=TWO) == {"a": 10 << 20}


def with_a_child(folder: Path, name: str, **how) -> int:
    """In a job: start a process that would live on."""
    child = subprocess.Popen(["sleep", "60"], **how)
    (folder / name).write_text(str(child.pid))
    return child.pid


@pytest.mark.parametrize(
    "how", [{}, {"start_new_session": True}], ids=["child", "in a session of its own"]
)
class TestWhatAJobStarted:
    def test_ends_with_the_time_of_the_job(self, tmp_path, how):
        def work(payload):
            if payload == "hangs":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                with_a_child(tmp_path, "child", **how)
                ctypes.PyDLL(None).sleep(60)  # holding Python's lock
            return payload

        engine = Local(workers=1, time_limit=3)
        ended = outcomes_of(engine, work, {"before": 1, "late": "hangs", "after": 2})
        assert (ended["before"].result, ended["after"].result) == (1, 2)
        assert ended["late"].failure.kind == "timeout"
        assert ended["late"].attempts == 1
        assert "job 'late' exceeded its time limit of 3 seconds" in str(ended["late"].failure.error)
        assert is_gone(int((tmp_path / "child").read_text()))

    def test_ends_with_a_worker_that_is_killed(self, tmp_path, how):
        def dies(_):
            with_a_child(tmp_path, "child", **how)
            os.kill(os.getpid(), signal.SIGKILL)

        ended = outcomes_of(Local(workers=1, retries=0), dies, {"a": None})
        assert ended["a"].failure.kind == "oom"
        assert is_gone(int((tmp_path / "child").read_text()))

    def test_ends_with_the_session(self, tmp_path, how):
        def work(name):
            child = with_a_child(tmp_path, name, **how)
            time.sleep(60 if name == "busy" else 0)
            return child

        with TWO.session(work) as session:
            session.submit("idle", "idle")
            (idle,) = session.finished()
            session.submit("busy", "busy")
            busy = int(
                wait_for(lambda: (tmp_path / "busy").exists() and (tmp_path / "busy").read_text())
            )
            assert not is_gone(idle.result)
        assert is_gone(idle.result)
        assert is_gone(busy)

    def test_may_save_its_state_when_it_is_asked_to_stop(self, tmp_path, how):
        script = (
            "trap 'sleep 0.3; echo saved > saved; exit' TERM; echo > ready; "
            "while :; do sleep 0.05; done"
        )

        def work(_):
            subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True, **how)

        with Local(workers=1).session(work) as session:
            session.submit("a", None)
            wait_for(lambda: (tmp_path / "ready").exists())
        assert (tmp_path / "saved").read_text() == "saved\n"


def test_a_keeper_that_is_killed_takes_the_worker_and_its_group_along(tmp_path):
    def dies(_):
        with_a_child(tmp_path, "child")
        (tmp_path / "worker").write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    ended = outcomes_of(Local(workers=1, retries=0), dies, {"a": None})
    assert ended["a"].failure.kind == "oom"
    for name in ("child", "worker"):
        wait_for(lambda name=name: is_gone(int((tmp_path / name).read_text())))


class TestMemory:
    def test_a_limit_holds_for_a_worker_and_costs_one_job_one_attempt(self, tmp_path):
        def allocate(megabytes):
            with (tmp_path / f"{megabytes}").open("a") as file:
                file.write("x")
            return len(bytearray(megabytes << 20))

        ended = outcomes_of(
            Local(workers=1, memory_limit=200 << 20),
            allocate,
            {"small": 50, "big": 500, "again": 51},
        )
        assert (ended["small"].result, ended["again"].result) == (50 << 20, 51 << 20)
        assert (ended["big"].failure.kind, ended["big"].attempts) == ("oom", 1)
        assert "job 'big' failed with MemoryError" in str(ended["big"].failure.error)
        assert (tmp_path / "500").read_text() == "x"

    def test_a_limit_leaves_room_for_torch_and_its_error_is_known(self):
        def allocate(megabytes):
            import torch

            return torch.ones(megabytes << 18).numel() >> 18

        ended = outcomes_of(
            Local(workers=1, memory_limit=400 << 20), allocate, {"small": 10, "big": 1000}
        )
        assert ended["small"].result == 10
        assert (ended["big"].failure.kind, ended["big"].attempts) == ("oom", 1)

    @pytest.mark.parametrize("engine", [TWO, HERE], ids=["workers", "here"])
    def test_errors_that_mean_it(self, engine):
        class OutOfMemoryError(RuntimeError):
            """As torch's is, which needs a GPU to be raised."""

        def fail(name):
            error = {
                "python": MemoryError(),
                "system": OSError(errno.ENOMEM, "Cannot allocate memory"),
                "cuda": OutOfMemoryError("CUDA out of memory."),
                "torch": RuntimeError(
                    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
                ),
                "other": RuntimeError("no"),
                "disk": OSError(errno.ENOSPC, "No space left on device"),
            }
            if name in error:
                raise error[name]
            try:
                raise MemoryError
            except MemoryError as reason:
                raise (OptionError if name == "of ours" else ValueError)(
                    "the batch is too large"
                ) from reason

        names = ["python", "system", "cuda", "torch", "cause", "of ours", "other", "disk"]
        ended = outcomes_of(engine, fail, {name: name for name in names})
        kinds = {name: ended[name].failure.kind for name in names}
        assert kinds == dict.fromkeys(names, "oom") | {"other": "error", "disk": "error"}
        assert isinstance(ended["of ours"].failure.error, OptionError)

    def test_a_worker_that_the_system_kills_each_time_is_taken_for_it(self, tmp_path):
        def dies(name):
            again = (tmp_path / name).exists()
            (tmp_path / name).touch()
            os.kill(os.getpid(), signal.SIGSEGV if name == "mixed" and again else signal.SIGKILL)

        ended = outcomes_of(
            Local(workers=2, retries=1), dies, {"killed": "killed", "mixed": "mixed"}
        )
        assert {job: outcome.failure.kind for job, outcome in ended.items()} == {
            "killed": "oom",
            "mixed": "died",
        }
        assert {outcome.attempts for outcome in ended.values()} == {2}


class TestASession:
    @pytest.mark.parametrize("engine", [TWO, HERE], ids=["workers", "here"])
    def test_goes_on_after_failures_and_takes_jobs_at_any_time(self, engine):
        def invert(n):
            return 1 / n

        with engine.session(invert) as session:
            for round_ in range(3):
                for n in range(3):
                    session.submit(f"{round_}/{n}", n)
                ended = all_outcomes(session)
                assert {job: outcome.result for job, outcome in ended.items()} == {
                    f"{round_}/0": None,
                    f"{round_}/1": 1.0,
                    f"{round_}/2": 0.5,
                }
                failure = ended[f"{round_}/0"].failure
                assert failure.kind == "error"
                assert "ZeroDivisionError" in str(failure.error)

    def test_waits_no_longer_than_it_is_told(self):
        with TWO.session(time.sleep) as session:
            assert session.capacity == 2
            assert session.finished() == []
            session.submit("slow", 60)
            began = time.monotonic()
            assert session.finished(timeout=0.2) == []
            assert session.finished(timeout=0) == []
            assert 0.2 <= time.monotonic() - began < 20
            session.submit("quick", 0)
            assert [outcome.job for outcome in session.finished(timeout=30)] == ["quick"]

    def test_says_how_often_a_job_was_tried(self, tmp_path):
        def dies_once(_):
            if not (tmp_path / "marker").exists():
                (tmp_path / "marker").touch()
                os._exit(1)
            return "done"

        ended = outcomes_of(TWO, dies_once, {"a": None})
        assert ended["a"] == Outcome("a", "done", attempts=2)

    @pytest.mark.parametrize("setting", [{"time_limit": 5}, {"memory_limit": 1 << 30}])
    def test_in_this_process_refuses_limits_that_it_cannot_keep(self, setting):
        with pytest.raises(OptionError, match=r"_limit=\d+ needs a worker process, but workers=0"):
            Local(workers=0, **setting)

    @pytest.mark.parametrize("engine", ["local", "ray"])
    @pytest.mark.parametrize(
        "setting",
        [{"time_limit": 0}, {"time_limit": float("nan")}, {"memory_limit": -1}, {"retries": -1}],
    )
    def test_settings_that_cannot_be_are_refused(self, engine, setting):
        with pytest.raises(OptionError, match=f"{next(iter(setting))}=.* Choose"):
            engine_named(engine, **setting)

    def test_engines_by_name(self):
        assert engine_named("local", workers=2) == TWO
        assert engine_named("ray", cpus=2) == Ray(cpus=2)
        with pytest.raises(
            UnknownNameError, match=r"unknown engine 'locale'\. Did you mean 'local'"
        ):
            engine_named("locale")
        with pytest.raises(
            UnknownNameError, match=r"setting of the engine 'ray' 'gpu'\. Did you mean 'gpus'"
        ):
            engine_named("ray", gpu=1)


class OwnError(MupscaleError):
    exit_status = 9


@pytest.mark.parametrize("engine", [TWO, HERE], ids=["workers", "here"])
class TestErrors:
    @pytest.mark.parametrize(
        ("kind", "arguments"),
        [
            (OptionError, ("lr=-1 is negative.",)),
            (UnknownNameError, ("optimizer", "adanw", ["adamw"])),
            (MissingExtraError, ("matplotlib", "report")),
            (StorageError, ("could not write x: No space left on device.",)),
            (InterruptedRunError, (15, 7, "runs/a")),
            (OwnError, ("mine",)),
        ],
    )
    def test_of_ours_arrive_as_they_were(self, engine, kind, arguments):
        def fail(_):
            raise kind(*arguments)

        with pytest.raises(MupscaleError) as caught:
            run_jobs(fail, {"a": None}, engine=engine)
        error = kind(*arguments)
        assert type(caught.value) is kind
        assert (str(caught.value), caught.value.exit_status) == (str(error), error.exit_status)
        assert any("job 'a'" in note for note in caught.value.__notes__)

    def test_of_others_name_the_job_and_the_place(self, engine):
        def fail(n):
            return [1 / n]

        with pytest.raises(JobError) as caught:
            run_jobs(fail, {"good": 1, "bad": 0}, engine=engine)
        message = str(caught.value)
        assert message.startswith("job 'bad' failed with ZeroDivisionError: division by zero\n")
        assert "test_local.py" in message
        assert "return [1 / n]" in message
        assert message.count("File") == 1  # no frame of the engine's
        assert "Traceback (most recent call last)" in caught.value.__notes__[0]

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), {"loss": [1.0, float("-inf")]}])
    def test_a_result_that_is_not_finite_is_refused_by_name(self, engine, value, tmp_path):
        with pytest.raises(NonFiniteError, match=r"job 'a': its result contains (NaN|-?Infinity)"):
            run_jobs(lambda _: value, {"a": None}, engine=engine, ledger=tmp_path / "jobs.jsonl")
        assert (tmp_path / "jobs.jsonl").read_text().count("\n") == 1

    def test_a_result_that_is_not_json(self, engine):
        with pytest.raises(
            JobError,
            match=r"job 'a' failed with TypeError: .*set is not JSON serializable.* Return",
        ):
            run_jobs(lambda _: {1, 2}, {"a": None}, engine=engine)

    def test_a_job_that_exits(self, engine):
        with pytest.raises(JobError, match="job 'a' failed with SystemExit: 3"):
            run_jobs(lambda _: sys.exit(3), {"a": None}, engine=engine)


class TestTheFirstError:
    def test_ends_the_others_and_keeps_what_is_finished(self, tmp_path):
        def work(name):
            (tmp_path / f"{name}.began").touch()
            if name == "fails":
                time.sleep(0.3)
                raise ValueError("no")
            time.sleep(0 if name == "quick" else 60)
            return name

        names = ["quick", "fails", "slow", "never"]
        ledger, began = tmp_path / "jobs.jsonl", time.monotonic()
        with pytest.raises(JobError, match="'fails'"):
            run_jobs(work, {n: n for n in names}, engine=TWO, ledger=ledger)
        assert time.monotonic() - began < 30
        assert not (tmp_path / "never.began").exists()
        assert ledger.read_text().splitlines()[1:] == ['{"job": "quick", "result": "quick"}']

    def test_lets_the_others_save_their_state(self, tmp_path):
        def work(name):
            def save(*_):
                (tmp_path / "saved").touch()
                sys.exit()

            if name == "saves":
                signal.signal(signal.SIGTERM, save)
                (tmp_path / "ready").touch()
                time.sleep(60)
            while not (tmp_path / "ready").exists():
                time.sleep(0.01)
            raise ValueError("no")

        with pytest.raises(JobError):
            run_jobs(work, {n: n for n in ("saves", "fails")}, engine=TWO)
        assert (tmp_path / "saved").exists()

    def test_is_also_that_of_the_report(self):
        def refuse(done, total):
            raise RuntimeError("the screen is broken")

        with pytest.raises(RuntimeError, match="screen"):
            run_jobs(time.sleep, {"a": 0, "b": 60}, engine=TWO, report=refuse)

    def test_a_worker_that_will_not_stop_is_killed(self, monkeypatch, tmp_path):
        monkeypatch.setattr("mupscale.engines.process.GRACE_SECONDS", 0.3)

        def stubborn(name):
            if name == "stubborn":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                (tmp_path / "ready").touch()
                time.sleep(60)
            while not (tmp_path / "ready").exists():
                time.sleep(0.01)
            raise ValueError("no")

        with pytest.raises(JobError):
            run_jobs(stubborn, {n: n for n in ("stubborn", "fails")}, engine=TWO)


class TestWhatCannotBeSent:
    def test_a_function_is_named_with_the_way_out(self):
        lock = threading.Lock()

        def holds(n):
            return [n, lock.locked()]

        with pytest.raises(
            OptionError, match=r"holds' cannot be sent to a worker: .*lock.*workers=0"
        ):
            run_jobs(holds, {"a": 1}, engine=TWO)
        assert run_jobs(holds, {"a": 1}, engine=HERE) == {"a": [1, False]}

    def test_a_payload_too_and_no_result_is_lost_by_it(self, tmp_path):
        ledger, jobs = tmp_path / "jobs.jsonl", {"a": 1, "b": threading.Lock()}
        with pytest.raises(OptionError, match=r"payload of job 'b' cannot be sent"):
            run_jobs(lambda _: 0, jobs, engine=Local(workers=1), ledger=ledger)
        assert ledger.read_text().endswith('{"job": "a", "result": 0}\n')

    def test_a_module_that_the_worker_does_not_find_is_the_answer(self):
        class Elsewhere:
            def __reduce__(self):
                return __import__, ("no_such_module",)

        with pytest.raises(
            JobError, match=r"job 'a' failed with ModuleNotFoundError.*no_such_module"
        ):
            run_jobs(lambda n: n, {"a": Elsewhere()}, engine=TWO)


SCRIPT = """
    # No guard around the main part, and a function of the script itself.
    import os, sys, time
    from pathlib import Path
    from mupscale.engines import Local, run_jobs

    folder = Path(sys.argv[1])

    def work(n):
        with (folder / f"{n}.runs").open("a") as file:
            file.write("x")
        while n >= int(sys_argv[2]) and not (folder / "go").exists():
            time.sleep(0.02)
        return n * n

    sys_argv = sys.argv
    jobs = {str(n): n for n in range(6)}
    two = Local(workers=2)
    done = run_jobs(work, jobs, ledger=folder / "jobs.jsonl", about={"n": 6}, engine=two)
    print(done)
"""


class Driver:
    """The script above in a process of its own; jobs from `holding` on wait until they may go
    on.
    """

    def __init__(self, folder: Path, holding: int) -> None:
        self.folder = folder
        (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
        self.process = subprocess.Popen(
            [sys.executable, "script.py", str(folder), str(holding)], cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def wait_until_held(self, jobs: tuple[int, ...]) -> list[int]:
        wait_for(lambda: all((self.folder / f"{n}.runs").exists() for n in jobs))
        keepers = workers_of(self.process.pid)
        return keepers + [worker for keeper in keepers for worker in workers_of(keeper)]

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


class TestADriver:
    def test_without_a_guard_or_a_module(self, tmp_path):
        status, out, err = Driver(tmp_path, holding=99).end()
        assert (status, err) == (0, "")
        assert out.strip() == str({str(n): n * n for n in range(6)})

    def test_that_is_killed_takes_its_workers_along_and_is_taken_up_again(self, tmp_path):
        driver = Driver(tmp_path, holding=3)
        workers = driver.wait_until_held((3, 4))
        assert len(workers) == 4  # with their keepers
        driver.process.kill()
        driver.end()
        wait_for(lambda: all(map(is_gone, workers)), seconds=4)
        (tmp_path / "go").touch()
        status, out, _ = Driver(tmp_path, holding=3).end()
        assert (status, out.strip()) == (0, str({str(n): n * n for n in range(6)}))
        rows = [json.loads(line) for line in (tmp_path / "jobs.jsonl").read_text().splitlines()]
        assert rows[0] == {"about": {"n": 6}}
        assert sorted(row["job"] for row in rows[1:]) == [str(n) for n in range(6)]
        runs = [len((tmp_path / f"{n}.runs").read_text()) for n in range(6)]
        assert runs == [1, 1, 1, 2, 2, 1]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("to", ["the driver", "all of its group"])
    def test_that_is_asked_to_stop_leaves_nobody_and_says_how_to_go_on(self, tmp_path, number, to):
        driver = Driver(tmp_path, holding=3)
        workers = driver.wait_until_held((3, 4))
        (os.kill if to == "the driver" else os.killpg)(driver.process.pid, number)
        status, _, err = driver.end()
        assert all(map(is_gone, workers))
        assert status != 0
        assert "KeyboardInterrupt" not in err.rpartition("InterruptedJobsError")[2]
        assert (
            f"stopped with 3 of 6 jobs done. Results are in {tmp_path}/jobs.jsonl. Run the same"
            in err
        )

    @pytest.mark.parametrize("linux", [True, False], ids=["by Linux", "without its help"])
    def test_that_is_killed_takes_along_a_worker_that_no_signal_reaches_and_what_it_started(
        self, tmp_path, linux
    ):
        """It holds Python's lock. Without the help of Linux, its keeper looks for the driver every
        second.
        """
        code = f"""
            import ctypes, os, subprocess, sys, time
            from pathlib import Path
            from mupscale.engines import keeper

            if not {linux}:
                keeper._control = lambda what, value: None
            keeper.fork_kept(os.getppid())
            child = subprocess.Popen(["sleep", "60"], start_new_session={linux})
            print(os.getpid(), os.getppid(), child.pid, flush=True)
            ctypes.PyDLL(None).sleep(60)
        """
        (tmp_path / "worker.py").write_text(textwrap.dedent(code))
        worker = f"[sys.executable, {str(tmp_path / 'worker.py')!r}]"
        start = f"subprocess.Popen({worker}, start_new_session=True)"
        driver = subprocess.Popen(
            [sys.executable, "-c", f"import subprocess, sys, time; {start}; time.sleep(60)"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert driver.stdout is not None
        processes = [int(number) for number in driver.stdout.readline().split()]
        driver.kill()
        driver.communicate()
        assert len(processes) == 3
        wait_for(lambda: all(map(is_gone, processes)), seconds=4)


def test_a_signal_here_becomes_an_error_with_the_right_status():
    def ask(done, total):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(
        InterruptedJobsError, match=r"stopped with 1 of 2 jobs done\. Their results are lost"
    ) as caught:
        run_jobs(time.sleep, {"a": 0, "b": 60}, engine=TWO, report=ask)
    assert caught.value.exit_status == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_in_another_thread():
    done = []
    thread = threading.Thread(
        target=lambda: done.append(run_jobs(noisy, {"a": 1, "b": 2}, engine=TWO))
    )
    thread.start()
    thread.join()
    assert done == [{"a": noisy(1), "b": noisy(2)}]
