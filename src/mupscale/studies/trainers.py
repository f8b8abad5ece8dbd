"""`train`: one trial, by the reference model, a user's Python function or a user's command.

Engines call it in a worker; its result is JSON. A trial that was killed is given to `train` again
with the same folder, and resumes if its trainer can.
"""

import errno
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, cast

import torch

from mupscale.errors import OptionError, StorageError
from mupscale.records import locked, read_lines, storage_error, write_whole
from mupscale.studies import commands
from mupscale.studies.commands import check_command
from mupscale.studies.config import Trainer
from mupscale.studies.curves import LossCurve, TrialStopped
from mupscale.studies.names import inside
from mupscale.studies.readings import count, number
from mupscale.targets import functions
from mupscale.training import RunConfig, RunProgress, lengths, run
from mupscale.training.devices import one_thread
from mupscale.training.metrics import MetricsFile

__all__ = ["Trial", "TrialAssignment", "TrialStopped", "check_command", "check_trainer", "train"]

LOCK_SECONDS = 30.0
"""How long to wait for the processes of an attempt that was killed to leave the folder."""


@dataclass(frozen=True, kw_only=True)
class TrialAssignment:
    """One trial to run."""

    trial: str
    "Cell and number, which are also the end of the folder: gqa-mup.n_kv_heads-3/0007."
    rule: str
    variant: Mapping[str, int | float | str]
    seed: int
    params: Mapping[str, float]
    "Base values (lr, weight_decay, tau_epoch, std, eps, one_minus_beta2) and factors."
    folder: str
    config: RunConfig | None = None
    "The run, for the reference model."
    plan: Mapping[str, Any] | None = None
    "What `Plan.to_json` writes, for the user's own trainer."
    stop: Mapping[str, Any] | None = None
    "The best trial so far, to stop a trial that is far behind."
    trainer: Trainer | None = None
    "None for the reference model."
    ranks: int = 1
    time_limit: float | None = None


class Trial:
    """What a user's function gets: the point to try, and a way to report progress."""

    def __init__(self, assignment: TrialAssignment, folder: Path, curve: LossCurve) -> None:
        self.params: dict[str, float] = dict(assignment.params)
        self.rule: str = assignment.rule
        self.variant: dict[str, int | float | str] = dict(assignment.variant)
        self.seed: int = assignment.seed
        self.folder: Path = folder
        self.plan: dict[str, Any] | None = (
            None if assignment.plan is None else dict(assignment.plan)
        )
        self._curve, self._log = curve, None

    @property
    def lr(self) -> float | None:
        """None if it is not searched."""
        return self.params.get("lr")

    @property
    def weight_decay(self) -> float | None:
        """None if it is not searched."""
        return self.params.get("weight_decay")

    def report(self, step: int, loss: float, steps: int | None = None) -> None:
        """Report the training loss after `step` of `steps`. Raises `TrialStopped`, which you should
        not catch, when the trial need not continue.

        Reports are kept in the folder, so that a function that resumes from a checkpoint continues
        its reports too.
        """
        self._curve.steps = steps or self._curve.steps
        value = float(loss)
        log = self._log = self._log or self._reports_before(step)
        if math.isfinite(value):
            log.append({"step": step, "loss": value})
        self._curve.add(value, step)

    def _reports_before(self, step: int) -> MetricsFile:
        path = self.folder / "reports.jsonl"
        rows, _ = read_lines(path)
        for row in rows:
            if row["step"] < step:
                self._curve.add(row["loss"], row["step"])
        return MetricsFile(path, step - 1)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def check_trainer(trainer: Trainer | None, names: Iterable[str]) -> None:
    """Raise an error for a trainer that cannot work, before anything runs. `names` are the searched
    parameters and the varied dimensions.
    """
    if trainer is None:
        return
    if trainer.command is not None:
        check_command(trainer.command, trainer.metrics, names)
    else:
        with functions.loaded(str(trainer.function)):
            pass


