"""Jobs on worker processes of this machine."""

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle

from mupscale.engines.answers import called_here
from mupscale.engines.attempts import Attempts, check_limits
from mupscale.engines.process import Terms, Worker, WorkerDiedError, dismiss, ending, signals_held
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
        pool = _Pool(function, self)
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


class _Pool:
    """Workers, the jobs that wait for them, and one selector for all their pipes."""

    def __init__(self, function: Callable[[Any], Any], engine: Local) -> None:
        self._function = pickled(
            f"the function {getattr(function, '__qualname__', function)!r}", function
        )
        self._terms = Terms.from_here(memory_limit=engine.memory_limit)
        self._attempts, self._time_limit = Attempts(engine.retries), engine.time_limit
        self.capacity = usable_cores() if engine.workers is None else engine.workers
        self._waiting: deque[tuple[str, Any]] = deque()
        self._workers: set[Worker] = set()
        self._idle: set[Worker] = set()
        self._assigned: dict[Worker, tuple[str, Any]] = {}
        # In order, because all jobs have the same limit.
        self._deadlines: deque[tuple[float, Worker, tuple[str, Any]]] = deque()
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
        if self._deadlines:
            end = min(end, self._deadlines[0][0])
        return None if end == float("inf") else max(0.0, end - time.monotonic())

    def _staff(self) -> None:
        """Give waiting jobs to idle workers, and to new ones up to the capacity."""
        while self._waiting and (worker := self._free_worker()) is not None:
            self._begin(worker, self._waiting.popleft())

    def _free_worker(self) -> Worker | None:
        while self._idle:
            worker = self._idle.pop()
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

    def _begin(self, worker: Worker, assigned: tuple[str, Any]) -> None:
        job, payload = assigned
        try:
            worker.assign(pickled(f"the payload of job {job!r}", payload))
        except OptionError as error:
            self._ended.append(Outcome(job, failure=Failure("error", error)))
            self._idle.add(worker)
            return
        self._assigned[worker] = assigned
        if self._time_limit is not None:
            self._deadlines.append((time.monotonic() + self._time_limit, worker, assigned))
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
            self._bury(worker, death.status)
            return
        if answer is not None and worker not in self._late:
            self._conclude(worker, answer)

    def _conclude(self, worker: Worker, answer: str) -> None:
        job, _ = self._assigned.pop(worker)
        outcome = self._attempts.answered(job, answer)
        self._ended.append(outcome)
        self._idle.add(worker)
        if outcome.failure is None:  # after a failure, the caller may end the session
            self._staff()

    def _bury(self, worker: Worker, status: int) -> None:
        self._release(worker)
        assigned = self._assigned.pop(worker, None)
        if assigned is None:
            return
        if worker in self._late:
            assert self._time_limit is not None
            self._late.remove(worker)
            outcome = self._attempts.late(assigned[0], self._time_limit)
        else:
            outcome = self._attempts.died(
                assigned[0], ending(status), of_memory=status == -signal.SIGKILL
            )
        if outcome is not None:
            self._ended.append(outcome)
        else:
            self._waiting.appendleft(assigned)
            self._staff()

    def _end_the_late(self) -> None:
        now = time.monotonic()
        while self._deadlines:
            deadline, worker, assigned = self._deadlines[0]
            is_running = self._assigned.get(worker) is assigned
            if is_running and deadline > now:
                return
            self._deadlines.popleft()
            if is_running:
                self._late.add(worker)
                worker.end_now()

    def _release(self, worker: Worker) -> None:
        """Forget a worker that has ended."""
        self._workers.remove(worker)
        self._idle.discard(worker)
        for pipe in (worker.requests, worker.answers):
            if pipe in self._selector.get_map():
                self._selector.unregister(pipe)
        worker.leave()
        worker.kill()


def pickled(what: str, value: Any) -> bytes:
    try:
        return cloudpickle.dumps(value)
    except Exception as error:  # whatever an object's own __reduce__ may raise
        raise OptionError(
            f"{what} cannot be sent to a worker: {error}. Run it in this process, with workers=0."
        ) from error
