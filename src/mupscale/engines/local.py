"""Jobs on worker processes of this machine."""

import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle

from mupscale.engines.answers import called_here
from mupscale.engines.attempts import Attempts, End, check_limits
from mupscale.engines.process import Terms, Worker, WorkerDiedError, dismiss, signals_held
from mupscale.engines.session import Failure, Outcome, Session
from mupscale.errors import OptionError


@dataclass(frozen=True)
class Local:
    """`workers` processes (default: one per core); 0 runs the jobs one by one in this process.

    A job whose worker dies is tried again, at most `retries` times. A job that takes longer than
    `time_limit` seconds is killed with all that it started. A worker, and each process that it
    starts, can allocate at most `memory_limit` bytes.

    >>> with Local(workers=2).session(lambda n: n * n) as session:
    ...     session.submit("three", 3)
    ...     session.finished()
    [Outcome(job='three', result=9, failure=None, attempts=1)]
    """

    workers: int | None = None
    retries: int = 2
    time_limit: float | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        check_limits(self.retries, self.time_limit, self.memory_limit)
        if self.workers is not None and self.workers < 0:
            raise OptionError(f"workers={self.workers} is negative. Choose 0 or more.")
        for name, limit in (("time_limit", self.time_limit), ("memory_limit", self.memory_limit)):
            if self.workers == 0 and limit is not None:
                raise OptionError(
                    f"{name}={limit} needs a worker process, but workers=0. Choose 1 worker or "
                    "more, or no limit."
                )

    @contextmanager
    def session(self, function: Callable[[Any], Any]) -> Generator[Session]:
        if self.workers == 0:
            yield _Here(function)
            return
        pool = Pool(
            pickled_function(function),
            Terms(memory_limit=self.memory_limit),
            capacity=usable_cores() if self.workers is None else self.workers,
            time_limit=self.time_limit,
            settled=Attempts(self.retries).settled,
        )
        try:
            yield pool
        finally:
            pool.close()


def usable_cores() -> int:
    """The number of cores that this process may use, if the system reports it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Here:
    """Jobs one by one in this process."""

    capacity = 1

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._waiting: deque[tuple[str, Any]] = deque()

    def submit(self, job: str, payload: Any) -> None:
        self._waiting.append((job, payload))

    def finished(self, timeout: float | None = None) -> list[Outcome]:
        """Run the next job, however long it takes."""
        if not self._waiting:
            return []
        job, payload = self._waiting.popleft()
        return [called_here(job, self._function, payload)]


class Pool:
    """Workers, the jobs that wait for them, and one selector for all their pipes.

    `settled` gives the outcome of a job after an attempt; None if it is to be tried again.
    """

    def __init__(
        self,
        function: bytes,
        terms: Terms,
        *,
        capacity: int,
        time_limit: float | None,
        settled: Callable[[str, End], Outcome | None],
    ) -> None:
        self.capacity = capacity
        self._function, self._terms = function, terms
        self._time_limit, self._settled = time_limit, settled
        self._waiting: deque[tuple[str, Any]] = deque()
        self._workers: set[Worker] = set()
        self._assigned: dict[Worker, tuple[str, Any]] = {}
        self._deadlines: dict[Worker, float] = {}
        self._late: set[Worker] = set()
        self._ended: list[Outcome] = []
        self._selector = selectors.DefaultSelector()

    def submit(self, job: str, payload: Any) -> None:
        self._waiting.append((job, payload))
        self._staff()

    def finished(self, timeout: float | None = None) -> list[Outcome]:
        end = float("inf") if timeout is None else time.monotonic() + timeout
        self._staff()
        while not self._ended and self._assigned:
            for event, _ in self._selector.select(self._patience(end)):
                self._advance(event)
            self._end_the_late()
            if time.monotonic() >= end:
                break
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        self._selector.close()
        dismiss(self._workers)

    def _patience(self, end: float) -> float | None:
        end = min([end, *self._deadlines.values()])
        return None if end == float("inf") else max(0.0, end - time.monotonic())

    def _staff(self) -> None:
        """Give waiting jobs to idle workers, and to new ones up to the capacity."""
        while self._waiting and (worker := self._free_worker()) is not None:
            self._begin(worker, *self._waiting.popleft())

    def _free_worker(self) -> Worker | None:
        for worker in self._workers - self._assigned.keys():
            if not worker.has_ended:
                return worker
            self._release(worker)  # it was killed while it was idle
        return self._hired() if len(self._workers) < self.capacity else None

    def _hired(self) -> Worker:
        with signals_held():  # a Ctrl-C in between would lose track of the new process
            worker = Worker(self._function, self._terms)
            self._workers.add(worker)
        self._selector.register(worker.answers, selectors.EVENT_READ, worker)
        return worker

    def _begin(self, worker: Worker, job: str, payload: Any) -> None:
        try:
            worker.assign(pickled(f"the payload of job {job!r}", payload))
        except OptionError as error:
            self._ended.append(Outcome(job, failure=Failure("error", error)))
            return
        self._assigned[worker] = job, payload
        if self._time_limit is not None:
            self._deadlines[worker] = time.monotonic() + self._time_limit
        if not worker.send():
            self._selector.register(worker.requests, selectors.EVENT_WRITE, worker)

    def _advance(self, event: selectors.SelectorKey) -> None:
        worker: Worker = event.data
        if worker not in self._workers:  # an earlier event of this round showed that it died
            return
        if event.fileobj is worker.requests:
            if worker.send():
                self._selector.unregister(worker.requests)
            return
        try:
            answer = worker.receive()
        except WorkerDiedError as death:
            self._release(worker)
            late = self._time_limit if worker in self._late else None
            self._late.discard(worker)
            self._settle(worker, ("death", death.status) if late is None else ("late", late))
            return
        if answer is not None and worker not in self._late:
            self._settle(worker, ("answer", answer))

    def _settle(self, worker: Worker, end: End) -> None:
        if worker not in self._assigned:
            return
        job, payload = self._assigned.pop(worker)
        self._deadlines.pop(worker, None)
        outcome = self._settled(job, end)
        if outcome is None:
            self._waiting.appendleft((job, payload))
        else:
            self._ended.append(outcome)
        if outcome is None or outcome.failure is None:  # after a failure, the session may end
            self._staff()

    def _end_the_late(self) -> None:
        now = time.monotonic()
        for worker in [one for one, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[worker]
            self._late.add(worker)
            worker.end_now()

    def _release(self, worker: Worker) -> None:
        """Forget a worker that has ended."""
        self._workers.remove(worker)
        for pipe in (worker.requests, worker.answers):
            if pipe in self._selector.get_map():
                self._selector.unregister(pipe)
        worker.leave()
        worker.kill()


class Pickled(bytes):
    """A payload that is sent as it is: a Ray worker passes it on without loading it."""


def pickled_function(function: Callable[[Any], Any]) -> bytes:
    return pickled(f"the function {getattr(function, '__qualname__', function)!r}", function)


def pickled(what: str, value: Any) -> bytes:
    if isinstance(value, Pickled):
        return value
    try:
        return cloudpickle.dumps(value)
    except Exception as error:  # whatever an object's own __reduce__ may raise
        raise OptionError(
            f"{what} cannot be sent to a worker: {error}. Run it in this process, with workers=0."
        ) from error
