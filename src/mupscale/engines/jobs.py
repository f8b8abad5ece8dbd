"""`run_jobs` runs jobs on an engine, with a ledger that makes them resumable."""

import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mupscale.engines.ledger import Ledger
from mupscale.engines.local import Local
from mupscale.engines.session import Engine
from mupscale.errors import InterruptedJobsError


def _silent(*_: object) -> None:
    pass


def run_jobs(
    function: Callable[[Any], Any],
    jobs: Mapping[str, Any],
    *,
    ledger: Path | None = None,
    about: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    report: Callable[[int, int], None] = _silent,
    remark: Callable[[str], None] = _silent,
) -> dict[str, Any]:
    """{job: function(payload)} in the order of `jobs`; results are JSON values. The first error
    ends all other jobs.

    With a `ledger`, every result is on disk before `report(done, total)` is called, and jobs that
    are in the ledger are not run again; the first report gives their number. `about` describes the
    jobs: a ledger with another description raises an error. Ctrl-C and SIGTERM end the workers and
    raise InterruptedJobsError.

    >>> run_jobs(abs, {"a": -1, "b": 2}, engine=Local(workers=0))
    {'a': 1, 'b': 2}
    """
    results: dict[str, Any] = {}
    try:
        with terminable(), nullcontext() if ledger is None else Ledger(ledger, about or {}) as book:
            if book is not None:
                results |= {job: one for job, one in book.results.items() if job in jobs}
            if book is not None and book.torn:
                remark(f"{ledger}: dropped a torn last line; its job runs again.")
            if results:
                report(len(results), len(jobs))
            missing = {job: payload for job, payload in jobs.items() if job not in results}
            with closing(_results(engine or Local(), function, missing)) as arriving:
                for job, result in arriving:
                    if book is not None:
                        book.append(job, result)
                    results[job] = result
                    report(len(results), len(jobs))
    except KeyboardInterrupt as stop:
        number = signal.SIGTERM if isinstance(stop, TerminatedError) else signal.SIGINT
        raise InterruptedJobsError(
            number, len(results), len(jobs), str(ledger) if ledger else None
        ) from stop
    return {job: results[job] for job in jobs}


def _results(
    engine: Engine, function: Callable[[Any], Any], jobs: Mapping[str, Any]
) -> Generator[tuple[str, Any]]:
    """Each as it comes; the first error ends the rest."""
    if not jobs:
        return
    with engine.session(function) as session:
        for job, payload in jobs.items():
            session.submit(job, payload)
        done = 0
        while done < len(jobs):
            outcomes = session.finished()
            assert outcomes, "jobs are missing, but the engine has none left"
            for outcome in sorted(outcomes, key=lambda one: one.failure is not None):
                if outcome.failure is not None:  # after the results that arrived with it
                    raise outcome.failure.error
                yield outcome.job, outcome.result
                done += 1


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, raised in the same place as Ctrl-C."""


@contextmanager
def terminable() -> Generator[None]:
    """Make SIGTERM unwind as Ctrl-C does, unless it has another handler or this is not the main
    thread.
    """

    def stop(number: int, frame: object) -> None:
        raise TerminatedError

    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    try:
        signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
