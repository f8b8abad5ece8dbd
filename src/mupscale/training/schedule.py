"""The learning rate over a run: linear warmup, then a cosine."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cosine:
    """A factor on each group's learning rate: up to 1 over `warmup` steps, then down to `floor` at
    the last step.

    >>> schedule = Cosine(steps=100, warmup=10, floor=0.1)
    >>> [round(schedule.at(step), 3) for step in (0, 9, 10, 55, 99)]
    [0.1, 1.0, 1.0, 0.542, 0.1]
    """

    steps: int
    warmup: int
    floor: float = 0.0

    def at(self, step: int) -> float:
        """The factor at a step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - 1 - self.warmup)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
