"""`run_jobs` runs jobs on an engine, with a ledger that makes them resumable."""

import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mupscale.engines.ledger import Ledger
from mupscale.engines.local import Local
from mupscale.engines.session import Engine, Outcome, Session
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
    with (
        interruptible(lambda: (len(results), len(jobs)), ledger),
        nullcontext() if ledger is None else Ledger(ledger, about or {}) as book,
    ):
        if book is not None:
            results |= {job: one for job, one in book.results.items() if job in jobs}
            if book.torn:
                remark(f"{ledger}: dropped a torn last line; its job runs again.")
        if results:
            report(len(results), len(jobs))
        if len(results) < len(jobs):
            with (engine or Local()).session(function) as session:
                for job, payload in jobs.items():
                    if job not in results:
                        session.submit(job, payload)
                for outcome in _outcomes(session):
                    if book is not None:
                        book.append(outcome.job, outcome.result)
                    results[outcome.job] = outcome.result
                    report(len(results), len(jobs))
    return {job: results[job] for job in jobs}


def _outcomes(session: Session) -> Iterator[Outcome]:
    """Each as it comes; the first error ends the rest."""
    while outcomes := session.finished():
        for outcome in sorted(outcomes, key=lambda one: one.failure is not None):
            if outcome.failure is not None:  # after the results that arrived with it
                raise outcome.failure.error
            yield outcome


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, raised in the same place as Ctrl-C."""


@contextmanager
def interruptible(progress: Callable[[], tuple[int, int]], where: Path | None) -> Generator[None]:
    """Raise Ctrl-C and SIGTERM as InterruptedJobsError, with how many jobs of how many are done and
    where they are kept. SIGTERM keeps a handler that it has, and its default in other threads.
    """

    def stop(number: int, frame: object) -> None:
        raise _TerminatedError

    is_main = threading.current_thread() is threading.main_thread()
    is_ours = is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_ours:
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as raised:
        number = signal.SIGTERM if isinstance(raised, _TerminatedError) else signal.SIGINT
        raise InterruptedJobsError(number, *progress(), str(where) if where else None) from raised
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
