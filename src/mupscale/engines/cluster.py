"""Jobs on a Ray cluster. Only this file uses Ray, and imports it when a session is opened.

Ray places the jobs and reports lost nodes. On a node, a job runs in the same worker process as with
the local engine, below a Ray worker that waits for it, so limits, crashes and the processes that a
job starts are handled in the same way. Jobs and their JSON results travel by Ray's own transport,
which pickles: whoever can write to a Ray cluster can run code on it.
"""

import functools
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mupscale.engines.attempts import Attempts, End, check_limits
from mupscale.engines.local import Pickled, Pool, pickled, pickled_function, usable_cores
from mupscale.engines.process import GRACE_SECONDS, Terms
from mupscale.engines.session import Failure, Outcome, Session
from mupscale.errors import JobError, MissingExtraError, OptionError

NODE_LOSSES = 10
"""How often a job may lose its node, which is not its fault, before it fails."""

PATIENCE_SECONDS = 60.0
"""How long to wait for a new node after the last one that can run the jobs was lost."""

_REFRESH_SECONDS = 1.0
_OBJECT_STORE_BYTES = 100 << 20  # of a local Ray: payloads and answers are small
_LIMIT_CHECK_SECONDS = 0.2
_KNOCK_SECONDS = 10.0

# Otherwise a Ray worker that ends would kill the keeper before it can end what the job started.
_LEAVE_KEEPERS = {"RAY_kill_child_processes_on_worker_exit": "false"}


@dataclass(frozen=True)
class Ray:
    """Each job requests `cpus`, `gpus` and `memory_limit` bytes, and cannot allocate more memory.

    `address` is that of a running cluster (default: RAY_ADDRESS; otherwise the session starts a
    local Ray and ends it). A job whose worker dies is tried again, at most `retries` times; the
    loss of its node does not count. A job that takes longer than `time_limit` seconds is killed
    with all that it started.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 2
    time_limit: float | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        check_limits(self.retries, self.time_limit, self.memory_limit)
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if not 0 <= value < float("inf"):
                raise OptionError(f"{name}={value} must be ≥ 0 and finite.")
            if value > 1 and value != int(value):
                raise OptionError(f"{name}={value} must be a whole number, or less than 1.")
        if not self.cpus and not self.gpus:
            raise OptionError("cpus=0 and gpus=0: one of them must be above 0.")

    @property
    def request(self) -> dict[str, float]:
        """By Ray's names."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory_limit or 0}
        return {name: amount for name, amount in amounts.items() if amount}

    @contextmanager
    def session(self, function: Callable[[Any], Any]) -> Generator[Session]:
        ray = _imported()
        with _connected(ray, self.address or os.environ.get("RAY_ADDRESS")):
            tasks = _Tasks(ray, function, self)
            try:
                yield tasks
            finally:
                tasks.close()


def _imported() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    return ray


