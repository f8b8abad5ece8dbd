"""`train`: one trial, by the reference model, a Python function of one's own, or a command of one's
own.

Engines call it in a worker; all that goes in and comes out is JSON. A trial that was killed is
given to `train` again with the same folder, and goes on where its trainer can.
"""

import dataclasses
import errno
import fcntl
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, cast

import torch

from mupscale.errors import OptionError, StorageError, UnknownNameError
from mupscale.records import read_lines, write_whole
from mupscale.studies import commands
from mupscale.studies.commands import check_command
from mupscale.studies.curves import LossCurve, TrialStopped
from mupscale.studies.names import inside
from mupscale.studies.readings import count, number
from mupscale.targets import functions
from mupscale.training import RunConfig, RunProgress, lengths, run
from mupscale.training.metrics import MetricsFile

__all__ = ["TrialAssignment", "Trial", "TrialStopped", "check_command", "check_trainer", "train"]

SETTINGS: dict[str, tuple[str, ...]] = {
    "reference": ("kind", "ranks"),
    "function": ("kind", "name"),
    "command": ("kind", "command", "metrics", "time_limit", "environment"),
}
"""The kinds of trainers, and what may be said of each."""

LOCK_SECONDS = 30.0
"""How long a folder may still be held by what is left of an attempt that was killed."""


@dataclass(frozen=True, kw_only=True)
class TrialAssignment:
    """One trial, as the driver hands it out."""

    trial: str
    "Cell and number, which are also the end of the folder: gqa-mup.n_kv_heads-3/0007."
    rule: str
    variant: Mapping[str, int | float | str]
    seed: int
    params: Mapping[str, float]
    "Any of lr, weight_decay, tau_epoch, std."
    folder: str
    config: Mapping[str, Any]
    "Of the whole run, for the reference model."
    plan: Mapping[str, Any] | None
    "What `Plan.to_json` writes, for a trainer of one's own."
    stop: Mapping[str, Any] | None
    trainer: Mapping[str, Any]

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "TrialAssignment":
        known = [field.name for field in dataclasses.fields(TrialAssignment)]
        for name in values:
            if name not in known:
                raise UnknownNameError("part of an assignment", name, known)
        missing = [name for name in known if name not in values]
        if missing:
            raise OptionError(f"an assignment lacks {', '.join(missing)}.")
        return TrialAssignment(**values)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Trial:
    """What a function of one's own gets: the point to try, and a way to tell of progress."""

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
        """None where it is not searched, and so for the others."""
        return self.params.get("lr")

    @property
    def weight_decay(self) -> float | None:
        return self.params.get("weight_decay")

    def report(self, step: int, loss: float, steps: int | None = None) -> None:
        """Tell of the training loss after `step` of `steps`. Raises `TrialStopped`, to let pass,
        when that is enough.

        Reports are kept in the folder: a function that goes on from a checkpoint goes on with them
        too.
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


def check_trainer(trainer: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a trainer that cannot work, before anything runs. `names` are what is searched and
    what is varied.
    """
    kind = _kind(trainer)
    if kind == "command":
        check_command(trainer.get("command"), trainer.get("metrics", "json"), names)
        commands.check_time_limit(trainer.get("time_limit"))
        _check_environment(trainer.get("environment", {}))
    elif kind == "function":
        with functions.loaded(str(trainer.get("name"))):
            pass
    elif trainer.get("ranks", 1) < 1:
        raise OptionError(f"ranks = {trainer['ranks']} must be at least 1.")


