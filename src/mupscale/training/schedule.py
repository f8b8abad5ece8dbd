"""The learning rate over a run: linear warmup to the peak rate, then a decay to the floor."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from mupscale.errors import DimensionError, OptionError, UnknownNameError

ScheduleName = Literal["cosine", "linear", "wsd"]

DECAY_SHARE = 0.2
"""The share of the steps in which `wsd` decays, if nothing is set. Published recipes decay over the
last 10 % (MiniCPM, arXiv 2404.06395) to 20 % (Hägele et al., arXiv 2405.18392). This is the upper
end, which leaves short runs the most steps to decay in. We have not measured it.
"""


@dataclass(frozen=True)
class ScheduleRow:
    """How the rate falls, and when."""

    fall: Callable[[float], float]
    "From 1 at the start of the decay (0) to 0 at its end (1)."
    words: str
    stable: bool = False
    "Whether the rate stays at its peak after warmup, until the last share of the steps."


SCHEDULES: Mapping[str, ScheduleRow] = {
    "cosine": ScheduleRow(lambda done: 0.5 * (1 + math.cos(math.pi * done)), "a cosine"),
    "linear": ScheduleRow(lambda done: 1 - done, "a linear decay"),
    "wsd": ScheduleRow(lambda done: 1 - done, "a linear decay", stable=True),
}
"""By name. `wsd` is warmup, stable, decay."""


@dataclass(frozen=True)
class Schedule:
    """A factor on each group's learning rate: up to 1 over `warmup` steps, then down to `floor` at
    the last step. With `wsd`, the factor stays at 1 until the last `decay_share` of the steps.

    >>> schedule = Schedule("cosine", steps=100, warmup=10, floor=0.1)
    >>> [round(schedule.at(step), 3) for step in (0, 9, 10, 55, 99)]
    [0.1, 1.0, 1.0, 0.542, 0.1]
    >>> [round(Schedule("linear", 100, 10).at(step), 3) for step in (9, 10, 55, 99)]
    [1.0, 1.0, 0.494, 0.0]
    >>> [round(Schedule("wsd", 100, 10).at(step), 3) for step in (9, 55, 79, 80, 99)]
    [1.0, 1.0, 1.0, 0.95, 0.0]
    """

    name: str
    steps: int
    warmup: int
    floor: float = 0.0
    decay_share: float | None = None

    def __post_init__(self) -> None:
        decay = self.decay_steps
        if decay is not None and self.warmup + decay > self.steps:
            raise DimensionError(
                f"a warmup of {self.warmup} steps and a decay of {decay} (decay_share = "
                f"{checked_share(self.name, self.decay_share):g}) exceed the run of {self.steps} "
                "steps. Lower warmup or decay_share, or choose linear, which decays from the end "
                "of warmup."
            )

    @property
    def decay_steps(self) -> int | None:
        """Steps below the peak at the end of the run; None if the decay follows the warmup."""
        return decay_steps(self.name, self.decay_share, self.steps)

    def at(self, step: int) -> float:
        """The factor at a step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        decay, last = self.decay_steps, self.steps - 1
        # The last step at the peak. A decay that fills all steps after warmup is that of `linear`.
        peak = self.warmup if decay is None else max(self.warmup, last - decay)
        done = max(0, step - peak) / max(1, last - peak)
        return self.floor + (1 - self.floor) * SCHEDULES[self.name].fall(min(1.0, done))


def checked_share(name: str, share: float | None, setting: str = "decay_share") -> float | None:
    """The share of the steps in which the schedule decays; None if it has no such share.

    >>> checked_share("wsd", None), checked_share("wsd", 0.1), checked_share("cosine", None)
    (0.2, 0.1, None)
    """
    if name not in SCHEDULES:
        raise UnknownNameError("schedule", name, SCHEDULES)
    if not SCHEDULES[name].stable:
        if share is None:
            return None
        raise OptionError(
            f"{setting} = {share} is a setting of the schedule wsd, and {name} decays from the end "
            "of warmup. Leave it out, or choose wsd."
        )
    if share is None:
        return DECAY_SHARE
    if not 0 < share <= 1:
        raise OptionError(
            f"{setting} = {share} must be above 0 and at most 1: a share of the steps."
        )
    return share


def decay_steps(name: str, share: float | None, steps: int) -> int | None:
    """Steps below the peak at the end of a run; None if the decay follows the warmup.

    >>> decay_steps("wsd", 0.1, 1000), decay_steps("wsd", None, 1000)
    (100, 200)
    >>> decay_steps("linear", None, 1000) is None
    True
    """
    checked = checked_share(name, share)
    return None if checked is None else max(1, round(checked * steps))


def decay_in_words(name: str, floor: float | None, decay: int | None = None, note: str = "") -> str:
    """What follows the warmup. `decay` is the number of steps of a decay at the end of the run.

    >>> decay_in_words("cosine", 0.0)
    'a cosine to zero'
    >>> decay_in_words("wsd", 0.1, 200)
    'the peak rate, then a linear decay to 0.1 of the peak rate over the last 200'
    >>> decay_in_words("cosine", None, note=" (assumed)")
    'a cosine (assumed); its floor is not known'
    """
    row = SCHEDULES[name]
    first = "the peak rate, then " if row.stable else ""
    last = "" if decay is None else f" over the last {decay:,}"
    if floor is None:
        return f"{first}{row.words}{last}{note}; its floor is not known"
    end = f"{floor:g} of the peak rate" if floor else "zero"
    return f"{first}{row.words} to {end}{last}{note}"
