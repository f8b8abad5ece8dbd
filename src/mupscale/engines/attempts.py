"""How often a job was tried, and with what outcome: the rules that all engines share."""

from dataclasses import dataclass, field

from mupscale.engines.answers import outcome_of
from mupscale.engines.session import Failure, Outcome
from mupscale.errors import JobError, OptionError


@dataclass
class Attempts:
    """A job is tried again, at most `retries` times, if its worker dies; never after an answer or a
    timeout.
    """

    retries: int
    _deaths: dict[str, list[bool]] = field(default_factory=dict[str, list[bool]])

    def answered(self, job: str, text: str) -> Outcome:
        return outcome_of(job, text, attempts=len(self._deaths.pop(job, ())) + 1)

    def late(self, job: str, seconds: float) -> Outcome:
        """Not tried again, because it would take as long."""
        attempts = len(self._deaths.pop(job, ())) + 1
        error = JobError(
            f"job {job!r} exceeded its time limit of {seconds:g} seconds. Make it smaller or raise "
            "the limit."
        )
        return Outcome(job, failure=Failure("timeout", error), attempts=attempts)

    def died(self, job: str, how: str, *, of_memory: bool) -> Outcome | None:
        """None if the job is to be tried again. If lack of memory is a possible reason each time,
        it is reported as the reason.
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