def train(assignment: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one trial and say how it went; see the fields in `LossCurve.result`.

    What goes wrong in the user's own trainer is a result, with the status "failed". What is wrong
    with the assignment, a disk that is full and memory that runs out are raised: the trial can be
    had later.
    """
    given = TrialAssignment.from_dict(assignment)
    kind = _kind(given.trainer)
    began = time.perf_counter()
    folder = _own_folder(given)
    curve = LossCurve(given.stop)
    with _held(folder) as lock:
        attempts = _counted(folder)
        if kind != "reference" and given.plan is not None:
            text = json.dumps(given.plan, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
            write_whole(folder / "plan.json", text.encode())
        result = _BY[kind](given, folder, curve, lock)
    return result | {"seconds": round(time.perf_counter() - began, 3), "attempts": attempts}


def _kind(trainer: Mapping[str, Any]) -> str:
    kind = trainer.get("kind")
    if kind not in SETTINGS:
        raise UnknownNameError("kind of trainer", kind, SETTINGS)
    for name in trainer:
        if name not in SETTINGS[kind]:
            raise UnknownNameError(f"setting of a {kind} trainer", name, SETTINGS[kind])
    return kind


def _check_environment(environment: Any) -> None:
    if not isinstance(environment, Mapping):
        raise OptionError(
            f"trainer.environment = {environment!r} is not a table of names and texts."
        )
    for name, value in cast(Mapping[Any, Any], environment).items():
        if (
            not isinstance(name, str)
            or not isinstance(value, str)
            or "=" in name
            or "\0" in name + value
        ):
            raise OptionError(
                f'trainer.environment: {name!r} = {value!r} cannot be. Write {name} = "{value}".'
            )


# The folder


def _own_folder(given: TrialAssignment) -> Path:
    """The trial's folder, which must be where its name says, whatever links there are."""
    names = given.trial.split("/")
    folder = Path(given.folder).absolute()
    if list(folder.parts[-len(names) :]) != names:
        raise OptionError(
            f"the folder {folder} is not that of the trial {given.trial!r}. It must end with this "
            "name."
        )
    folder = inside(folder.parents[len(names) - 1], *names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"could not make {folder}: {error.strerror or error}. Free some room."
        ) from error
    return folder


@contextmanager
def _held(folder: Path) -> Generator[int]:
    """The folder is ours alone; what is left of an attempt that was killed has a moment to go."""
    path = folder / ".lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StorageError(
            f"could not open {path}: {error.strerror or error}. Free some room."
        ) from error
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _locked(file):
            if time.monotonic() > deadline:
                raise OptionError(
                    f"{folder} is in use by another process. Wait until that has ended, or end it."
                )
            time.sleep(0.05)
        yield file
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _counted(folder: Path) -> int:
    """How often this trial has been begun, this time included."""
    path = folder / "attempts"
    before = 0
    with suppress(FileNotFoundError, ValueError):
        before = int(path.read_text(encoding="utf-8"))
    write_whole(path, f"{before + 1}\n".encode())
    return before + 1


# The reference model


def _by_reference(
    given: TrialAssignment, folder: Path, curve: LossCurve, lock: int
) -> dict[str, Any]:
    config = RunConfig.from_dict(given.config)
    ranks = given.trainer.get("ranks", 1)
    if ranks > 1 and config.machine.shard == "none":
        raise OptionError(f'ranks = {ranks} and machine.shard = "none": choose "ddp" or "fsdp".')
    sizes = lengths(config)
    curve.steps = sizes.steps
    by = _in_processes if config.machine.shard != "none" else _in_this_process
    result = by(config, folder, curve, ranks, lock)
    return result | {"tokens": result["step"] * sizes.batch * config.data.sequence}


def _in_this_process(
    config: RunConfig, folder: Path, curve: LossCurve, ranks: int, lock: int
) -> dict[str, Any]:
    every, begun = config.record.log_every, False

    def report(progress: RunProgress) -> None:
        """Only of losses that are written down, so that a run that goes on is judged as one that
        was never stopped.
        """
        nonlocal begun
        for row in [] if begun else read_lines(folder / "metrics.jsonl")[0]:
            if row["step"] % every == 0:
                curve.add(row["loss"], row["step"])
        begun = True
        if progress.step % every == 0:
            curve.add(progress.loss, progress.step)

    try:
        with _one_thread():
            run(config, folder, report=report)
    except TrialStopped as end:
        return curve.result(end.status)
    return _recorded(folder)


