"""`run_jobs`: jobs on an engine, with a ledger that makes them resumable."""

import signal
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mupscale.engines.ledger import Ledger
from mupscale.engines.local import Local
from mupscale.engines.session import Engine, Outcome
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
    ends the others.

    With a `ledger`, every result is on disk before `report(done, total)` hears of it, and a job
    that is there is not run again; the first report then tells how many those are. `about` says
    what is being run: a ledger of something else is refused. Ctrl-C and SIGTERM end the workers and
    raise InterruptedJobsError.

    >>> run_jobs(abs, {"a": -1, "b": 2}, engine=Local(workers=0))
    {'a': 1, 'b': 2}
    """
    results: dict[str, Any] = {}
    book: Ledger | None = None

    def keep(job: str, result: Any) -> None:
        if book:
            book.append(job, result)
        results[job] = result
        report(len(results), len(jobs))

    try:
        with terminable(), _opened(ledger, about or {}) as book:
            results |= (
                {job: result for job, result in book.results.items() if job in jobs} if book else {}
            )
            if book and book.torn:
                remark(f"{ledger}: the last line was torn and is dropped; its job is run again.")
            if results:
                report(len(results), len(jobs))
            missing = {job: payload for job, payload in jobs.items() if job not in results}
            if missing:
                _run(engine or Local(), function, missing, keep)
    except KeyboardInterrupt as stop:
        number = signal.SIGTERM if isinstance(stop, TerminatedError) else signal.SIGINT
        raise InterruptedJobsError(
            number, len(results), len(jobs), str(ledger) if ledger else None
        ) from stop
    return {job: results[job] for job in jobs}


def _opened(path: Path | None, about: Mapping[str, Any]) -> AbstractContextManager[Ledger | None]:
    return nullcontext() if path is None else Ledger(path, about)


def _run(
    engine: Engine,
    function: Callable[[Any], Any],
    jobs: Mapping[str, Any],
    keep: Callable[[str, Any], None],
) -> None:
    done = 0
    with engine.session(function) as session:
        for job, payload in jobs.items():
            session.submit(job, payload)
        while done < len(jobs):
            for job, result in _results(session.finished()):
                keep(job, result)
                done += 1


def _results(outcomes: list[Outcome]) -> Iterator[tuple[str, Any]]:
    """Those that there are, and then the first error."""
    assert outcomes, "jobs are missing, and the engine has none left"
    yield from ((outcome.job, outcome.result) for outcome in outcomes if outcome.failure is None)
    for outcome in outcomes:
        if outcome.failure is not None:
            raise outcome.failure.error


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, raised where Ctrl-C would be."""


@contextmanager
def terminable() -> Generator[None]:
    """SIGTERM unwinds as Ctrl-C does, unless somebody else catches it or this is not the main
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
