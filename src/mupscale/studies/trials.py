"""Trials: the points to run, and their results. Both are plain JSON on disk."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mupscale.errors import StorageError

Space = Mapping[str, tuple[float, float]]
"""The ranges of the searched parameters."""

Status = Literal["finished", "diverged", "stopped", "failed", "oom", "timeout"]
STATUSES: tuple[Status, ...] = get_args(Status)
FAILED: frozenset[str] = frozenset(("failed", "oom", "timeout"))
"""The training itself broke off: the trial has no result, and can be retried."""


@dataclass(frozen=True)
class Point:
    """What a search proposes: values of the searched parameters, and the seed of the run."""

    params: Mapping[str, float]
    seed: int


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trial that has ended. `loss` is None unless it finished; `curve` holds (step, training
    loss) pairs.
    """

    cell: str
    rule: str
    variant: Mapping[str, Any]
    number: int
    round: int
    seed: int
    params: Mapping[str, float]
    status: Status
    loss: float | None
    step: int = 0
    steps: int | None = None
    tokens: int | None = None
    train_loss: float | None = None
    curve: Sequence[Sequence[float]] = ()
    attempts: int = 1
    began: float | None = None
    seconds: float | None = None
    error: str | None = None
    noise_scale_tokens: float | None = None
    "Gradient noise scale at the end of the run, if it was measured."
    fingerprint: str = ""
    "A hash of everything that decides the result: trials that share it have the same result."

    @property
    def key(self) -> str:
        return trial_key(self.cell, self.number)

    @property
    def log2_lr(self) -> float:
        return math.log2(self.params["lr"])

    @property
    def has_run(self) -> bool:
        """Whether the training came to an end, good or bad."""
        return self.status not in FAILED

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["same"] = values.pop("fingerprint")  # the key that records have always had
        if self.noise_scale_tokens is None:  # left out, as in older records
            del values["noise_scale_tokens"]
        return values

    @staticmethod
    def from_dict(key: str, values: Mapping[str, Any]) -> "TrialRecord":
        try:
            fields: dict[str, Any] = {"same": "", **values}
            trial = TrialRecord(fingerprint=fields.pop("same"), **fields)
        except TypeError as error:
            raise StorageError(
                f"the record of {key} is not that of a trial: {error}. Restore it from a copy."
            ) from error
        if trial.status not in STATUSES or trial.key != key:
            raise StorageError(
                f"the record of {key} says {trial.key!r}, {trial.status!r}. Restore it from a copy."
            )
        return trial


def trial_key(cell: str, number: int) -> str:
    """The name of a trial in its study.

    >>> trial_key("gqa-mup.r-4", 7)
    'gqa-mup.r-4/0007'
    """
    return f"{cell}/{number:04d}"


def best(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """The finished trial with the lowest loss."""
    finished = [trial for trial in trials if trial.loss is not None]
    return min(finished, key=lambda trial: trial.loss or 0.0, default=None)
