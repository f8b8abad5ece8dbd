"""How often a job was tried, and what becomes of it: the rules that all engines share."""

from dataclasses import dataclass, field

from mupscale.engines.answers import outcome_of
from mupscale.engines.session import Failure, Outcome
from mupscale.errors import JobError, OptionError


@dataclass
class Attempts:
    """Workers may die `retries` times more than once under a job; what ends by itself or by the
    clock is settled.
    """

    retries: int
    _deaths: dict[str, list[bool]] = field(default_factory=dict[str, list[bool]])

    def answered(self, job: str, text: str) -> Outcome:
        return outcome_of(job, text, attempts=len(self._deaths.pop(job, ())) + 1)

    def late(self, job: str, seconds: float) -> Outcome:
        """Not tried again: it would take as long."""
        attempts = len(self._deaths.pop(job, ())) + 1
        message = f"job {job!r} was ended after {seconds:g} seconds. Give it less to do or a longer time limit."
        return Outcome(job, failure=Failure("timeout", JobError(message)), attempts=attempts)

    def died(self, job: str, how: str, *, of_memory: bool) -> Outcome | None:
        """None: it is to be tried again. If memory may have been the reason each time, it is taken
        for it.
        """
        deaths = self._deaths.setdefault(job, [])
        deaths.append(of_memory)
        if len(deaths) <= self.retries:
            return None
        del self._deaths[job]
        times = "once" if len(deaths) == 1 else f"{len(deaths)} times"
        error = JobError(
            f"job {job!r}: its worker died {times}; the last one {how}. Other results are intact."
        )
        return Outcome(
            job, failure=Failure("oom" if all(deaths) else "died", error), attempts=len(deaths)
        )


def check_limits(retries: int, time_limit: float | None, memory_limit: int | None) -> None:
    """What every engine asks of its settings."""
    if retries < 0:
        raise OptionError(f"retries={retries} is negative. Choose 0 or more.")
    for name, value, unit in (
        ("time_limit", time_limit, "seconds"),
        ("memory_limit", memory_limit, "bytes"),
    ):
        if value is not None and not 0 < value < float("inf"):
            raise OptionError(
                f"{name}={value} is no limit. Choose a positive number of {unit}, or None for none."
            )
