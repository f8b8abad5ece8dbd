"""On a Ray cluster, jobs end as they do on local workers, and the loss of a node loses no job.

The cluster is Ray's own simulation: two nodes, each with its own processes, on this machine.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mupscale.engines import Local, Outcome, Ray, cluster, run_jobs
from mupscale.errors import (
    InterruptedJobsError,
    JobError,
    MissingExtraError,
    OptionError,
    UnknownNameError,
)
from tests.engines.waiting import is_gone, wait_for
from tests.simulated_ray import NODE, two_nodes

ray = pytest.importorskip("ray")
pytestmark = [
    # Ray leaves a few files and processes for the collector when it shuts down.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture(scope="module")
def nodes():
    with two_nodes(cpus=2) as simulated:
        began = [
            process.process.pid
            for node in simulated.list_all_nodes()
            for process in processes_of(node)
        ]
        yield simulated
    wait_for(lambda: all(map(is_gone, began)))


def processes_of(node) -> list:
    return [process for processes in node.all_processes.values() for process in processes]


def raylet_of(node) -> int:
    return node.all_processes["raylet"][0].process.pid


@pytest.fixture(autouse=True)
def usual_signals(nodes):
    """Starting a node replaces a handler."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture
def on(nodes):
    """The engine on that cluster, by a connection that lasts, so that Ray need not start its
    workers for each test.
    """
    if not ray.is_initialized():
        with cluster._same_signals():
            ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
    return Ray


@pytest.fixture
def address(nodes):
    """Its address, without a connection."""
    ray.shutdown()
    return nodes.address


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def noisy(seed: int) -> dict:
    generator = random.Random(seed)
    return {"seed": seed, "values": [generator.gauss(0, 1) for _ in range(5)], "none": (None,)}


def outcomes_of(engine, function, jobs: dict) -> dict[str, Outcome]:
    ended = {}
    with engine.session(function) as session:
        for job, payload in jobs.items():
            session.submit(job, payload)
        while outcomes := session.finished():
            ended |= {outcome.job: outcome for outcome in outcomes}
    return ended


class TestResults:
    def test_are_those_of_local_workers(self, on, tmp_path):
        jobs = {f"job-{seed}": seed for seed in range(30)}
        ledger = tmp_path / "jobs.jsonl"
        assert run_jobs(noisy, jobs, engine=on(), ledger=ledger) == run_jobs(
            noisy, jobs, engine=Local(workers=2)
        )
        assert len(ledger.read_text().splitlines()) == 31

    def test_errors_too(self, on):
        def fail(name):
            if name == "ours":
                raise UnknownNameError("optimizer", "adanw", ["adamw"])
            if name == "memory":
                raise MemoryError
            return [1 / 0] if name == "other" else float("nan")

        names = {name: name for name in ("ours", "memory", "other", "nan")} | {
            "lock": threading.Lock()
        }
        there, here = (outcomes_of(engine, fail, names) for engine in (on(), Local(workers=2)))
        for name in names:
            assert there[name].failure.kind == here[name].failure.kind
            assert type(there[name].failure.error) is type(here[name].failure.error)
            assert str(there[name].failure.error) == str(here[name].failure.error)

    def test_from_the_folder_path_and_threads_that_a_local_worker_has(
        self, on, tmp_path, monkeypatch
    ):
        (tmp_path / "only_here.py").write_text("VALUE = 7")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.chdir(tmp_path)

        def look(_):
            import only_here

            return [only_here.VALUE, os.getcwd(), sys.path, os.environ["OMP_NUM_THREADS"]]

        (there,) = outcomes_of(on(cpus=2), look, {"a": None}).values()
        assert there.result == [7, str(tmp_path), sys.path, "2"]

    def test_of_many_jobs_of_which_ray_is_given_few_at_a_time(self, on):
        with on().session(abs) as session:
            assert session.capacity == 3
            for n in range(300):
                session.submit(str(n), -n)
            done = {}
            while len(done) < 300:
                assert len(session._running) <= 4
                done |= {outcome.job: outcome.result for outcome in session.finished()}
            assert session.finished() == []
        assert done == {str(n): n for n in range(300)}