@contextmanager
def _connected(ray: Any, address: str | None) -> Generator[None]:
    """Connect to Ray. A connection that this process already has is used, and stays open."""
    if ray.is_initialized():
        yield
        return
    own = {
        "num_cpus": usable_cores(),
        "object_store_memory": _OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    with _same_signals():
        try:
            _knock(address)
            with _environment(RAY_USAGE_STATS_ENABLED="0"):  # nothing is sent anywhere
                ray.init(
                    address or "local",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **({} if address else own),
                )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise OptionError(
                f"could not reach Ray at {address or 'this machine'}: {error}. Start it with "
                "`ray start --head`, or omit the address to start a local Ray."
            ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Fail early: Ray itself tries for minutes. An address without a port (auto, local) is not
    tried.
    """
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


@contextmanager
def _same_signals() -> Generator[None]:
    """Keep our handler of SIGTERM, which Ray replaces."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _environment(**defaults: str) -> Generator[None]:
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


class _Tasks:
    """Jobs that wait here, and those submitted to Ray: only a few more than can run at once."""

    def __init__(self, ray: Any, function: Callable[[Any], Any], engine: Ray) -> None:
        self._ray, self._engine = ray, engine
        self._refreshed, self._capacity, self._hopeless_since = float("-inf"), 0, float("inf")
        if not self.capacity:
            raise OptionError(self._refusal())
        self._terms = Terms(
            folder=_folder(), threads=max(1, int(engine.cpus)), memory_limit=engine.memory_limit
        )
        self._function = ray.put(pickled_function(function))
        self._task = ray.remote(_host).options(
            num_cpus=engine.cpus,
            num_gpus=engine.gpus,
            memory=engine.memory_limit,
            max_retries=0,  # counted here: Ray retries without limit when memory runs out
            runtime_env={"env_vars": self._terms.environment | _LEAVE_KEEPERS},
        )
        self._attempts, self._losses = Attempts(engine.retries), Counter[str]()
        self._waiting: deque[tuple[str, Any]] = deque()
        self._running: dict[str, tuple[Any, Any]] = {}
        self._done: queue.SimpleQueue[tuple[str, Future[Any]]] = queue.SimpleQueue()
        self._ended: list[Outcome] = []

    @property
    def capacity(self) -> int:
        """Of the nodes that are alive; updated every second."""
        if time.monotonic() - self._refreshed > _REFRESH_SECONDS:
            self._refreshed = time.monotonic()
            self._capacity = sum(self._places(node) for node in self._nodes())
        return self._capacity

    def submit(self, job: str, payload: Any) -> None:
        self._waiting.append((job, payload))
        self._fill()

    def finished(self, timeout: float | None = None) -> list[Outcome]:
        end = float("inf") if timeout is None else time.monotonic() + timeout
        self._fill()
        while self._running and not self._ended:
            if not self._settle_next(min(_REFRESH_SECONDS, max(0.0, end - time.monotonic()))):
                self._check_hope()
                if time.monotonic() >= end:
                    break
        while self._settle_next(0.0):
            pass
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Ask running jobs to stop, as the local engine does, and then kill them."""
        running = [ref for ref, _ in self._running.values()]
        if not running:
            return
        try:
            for ref in running:
                self._ray.cancel(ref, force=False)
            _, running = self._ray.wait(
                running, num_returns=len(running), timeout=GRACE_SECONDS + 2, fetch_local=False
            )
        finally:
            for ref in running:
                self._ray.cancel(ref, force=True)

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _places(self, node: dict[str, float]) -> int:
        return min(
            int(node.get(name, 0) / amount + 1e-9) for name, amount in self._engine.request.items()
        )

    def _refusal(self) -> str:
        request = self._engine.request
        nodes = [_listed({name: node.get(name, 0) for name in request}) for node in self._nodes()]
        return (
            f"a job needs {_listed(request)}, but no node of the cluster has that "
            f"({'; '.join(sorted(nodes)) or 'there are none'}). Request fewer resources."
        )

    def _fill(self) -> None:
        """Submit a few more than can run, so that no node waits for this process."""
        most = self.capacity + 1 + self.capacity // 10
        while self._waiting and len(self._running) < most:
            self._start(*self._waiting.popleft())

    def _start(self, job: str, payload: Any) -> None:
        try:
            content = pickled(f"the payload of job {job!r}", payload)
        except OptionError as error:
            self._ended.append(Outcome(job, failure=Failure("error", error)))
            return
        reference = self._task.remote(self._function, content, self._terms, self._engine.time_limit)
        self._running[job] = reference, payload
        reference.future().add_done_callback(lambda future: self._done.put((job, future)))

    def _settle_next(self, seconds: float) -> bool:
        try:
            job, future = self._done.get(timeout=seconds) if seconds else self._done.get_nowait()
        except queue.Empty:
            return False
        _, payload = self._running.pop(job)
        outcome = self._outcome(job, future)
        if outcome is None:
            self._waiting.appendleft((job, payload))
            self._fill()
        else:
            self._losses.pop(job, None)
            self._ended.append(outcome)
        return True

    def _outcome(self, job: str, future: Future[Any]) -> Outcome | None:
        """None if the job is to be tried again."""
        errors = self._ray.exceptions
        try:
            end: End = future.result()
        except (errors.NodeDiedError, errors.ObjectLostError) as error:
            return self._lost(job, _summary(error))
        except errors.OutOfMemoryError as error:
            return self._attempts.died(
                job, f"was ended by Ray for its memory ({_summary(error)})", of_memory=True
            )
        except errors.WorkerCrashedError as error:
            return self._attempts.died(
                job, f"ended with its Ray worker ({_summary(error)})", of_memory=False
            )
        except (errors.LocalRayletDiedError, errors.RaySystemError) as error:
            raise JobError(
                f"lost the Ray cluster: {_summary(error)}. Start it, and run the same command "
                "again."
            ) from error
        except errors.RayError as error:
            failed = JobError(f"Ray could not run job {job!r}: {_summary(error)}")
            return Outcome(job, failure=Failure("error", failed))
        return self._attempts.settled(job, end)

    def _lost(self, job: str, reason: str) -> Outcome | None:
        self._losses[job] += 1
        self._refreshed = float("-inf")
        if self._losses[job] <= NODE_LOSSES:
            return None
        error = JobError(
            f"job {job!r}: its node was lost {self._losses[job]} times; the last time {reason}"
        )
        return Outcome(job, failure=Failure("died", error), attempts=self._losses[job])

    def _check_hope(self) -> None:
        """Raise an error if no node has been able to run the jobs for too long."""
        if self.capacity:
            self._hopeless_since = float("inf")
            return
        self._hopeless_since = min(self._hopeless_since, time.monotonic())
        if time.monotonic() - self._hopeless_since > PATIENCE_SECONDS:
            raise JobError(f"no usable node for {PATIENCE_SECONDS:g} seconds: {self._refusal()}")


def _listed(resources: dict[str, float]) -> str:
    """As text.

    >>> _listed({"CPU": 2.0, "GPU": 0.5, "memory": 1e9})
    'CPU 2, GPU 0.5, memory 1000000000'
    """
    return ", ".join(
        f"{name} {int(amount) if amount == int(amount) else amount}"
        for name, amount in resources.items()
    )


def _summary(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip().rstrip(".")


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _host(function: bytes, payload: bytes, terms: Terms, time_limit: float | None) -> End:
    """In a Ray worker: make one attempt in a worker process below it, which serves later tasks too,
    unless Ray gives them other GPUs, which it does by the environment.
    """
    made_for = function, terms, time_limit, os.environ.get("CUDA_VISIBLE_DEVICES")
    pools = _pools()
    for other in pools.keys() - {made_for}:
        pools.pop(other).close()
    if made_for not in pools:
        pools[made_for] = Pool(function, terms, capacity=1, time_limit=time_limit, settled=Outcome)
    pools[made_for].submit("", Pickled(payload))
    try:
        # In short intervals, because an interrupt by Ray does not end `select`.
        while not (ended := pools[made_for].finished(_LIMIT_CHECK_SECONDS)):
            pass
    except BaseException:  # the task is cancelled, by an interrupt
        pools.pop(made_for).close()
        raise
    return ended[0].result


@functools.cache
def _pools() -> dict[object, Pool]:
    """The pool below this Ray worker, by what it was made for."""
    return {}
