"""What engines have in common: a session accepts jobs at any time, and returns their outcomes."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mupscale.errors import MupscaleError

FailureKind = Literal["error", "oom", "timeout", "died"]


@dataclass(frozen=True)
class Failure:
    """Why a job has no result: it raised an error, ran out of memory or time, or its worker died in
    every attempt.
    """

    kind: FailureKind
    error: MupscaleError


@dataclass(frozen=True)
class Outcome:
    """The JSON result of a job, or its failure, after so many attempts."""

    job: str
    result: Any = None
    failure: Failure | None = None
    attempts: int = 1


class Session(Protocol):
    """Jobs that wait or run. Only the thread that opened the session may use it."""

    @property
    def capacity(self) -> int:
        """How many jobs can run at once; on a cluster this may change."""
        ...

    def submit(self, job: str, payload: Any) -> None:
        """Put a job at the end of the queue."""
        ...

    def finished(self, timeout: float | None = None) -> list[Outcome]:
        """Wait until a job has ended; the outcomes of all that have. [] after `timeout` seconds, or
        if no job is left.
        """
        ...


class Engine(Protocol):
    """Something that can run jobs."""

    def session(self, function: Callable[[Any], Any]) -> AbstractContextManager[Session]:
        """Jobs are function(payload). Leaving the session ends the jobs that still run."""
        ...