class TestDeaths:
    def test_a_job_whose_worker_dies_is_tried_again_but_not_for_ever(self, on, tmp_path):
        def dies(name):
            with (tmp_path / name).open("a") as file:
                file.write("x")
            if name == "once" and len((tmp_path / name).read_text()) > 1:
                return "done"
            if name == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(7)

        ended = outcomes_of(
            on(retries=1), dies, {name: name for name in ("once", "killed", "exits")}
        )
        assert ended["once"] == Outcome("once", "done", attempts=2)
        assert (ended["killed"].failure.kind, ended["killed"].attempts) == ("oom", 2)
        assert "died 2 times; the last one was killed by SIGKILL" in str(
            ended["killed"].failure.error
        )
        assert ended["exits"].failure.kind == "died"
        assert "exited with status 7" in str(ended["exits"].failure.error)
        assert (tmp_path / "exits").read_text() == "xx"

    def test_so_is_one_whose_ray_worker_dies_and_nothing_of_it_is_left(self, on, tmp_path):
        def kills_above(name):
            with (tmp_path / name).open("a") as file:
                file.write(f"{os.getpid()}\n")
            if name == "always" or (tmp_path / name).read_text().count("\n") == 1:
                os.kill(parent_of(os.getppid()), signal.SIGKILL)  # above the keeper
                time.sleep(60)
            return "done"

        ended = outcomes_of(on(retries=1), kills_above, {"once": "once", "always": "always"})
        assert ended["once"] == Outcome("once", "done", attempts=2)
        assert ended["always"].failure.kind == "died"
        assert "ended with its Ray worker" in str(ended["always"].failure.error)
        (once, _), always = ((tmp_path / name).read_text().split() for name in ("once", "always"))
        assert len(always) == 2
        wait_for(lambda: all(is_gone(int(worker)) for worker in [once, *always]))


class TestANode:
    def test_that_is_lost_costs_no_job_an_attempt(self, nodes, on, tmp_path):
        def work(n):
            (tmp_path / f"{n}.{os.environ['RAY_RAYLET_PID']}.{os.getpid()}").touch()
            while not (tmp_path / "go").exists():
                time.sleep(0.02)
            return n * n

        node = nodes.add_node(num_cpus=1, **NODE)
        with on(retries=0).session(work) as session:
            assert session.capacity == 4
            for n in range(6):
                session.submit(str(n), n)
            (there,) = wait_for(lambda: list(tmp_path.glob(f"*.{raylet_of(node)}.*")))
            nodes.remove_node(node, allow_graceful=False)
            wait_for(lambda: session.finished(timeout=0.2) or session.capacity == 3)
            (tmp_path / "go").touch()
            ended = {}
            while outcomes := session.finished():
                ended |= {outcome.job: outcome for outcome in outcomes}
        assert ended == {str(n): Outcome(str(n), n * n) for n in range(6)}
        lost, _, process = there.name.split(".")
        assert len(list(tmp_path.glob(f"{lost}.*"))) == 2
        wait_for(lambda: is_gone(int(process)))

    def test_that_is_the_only_one_with_room_is_not_waited_for_for_ever(
        self, nodes, on, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(cluster, "PATIENCE_SECONDS", 1.0)

        def work(_):
            (tmp_path / "began").touch()
            time.sleep(60)

        node = nodes.add_node(num_cpus=1, num_gpus=1, **NODE)
        with on(gpus=1).session(work) as session:
            session.submit("a", None)
            wait_for((tmp_path / "began").exists)
            nodes.remove_node(node, allow_graceful=False)
            with pytest.raises(
                JobError,
                match=r"no usable node .* needs CPU 1, GPU 1, but no node .* has that",
            ):
                session.finished()

    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            ({"cpus": 100}, r"CPU 100, .*\(.*CPU 1; CPU 2\)"),
            ({"cpus": 3}, r"CPU 3, .*\(.*CPU 1; CPU 2\)"),
            ({"gpus": 1}, r"CPU 1, GPU 1, .*CPU 2, GPU 0"),
            ({"memory_limit": 1 << 50}, "memory 1125899906842624"),
        ],
    )
    def test_that_no_cluster_has_is_refused_at_once(self, on, asked, words):
        with (
            pytest.raises(OptionError, match=rf"a job needs .*{words}"),
            on(**asked).session(abs),
        ):
            pytest.fail("it was begun")


