"""How often a job was tried, and with what outcome: the rules that all engines share."""

import signal
from dataclasses import dataclass, field
from typing import Literal

from mupscale.engines.answers import outcome_of
from mupscale.engines.process import ending
from mupscale.engines.session import Failure, Outcome
from mupscale.errors import JobError, OptionError

End = tuple[Literal["answer"], str] | tuple[Literal["death"], int] | tuple[Literal["late"], float]
"""How an attempt ended: with an answer, with the exit status of its worker, or at its time limit in
seconds.
"""


@dataclass
class Attempts:
    """A job is tried again, at most `retries` times, if its worker dies; never after an answer or a
    timeout.
    """

    retries: int
    _deaths: dict[str, list[bool]] = field(default_factory=dict[str, list[bool]])

    def settled(self, job: str, end: End) -> Outcome | None:
        """The outcome after one more attempt; None if the job is to be tried again."""
        if end[0] == "death":
            return self.died(job, ending(end[1]), of_memory=end[1] == -signal.SIGKILL)
        attempts = len(self._deaths.pop(job, ())) + 1
        if end[0] == "answer":
            return outcome_of(job, end[1], attempts)
        error = JobError(
            f"job {job!r} exceeded its time limit of {end[1]:g} seconds. Make it smaller or raise "
            "the limit."
        )
        return Outcome(job, failure=Failure("timeout", error), attempts=attempts)

    def died(self, job: str, how: str, *, of_memory: bool) -> Outcome | None:
        """As `settled`. If lack of memory is a possible reason each time, it is reported as the
        reason.
        """
        deaths = self._deaths.setdefault(job, [])
        deaths.append(of_memory)
        if len(deaths) <= self.retries:
            return None
        del self._deaths[job]
        times = "once" if len(deaths) == 1 else f"{len(deaths)} times"
        error = JobError(
            f"job {job!r}: its worker died {times}; the last one {how}. The results of other jobs "
            "are intact."
        )
        return Outcome(
            job, failure=Failure("oom" if all(deaths) else "died", error), attempts=len(deaths)
        )


def check_limits(retries: int, time_limit: float | None, memory_limit: float | None) -> None:
    """Check the settings that all engines have."""
    if retries < 0:
        raise OptionError(f"retries={retries} is negative. Choose 0 or more.")
    for name, value, unit in (
        ("time_limit", time_limit, "seconds"),
        ("memory_limit", memory_limit, "bytes"),
    ):
        if value is not None and not 0 < value < float("inf"):
            raise OptionError(
                f"{name}={value} must be positive and finite. Choose a number of {unit}, or None "
                "for no limit."
            )