def train(assignment: TrialAssignment) -> dict[str, Any]:
    """Run one trial; its result has the fields of `LossCurve.result`.

    An error in the user's own trainer is a result with the status "failed". A wrong assignment, a
    full disk and lack of memory are raised, because the trial may succeed later.
    """
    began = time.perf_counter()
    folder = _own_folder(assignment)
    curve = LossCurve(assignment.stop)
    trainer = assignment.trainer
    # An attempt that was killed may take a moment to leave the folder.
    with locked(folder / ".lock", folder, LOCK_SECONDS) as lock:
        attempts = _counted(folder)
        if trainer is None:
            result = _by_reference(assignment, folder, curve, lock)
        else:
            if assignment.plan is not None:
                text = json.dumps(assignment.plan, ensure_ascii=False, allow_nan=False, indent=1)
                write_whole(folder / "plan.json", f"{text}\n".encode())
            if trainer.command is not None:
                result = _by_command(assignment, trainer, folder, curve, lock)
            else:
                result = _by_function(assignment, str(trainer.function), folder, curve)
    return result | {"seconds": round(time.perf_counter() - began, 3), "attempts": attempts}


# The folder


def _own_folder(assignment: TrialAssignment) -> Path:
    """Create the trial's folder, which must be where its name says, whatever links there are."""
    names = assignment.trial.split("/")
    folder = Path(assignment.folder).absolute()
    if list(folder.parts[-len(names) :]) != names:
        raise OptionError(
            f"the folder {folder} is not that of the trial {assignment.trial!r}. It must end with "
            "this name."
        )
    folder = inside(folder.parents[len(names) - 1], *names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error("create", folder, error) from error
    return folder


def _counted(folder: Path) -> int:
    """How often this trial has been started, including this time."""
    path = folder / "attempts"
    before = 0
    with suppress(FileNotFoundError, ValueError):
        before = int(path.read_text(encoding="utf-8"))
    write_whole(path, f"{before + 1}\n".encode())
    return before + 1


# The reference model


def _by_reference(
    assignment: TrialAssignment, folder: Path, curve: LossCurve, lock: int
) -> dict[str, Any]:
    config, ranks = assignment.config, assignment.ranks
    assert config is not None
    sizes = lengths(config)
    curve.steps = sizes.steps
    if config.machine.shard != "none":
        result = _in_processes(config, folder, curve, ranks, lock)
    elif ranks == 1:
        result = _in_this_process(config, folder, curve)
    else:
        raise OptionError(f'ranks = {ranks} and machine.shard = "none": choose "ddp" or "fsdp".')
    return result | {"tokens": result["step"] * sizes.batch * config.data.sequence}


def _in_this_process(config: RunConfig, folder: Path, curve: LossCurve) -> dict[str, Any]:
    every, begun = config.record.log_every, False

    def report(progress: RunProgress) -> None:
        """Only losses that are written down, so that a run that resumes is judged like one that was
        never stopped.
        """
        nonlocal begun
        for row in [] if begun else read_lines(folder / "metrics.jsonl")[0]:
            if row["step"] % every == 0:
                curve.add(row["loss"], row["step"])
        begun = True
        if progress.step % every == 0:
            curve.add(progress.loss, progress.step)

    try:
        with one_thread():
            run(config, folder, report=report)
    except TrialStopped as end:
        return curve.result(end.status)
    return _recorded(folder)


def _in_processes(
    config: RunConfig, folder: Path, curve: LossCurve, ranks: int, lock: int
) -> dict[str, Any]:
    """Several ranks of one run, started as a user would: torchrun -m mupscale train."""
    # Not config.toml, which is the run's own: the run compares it with this one.
    chosen = folder / "trial.toml"
    write_whole(chosen, config.to_toml().encode())
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    training = ["-m", "mupscale", "train", str(chosen), "--output", str(folder)]
    command = commands.Command(
        arguments=[sys.executable, *launcher, *training],
        metrics="file:metrics.jsonl",
        # The ranks find mupscale as this process did.
        environment={"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    result = commands.run(command, folder, curve, lock)
    return _recorded(folder) if (folder / "record.json").exists() else result


def _recorded(folder: Path) -> dict[str, Any]:
    """The result of a run that has ended."""
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    curve = LossCurve(steps=record["steps"])
    for row in read_lines(folder / "metrics.jsonl")[0]:
        if not row.get("diverged"):
            curve.add(row["loss"], row["step"])
    curve.step = record["step"]
    result = curve.result(record["status"], loss=record["validation_loss"])
    noise = record.get("noise_scale_tokens")
    return result if noise is None else result | {"noise_scale_tokens": noise}


# A user's function


def _by_function(
    assignment: TrialAssignment, name: str, folder: Path, curve: LossCurve
) -> dict[str, Any]:
    trial = Trial(assignment, folder, curve)
    with functions.loaded(name) as function:
        try:
            returned = function(trial)
        except TrialStopped:
            returned = None
        except (Exception, SystemExit) as error:
            if curve.ended is None:
                return curve.result("failed", error=_described(name, error))
            returned = None  # the function turned TrialStopped into an error of its own
        finally:
            trial.close()
    if curve.ended is not None:  # also if the function caught TrialStopped and continued
        return curve.result(curve.ended.status)
    return _returned(name, returned, curve)


def _described(name: str, error: BaseException) -> str:
    """The error and where it came from. Lack of memory or disk space is not the function's fault,
    and raised.
    """
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if memory or "can't allocate memory" in str(error) or isinstance(error, StorageError):
        raise error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise StorageError(
            f"{name}: {error}. Free some disk space and run the same command again."
        ) from error
    frames = "".join(traceback.format_tb(error.__traceback__, limit=-3)).rstrip()
    return f"{name} raised {type(error).__name__}: {str(error)[:2000]}\n{frames}"


def _returned(name: str, returned: Any, curve: LossCurve) -> dict[str, Any]:
    """The result from what the function returned: the loss, or a mapping with it."""
    metrics = (
        cast(Mapping[str, Any], returned) if isinstance(returned, Mapping) else {"loss": returned}
    )
    loss = number(metrics.get("loss")) if isinstance(metrics.get("loss"), Real) else None
    if loss is None:
        shown = repr(returned) if len(repr(returned)) < 200 else type(returned).__name__
        error = (
            f"{name} returned {shown}. Return the loss as a number (tensor.item()), or a "
            'dictionary with "loss" and optionally "tokens" and "steps".'
        )
        return curve.result("failed", error=error)
    curve.tokens = count(metrics.get("tokens")) or curve.tokens
    curve.steps = count(metrics.get("steps")) or curve.steps
    curve.step = curve.step or curve.steps or 0
    return curve.result("finished", loss=loss) if math.isfinite(loss) else curve.result("diverged")


# A user's command


def _by_command(
    assignment: TrialAssignment, trainer: Trainer, folder: Path, curve: LossCurve, lock: int
) -> dict[str, Any]:
    values: dict[str, float | str] = {
        **assignment.variant,
        **assignment.params,
        "seed": assignment.seed,
        "folder": str(folder),
        "rule": assignment.rule,
        "trial": assignment.trial,
        "python": sys.executable,
    }
    if assignment.plan is not None:
        values["plan"] = str(folder / "plan.json")
    own = {"MUPSCALE_TRIAL": assignment.trial, "MUPSCALE_FOLDER": str(folder)}
    command = commands.Command(
        arguments=commands.filled(trainer.command or (), values),
        metrics=trainer.metrics,
        time_limit=assignment.time_limit,
        environment={**trainer.environment, **own},
    )
    return commands.run(command, folder, curve, lock)