class TestLimits:
    def test_a_job_that_hangs_ends_with_what_it_started(self, on, tmp_path):
        def hangs(name):
            if name == "hangs":
                child = subprocess.Popen(["sleep", "60"], start_new_session=True)
                (tmp_path / "child").write_text(str(child.pid))
                time.sleep(60)
            return name

        ended = outcomes_of(
            on(time_limit=3), hangs, {name: name for name in ("a", "hangs", "b", "c")}
        )
        assert (ended["hangs"].failure.kind, ended["hangs"].attempts) == ("timeout", 1)
        assert [ended[name].result for name in "abc"] == ["a", "b", "c"]
        assert is_gone(int((tmp_path / "child").read_text()))

    def test_a_job_that_takes_too_much_memory(self, on):
        ended = outcomes_of(
            on(memory_limit=300 << 20), lambda n: len(bytearray(n << 20)), {"big": 900, "small": 10}
        )
        assert (ended["big"].failure.kind, ended["big"].attempts) == ("oom", 1)
        assert ended["small"].result == 10 << 20


class TestLeaving:
    def test_lets_jobs_save_their_state_and_leaves_nothing(self, on, tmp_path):
        def work(_):
            def save(*_):
                (tmp_path / "saved").touch()
                sys.exit()

            signal.signal(signal.SIGTERM, save)
            child = subprocess.Popen(["sleep", "60"], start_new_session=True)
            (tmp_path / "processes").write_text(f"{os.getpid()} {child.pid}")
            time.sleep(60)

        with on().session(work) as session:
            session.submit("a", None)
            processes = wait_for(
                lambda: (tmp_path / "processes").exists() and (tmp_path / "processes").read_text()
            )
        assert (tmp_path / "saved").exists()
        wait_for(lambda: all(is_gone(int(number)) for number in processes.split()))

    def test_by_a_signal(self, on):
        with pytest.raises(InterruptedJobsError, match="stopped with 1 of 2 jobs done"):
            run_jobs(time.sleep, {"a": 0, "b": 60}, engine=on(), report=ask_to_stop)


def ask_to_stop(done, total):
    os.kill(os.getpid(), signal.SIGTERM)


class TestAConnection:
    def test_that_there_is_already_is_kept(self, on):
        assert run_jobs(abs, {"a": -1}, engine=on()) == {"a": 1}
        assert ray.is_initialized()

    def test_by_an_address_ends_with_the_session_and_leaves_signals_alone(self, address):
        with pytest.raises(InterruptedJobsError) as caught:
            run_jobs(abs, {"a": -1}, engine=Ray(address), report=ask_to_stop)
        assert caught.value.exit_status == 143
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert not ray.is_initialized()

    def test_that_ends_leaves_nothing_that_a_job_started(self, address):
        def leave_behind(_):
            return [os.getpid(), subprocess.Popen(["sleep", "60"], start_new_session=True).pid]

        processes = run_jobs(leave_behind, {"a": None}, engine=Ray(address))["a"]
        wait_for(lambda: all(map(is_gone, processes)))

    def test_by_the_environment(self, address, monkeypatch):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with Ray().session(abs) as session:
            assert session.capacity == 3

    def test_without_an_address_is_to_a_ray_of_its_own_that_ends_with_it(
        self, address, monkeypatch
    ):
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        with Ray().session(lambda _: int(os.environ["RAY_RAYLET_PID"])) as session:
            assert session.capacity == len(os.sched_getaffinity(0))
            session.submit("a", None)
            (outcome,) = session.finished()
            assert not is_gone(outcome.result)
        assert not ray.is_initialized()
        wait_for(lambda: is_gone(outcome.result))

    @pytest.mark.parametrize(
        "nobody", ["127.0.0.1:1", "ray://127.0.0.1:1", "no.such.host.invalid:6379"]
    )
    def test_to_nobody(self, address, nobody):
        with pytest.raises(OptionError, match=rf"could not reach Ray at {nobody}: .*ray start"):
            run_jobs(abs, {"a": 1}, engine=Ray(nobody))

    def test_without_ray(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'mupscale\[ray\]'"):
            run_jobs(abs, {"a": 1}, engine=Ray())


@pytest.mark.parametrize(
    "setting", [{"cpus": -1}, {"cpus": 1.5}, {"gpus": float("nan")}, {"cpus": 0}]
)
def test_a_request_that_cannot_be_made(setting):
    with pytest.raises(OptionError, match=r"cpus=|gpus="):
        Ray(**setting)
