"""What engines have in common: a session takes jobs at any time, and tells of each when it has
ended.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mupscale.errors import MupscaleError

FailureKind = Literal["error", "oom", "timeout", "died"]


@dataclass(frozen=True)
class Failure:
    """Why a job has no result: it raised, ran out of memory or of time, or its worker died each
    time.
    """

    kind: FailureKind
    error: MupscaleError


@dataclass(frozen=True)
class Outcome:
    """A job that has ended, after `attempts`: a JSON value, or a failure."""

    job: str
    result: Any = None
    failure: Failure | None = None
    attempts: int = 1


class Session(Protocol):
    """Jobs under way. It belongs to the thread that opened it."""

    @property
    def capacity(self) -> int:
        """How many jobs can run side by side; on a cluster this may change."""
        ...

    def submit(self, job: str, payload: Any) -> None:
        """Put a job at the end of the queue."""
        ...

    def finished(self, timeout: float | None = None) -> list[Outcome]:
        """Wait until a job has ended, and tell of all that have; [] after `timeout` seconds, or if
        none is left.
        """
        ...


class Engine(Protocol):
    """Something that can carry out jobs."""

    def session(self, function: Callable[[Any], Any]) -> AbstractContextManager[Session]:
        """Jobs are function(payload). What still runs when the session is left is ended."""
        ...
