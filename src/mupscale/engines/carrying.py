"""`carry_out`: jobs on an engine, with a ledger that makes them resumable."""

import signal
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from mupscale.engines.ledger import Ledger
from mupscale.engines.local import Local
from mupscale.errors import InterruptedJobsError


class Engine(Protocol):
    """Something that can run jobs."""

    def run(self, function: Callable[[Any], Any], jobs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield (job, result) as they finish, in any order. Closing the iterator ends what is running."""
        ...


def _silent(*_: object) -> None:
    pass


def carry_out(
    function: Callable[[Any], Any],
    jobs: Mapping[str, Any],
    *,
    ledger: Path | None = None,
    about: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    report: Callable[[int, int], None] = _silent,
    remark: Callable[[str], None] = _silent,
) -> dict[str, Any]:
    """{job: function(payload)} in the order of `jobs`; results are JSON values.

    With a `ledger`, every result is on disk before `report(done, total)` hears of it, and a job that is there is not
    run again; the first report then tells how many those are. `about` says what is being run: a ledger of something
    else is refused. Ctrl-C and SIGTERM end the workers and raise InterruptedJobsError.

    >>> carry_out(abs, {"a": -1, "b": 2}, engine=Local(workers=0))
    {'a': 1, 'b': 2}
    """
    results: dict[str, Any] = {}
    try:
        with _terminable(), _opened(ledger, about or {}) as book:
            results |= {job: result for job, result in book.results.items() if job in jobs} if book else {}
            if book and book.torn:
                remark(f"{ledger}: the last line was torn and is dropped; its job is run again.")
            if results:
                report(len(results), len(jobs))
            missing = {job: payload for job, payload in jobs.items() if job not in results}
            with _finishing(engine or Local(), function, missing) as finished:
                for job, result in finished:
                    if book:
                        book.append(job, result)
                    results[job] = result
                    report(len(results), len(jobs))
    except KeyboardInterrupt as stop:
        number = signal.SIGTERM if isinstance(stop, _TerminatedError) else signal.SIGINT
        raise InterruptedJobsError(number, len(results), len(jobs), str(ledger) if ledger else None) from stop
    return {job: results[job] for job in jobs}


def _opened(path: Path | None, about: Mapping[str, Any]) -> AbstractContextManager[Ledger | None]:
    return nullcontext() if path is None else Ledger(path, about)


@contextmanager
def _finishing(
    engine: Engine, function: Callable[[Any], Any], jobs: Mapping[str, Any]
) -> Generator[Iterator[tuple[str, Any]]]:
    """The jobs as they finish. What still runs when this is left ends at once, not when an iterator is collected."""
    finished = engine.run(function, jobs) if jobs else iter(())
    try:
        yield finished
    finally:
        close: Callable[[], None] | None = getattr(finished, "close", None)
        if close is not None:
            close()


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, raised where Ctrl-C would be."""


@contextmanager
def _terminable() -> Generator[None]:
    """SIGTERM unwinds as Ctrl-C does, unless somebody else catches it or this is not the main thread."""

    def stop(number: int, frame: object) -> None:
        raise _TerminatedError

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