def _in_processes(
    config: RunConfig, folder: Path, curve: LossCurve, ranks: int, lock: int
) -> dict[str, Any]:
    """Several ranks of one run, started as a user would: torchrun -m mupscale train."""
    chosen = (
        folder / "trial.toml"
    )  # config.toml is the run's own: what it finds there it compares with this
    write_whole(chosen, config.to_toml().encode())
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = commands.Command(
        arguments=[
            sys.executable,
            *launcher,
            "-m",
            "mupscale",
            "train",
            str(chosen),
            "--output",
            str(folder),
        ],
        metrics="file:metrics.jsonl",
        # The ranks find mupscale as this process did.
        environment={"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    result = commands.run(command, folder, curve, lock)
    return _recorded(folder) if (folder / "record.json").exists() else result


def _recorded(folder: Path) -> dict[str, Any]:
    """Of a run that has ended."""
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    curve = LossCurve(steps=record["steps"])
    for row in read_lines(folder / "metrics.jsonl")[0]:
        if not row.get("diverged"):
            curve.add(row["loss"], row["step"])
    curve.step = record["step"]
    return curve.result(record["status"], loss=record["validation_loss"])


@contextmanager
def _one_thread() -> Generator[None]:
    """Trials run side by side: more threads than one each would only get into each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# A function of one's own


def _by_function(
    given: TrialAssignment, folder: Path, curve: LossCurve, lock: int
) -> dict[str, Any]:
    name = str(given.trainer.get("name"))
    trial = Trial(given, folder, curve)
    with functions.loaded(name) as function:
        try:
            returned = function(trial)
        except TrialStopped:
            returned = None
        except (Exception, SystemExit) as error:
            if curve.ended is None:
                return curve.result("failed", error=_told(name, error))
            returned = None  # it made an error of its own of being stopped
        finally:
            trial.close()
    if curve.ended is not None:  # also where the function caught it and went on
        return curve.result(curve.ended.status)
    return _returned(name, returned, curve)


def _told(name: str, error: BaseException) -> str:
    """The error and where it came from. Memory and disk that run out are not the function's fault,
    and raised.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(
        error
    ):
        raise error
    if isinstance(error, StorageError):
        raise error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise StorageError(f"{name}: {error}. Free some room and run the same again.") from error
    frames = "".join(traceback.format_tb(error.__traceback__, limit=-3)).rstrip()
    return f"{name} raised {type(error).__name__}: {str(error)[:2000]}\n{frames}"


def _returned(name: str, returned: Any, curve: LossCurve) -> dict[str, Any]:
    """What the function gave back: the loss, or a mapping with it."""
    metrics = (
        cast(Mapping[str, Any], returned) if isinstance(returned, Mapping) else {"loss": returned}
    )
    loss = number(metrics.get("loss")) if isinstance(metrics.get("loss"), Real) else None
    if loss is None:
        shown = repr(returned) if len(repr(returned)) < 200 else type(returned).__name__
        return curve.result(
            "failed",
            error=f"{name} returned {shown}. Return the loss as a number (tensor.item()), or a "
            "dictionary with "
            '"loss", and "tokens" and "steps" if you like.',
        )
    curve.tokens = count(metrics.get("tokens")) or curve.tokens
    curve.steps = count(metrics.get("steps")) or curve.steps
    curve.step = curve.step or curve.steps or 0
    return curve.result("finished", loss=loss) if math.isfinite(loss) else curve.result("diverged")


# A command of one's own


def _by_command(
    given: TrialAssignment, folder: Path, curve: LossCurve, lock: int
) -> dict[str, Any]:
    trainer = given.trainer
    own = {"MUPSCALE_TRIAL": given.trial, "MUPSCALE_FOLDER": str(folder)}
    command = commands.Command(
        arguments=commands.filled(trainer.get("command"), _values(given, folder)),
        metrics=trainer.get("metrics", "json"),
        time_limit=trainer.get("time_limit"),
        environment={**trainer.get("environment", {}), **own},
    )
    return commands.run(command, folder, curve, lock)


def _values(given: TrialAssignment, folder: Path) -> dict[str, float | str]:
    """What the placeholders stand for."""
    always: dict[str, float | str] = {
        "seed": given.seed, "folder": str(folder), "rule": given.rule, "trial": given.trial, "python": sys.executable,
    }  # fmt: skip
    plan: dict[str, float | str] = {} if given.plan is None else {"plan": str(folder / "plan.json")}
    return {**given.variant, **given.params, **always, **plan}


_BY: dict[str, Callable[[TrialAssignment, Path, LossCurve, int], dict[str, Any]]] = {
    "reference": _by_reference,
    "function": _by_function,
    "command": _by_command,
}
