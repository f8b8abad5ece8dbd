"""The losses that a trial has reported so far: when to end it, and what to record."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from mupscale.studies.stopping import WINDOWS, hopeless

POINTS = 64
"""A recorded curve has the means over this many equal parts of the run."""

Ending = Literal["diverged", "stopped"]


class TrialStopped(Exception):  # noqa: N818 - not an error: do not catch it
    """Ends a trial that diverged or is far behind the best one."""

    def __init__(self, status: Ending, step: int) -> None:
        super().__init__(f"{status} at step {step}")
        self.status: Ending = status


class LossCurve:
    """The losses of a trial, judged as they come. `steps` is the length of the whole run, once it
    is known.
    """

    def __init__(self, stop: Mapping[str, Any] | None = None, steps: int | None = None) -> None:
        self.steps, self.step = steps, 0
        self.tokens: int | None = None
        self.ended: TrialStopped | None = None
        self._stop = stop
        self._losses: list[tuple[int, float]] = []
        self._validations: list[tuple[int, float]] = []

    def add(self, loss: float, step: int | None = None, validation: bool = False) -> None:
        """Add the loss of a step (default: the next step for a training loss).

        A training loss at an earlier step means that the trainer has gone back to a checkpoint; the
        losses from there on are dropped. Raises `TrialStopped` if the trial need not continue.
        """
        if step is None:
            step = self.step + (not validation)
        if not math.isfinite(loss):
            self.step = step
            raise self._end("diverged")
        if validation:
            self._validations.append((step, loss))
            return
        if self._losses and step <= self._losses[-1][0]:
            self._forget(step)
        gap = step - self.step
        self.step = step
        self._losses.append((step, loss))
        self._judge(gap)

    def clear(self) -> None:
        self._forget(0)

    def _forget(self, step: int) -> None:
        for known in (self._losses, self._validations):
            while known and known[-1][0] >= step:
                known.pop()
        self.step = self._losses[-1][0] if self._losses else 0

    def _judge(self, gap: int) -> None:
        """At the end of each window, by its mean; `gap` is the distance to the next loss."""
        if self._stop is None or self.steps is None or not 0 < self.step < self.steps:
            return
        if _part(self.step + gap, self.steps, WINDOWS) == _part(self.step, self.steps, WINDOWS):
            return
        mean = self._last_mean(self.steps)
        if mean is not None and hopeless(self._stop, self.step / self.steps, mean):
            raise self._end("stopped")

    def _end(self, status: Ending) -> TrialStopped:
        self.ended = TrialStopped(status, self.step)
        return self.ended

    @property
    def train_loss(self) -> float | None:
        """The mean over the last window."""
        return self._last_mean(self.steps or self.step)

    @property
    def loss(self) -> float | None:
        """The last validation loss; the training loss if there is none."""
        return self._validations[-1][1] if self._validations else self.train_loss

    def _last_mean(self, steps: int) -> float | None:
        found: list[float] = []
        for step, loss in reversed(self._losses):
            if _part(step, steps, WINDOWS) != _part(self._losses[-1][0], steps, WINDOWS):
                break
            found.append(loss)
        return sum(found) / len(found) if found else None

    def points(self) -> list[list[float]]:
        """At most 64 pairs of (last step, mean loss), to six digits.

        >>> curve = LossCurve(steps=128)
        >>> for step in range(1, 7):
        ...     curve.add(10 / step)
        >>> curve.points()
        [[2, 7.5], [4, 2.91667], [6, 1.83333]]
        """
        parts: dict[int, list[tuple[int, float]]] = {}
        for step, loss in self._losses:
            part = _part(step, max(self.steps or 0, self.step), POINTS)
            parts.setdefault(max(1, part), []).append((step, loss))
        return [
            [known[-1][0], float(f"{sum(loss for _, loss in known) / len(known):.6g}")]
            for known in parts.values()
        ]

    def result(
        self, status: str, *, loss: float | None = None, error: str | None = None
    ) -> dict[str, Any]:
        """The fields to record, as strict JSON."""
        return {
            "status": status,
            "loss": loss,
            "train_loss": None if status == "diverged" else self.train_loss,
            "step": self.step,
            "steps": self.steps,
            "tokens": self.tokens,
            "curve": self.points(),
            "error": error,
        }


def _part(step: int, steps: int, parts: int) -> int:
    """Which of the equal parts of a run contains a step, counted from 1.

    >>> [_part(step, 8, 2) for step in (1, 4, 5, 8)]
    [1, 1, 2, 2]
    """
    return -(-step * parts // steps) if steps else 0
