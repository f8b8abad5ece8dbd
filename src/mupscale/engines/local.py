"""Jobs on worker processes of this machine."""

import os
import selectors
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from mupscale.engines.answers import called_here, result_of
from mupscale.engines.process import Worker, WorkerDiedError, dismiss, signals_held
from mupscale.errors import JobError, OptionError


@dataclass(frozen=True)
class Local:
    """`workers` processes, by default one a core; 0 runs the jobs one by one in this process.

    A worker that dies costs an attempt of the job that it had, which is tried `retries` times more.

    >>> sorted(Local(workers=2).run(lambda n: n * n, {"three": 3, "four": 4}))
    [('four', 16), ('three', 9)]
    """

    workers: int | None = None
    retries: int = 2

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("retries", self.retries)):
            if value is not None and value < 0:
                raise OptionError(f"{name}={value} is negative. Choose 0 or more.")

    def run(self, function: Callable[[Any], Any], jobs: Mapping[str, Any]) -> Generator[tuple[str, Any]]:
        """Yield each job with its result as it finishes. The first error ends the others."""
        workers = usable_cores() if self.workers is None else self.workers
        if workers == 0:
            return ((job, called_here(job, function, payload)) for job, payload in jobs.items())
        return _Pool(function, jobs, self.retries).results(min(workers, len(jobs)))


def usable_cores() -> int:
    """Those that this process may run on, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Pool:
    """Workers, the jobs that wait for them, and one selector that hears from all of them."""

    def __init__(self, function: Callable[[Any], Any], jobs: Mapping[str, Any], retries: int) -> None:
        self._function = _pickled(f"the function {getattr(function, '__qualname__', function)!r}", function)
        self._jobs, self._retries = jobs, retries
        self._waiting = deque(jobs)
        self._deaths: Counter[str] = Counter()
        self._workers: set[Worker] = set()
        self._leaving: set[Worker] = set()
        self._selector = selectors.DefaultSelector()

    def results(self, workers: int) -> Generator[tuple[str, Any]]:
        try:
            for _ in range(workers):
                self._hire()
            while self._workers:
                for event, _ in self._selector.select():
                    yield from self._advance(event)
        finally:
            self._selector.close()
            dismiss(self._workers | self._leaving)

    def _hire(self) -> None:
        with signals_held():  # a Ctrl-C in between would lose the process just started
            worker = Worker(self._function)
            self._workers.add(worker)
        self._selector.register(worker.answers, selectors.EVENT_READ, worker)
        self._next_job(worker)

    def _next_job(self, worker: Worker) -> None:
        if not self._waiting:
            self._release(worker)
            self._leaving.add(worker)
            worker.job = None
            worker.leave()
            return
        job = self._waiting.popleft()
        worker.assign(job, _pickled(f"the payload of job {job!r}", self._jobs[job]))
        self._selector.register(worker.requests, selectors.EVENT_WRITE, worker)

    def _advance(self, event: selectors.SelectorKey) -> Generator[tuple[str, Any]]:
        worker: Worker = event.data
        if worker not in self._workers:  # it died by an earlier event of the same moment
            return
        if event.fileobj is worker.requests:
            if worker.send():
                self._selector.unregister(worker.requests)
            return
        try:
            answer = worker.receive()
        except WorkerDiedError as death:
            self._replace(worker, str(death))
            return
        if answer is not None:
            job = worker.job
            assert job is not None
            yield job, result_of(job, answer)
            self._next_job(worker)  # after the result is safe: a payload that cannot be sent would lose it

    def _replace(self, worker: Worker, ending: str) -> None:
        job = worker.job
        assert job is not None
        self._release(worker)
        worker.leave()
        self._deaths[job] += 1
        deaths = self._deaths[job]
        if deaths > self._retries:
            times = "once" if deaths == 1 else f"{deaths} times"
            raise JobError(f"job {job!r}: its worker died {times}; the last one {ending}. Other results are intact.")
        self._waiting.appendleft(job)
        self._hire()

    def _release(self, worker: Worker) -> None:
        self._workers.remove(worker)
        for pipe in (worker.requests, worker.answers):
            if pipe in self._selector.get_map():
                self._selector.unregister(pipe)


def _pickled(what: str, value: Any) -> bytes:
    try:
        return cloudpickle.dumps(value)
    except Exception as error:  # whatever an object's own __reduce__ may raise
        fix = "Run it in this process, with workers=0."
        raise OptionError(f"{what} cannot be sent to a worker: {error}. {fix}") from error
