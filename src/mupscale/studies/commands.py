"""A trainer of one's own that is a command: its placeholders filled, run without a shell, followed
to its end.
"""

import math
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from mupscale.engines.process import ending
from mupscale.errors import MupscaleError, OptionError, StorageError, UnknownNameError
from mupscale.studies import guard
from mupscale.studies.curves import LossCurve, TrialStopped
from mupscale.studies.readings import Lines, MetricReader, check_metrics, metrics_in, tell

GRACE_SECONDS = 5.0
"""How long a command that is asked to stop may take, to save its state, before it is killed."""

ALWAYS = ("seed", "folder", "plan", "rule", "trial", "python")
"""Placeholders that every command may have, beside what is searched and what is varied."""

_PLACEHOLDER = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<name>[A-Za-z_]\w*)\}|(?P<lone>[{}])")
_GLANCE_SECONDS = 0.1
_TAIL_BYTES = 2000
_TAIL_LINES = 12
_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Command:
    """What to run, without placeholders, and where its losses are."""

    arguments: Sequence[str]
    metrics: str = "json"
    time_limit: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


class _TimeLimitError(Exception):
    """The command takes too long."""


# Placeholders


def check_command(command: Any, metrics: Any, names: Iterable[str]) -> None:
    """Refuse a command that cannot work, before anything runs. `names` are what is searched and
    what is varied.

    >>> check_command(["python", "train.py", "--lr", "{lr}"], "json", ["lr"])
    >>> check_command(["python", "train.py", "--lr", "{lrr}"], "json", ["lr"])
    Traceback (most recent call last):
    mupscale.errors.UnknownNameError: unknown placeholder in the command 'lrr'. Did you mean 'lr'? Known: lr, seed, ...
    """
    check_metrics(metrics)
    known = list(dict.fromkeys([*names, *ALWAYS]))
    used: set[str] = set()
    for argument in _arguments(command):
        _substituted(argument, known, lambda name: used.add(name) or "")
    if "lr" in known and "lr" not in used:
        raise OptionError(
            "trainer.command has no {lr}: every trial would be the same. Write, say, --lr {lr}."
        )


def filled(command: Any, values: Mapping[str, float | str]) -> list[str]:
    """The arguments with their placeholders replaced; numbers to their last digit.

    >>> filled(["--lr={lr}", "{{}}", "{seed}"], {"lr": 2**-7, "seed": 3})
    ['--lr=0.0078125', '{}', '3']
    """
    return [
        _substituted(argument, list(values), lambda name: _written(values[name]))
        for argument in _arguments(command)
    ]


def _arguments(command: Any) -> list[str]:
    if isinstance(command, str):
        raise OptionError(
            f"trainer.command = {command!r} is one string, which only a shell could split. Write "
            "the arguments as a "
            'list: command = ["python", "train.py", "--lr", "{lr}"].'
        )
    if not isinstance(command, Sequence) or not command:
        raise OptionError(
            f"trainer.command = {command!r} is not a list of arguments. Write the program and its "
            "flags."
        )
    for argument in command:
        if not isinstance(argument, str) or "\0" in argument:
            raise OptionError(
                f'trainer.command: {argument!r} is not a text. Write numbers in quotes too: "8".'
            )
    return list(command)


def _substituted(argument: str, known: Sequence[str], value: Callable[[str], str]) -> str:
    """By name only: nothing in braces is evaluated, unlike with str.format."""

    def replaced(match: re.Match[str]) -> str:
        if match["brace"]:
            return match["brace"][0]
        if match["lone"]:
            raise OptionError(
                f"trainer.command: {argument!r} has a {match['lone']} that belongs to no "
                f"placeholder. Write {{name}} "
                "for a placeholder, and {{ and }} for braces."
            )
        if match["name"] not in known:
            raise UnknownNameError("placeholder in the command", match["name"], known)
        return value(match["name"])

    return _PLACEHOLDER.sub(replaced, argument)


def _written(value: float | str) -> str:
    return value if isinstance(value, str) else repr(value)


# Running


def check_time_limit(seconds: Any) -> None:
    if seconds is not None and (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 < seconds < math.inf
    ):
        raise OptionError(f"trainer.time_limit = {seconds!r} must be a number of seconds above 0.")


def run(command: Command, folder: Path, curve: LossCurve, lock: int) -> dict[str, Any]:
    """Run a command to its end, and say how it went. What it prints is in output.txt, all of it.

    `lock` is a file that stays open until the last of its processes has gone.
    """
    metrics = metrics_in(command.metrics, folder)
    output = folder / "output.txt"
    try:
        status = _followed(command, output, metrics, curve, lock)
    except TrialStopped as end:
        return curve.result(end.status)
    except _TimeLimitError:
        return curve.result(
            "timeout",
            error=f"it took longer than its time limit of {command.time_limit:g} seconds.",
        )
    if status != 0:
        error = f"{command.arguments[0]} {ending(status)}. {_tail(output)}"
        return curve.result("failed", error=error)
    if curve.loss is None:
        error = f"{command.arguments[0]} told of no loss. Looked for {metrics.described}. {_tail(output)}"
        return curve.result("failed", error=error)
    return curve.result("finished", loss=curve.loss)


def _followed(
    command: Command, output: Path, metrics: MetricReader, curve: LossCurve, lock: int
) -> int:
    """The exit status; each line that is printed is seen as it comes."""
    deadline = math.inf if command.time_limit is None else time.monotonic() + command.time_limit
    lines, looked = Lines(), 0.0
    with _opened(output) as kept, _Running(command, kept, lock) as running:
        for chunk in running.output():
            for line in lines.feed(chunk):
                tell(metrics.reports(line), curve)
            now = time.monotonic()
            if now > deadline:
                raise _TimeLimitError
            if now > looked + _GLANCE_SECONDS:  # a flood of output must not mean a flood of looks
                metrics.look(curve, last=False)
                looked = now
        for line in lines.end():
            tell(metrics.reports(line), curve)
        metrics.look(curve, last=True)
        return running.status()


class _Running:
    """A command behind its guard. Leaving ends it, and whatever it started."""

    def __init__(self, command: Command, kept: IO[bytes], lock: int) -> None:
        self._kept = kept
        # By its path and isolated: it starts in a moment, whatever the surroundings of the command.
        guarded = [
            sys.executable,
            "-I",
            "-S",
            guard.__file__,
            repr(GRACE_SECONDS),
            str(lock),
            *command.arguments,
        ]
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                guarded,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
                pass_fds=(lock,),
                env={"PYTHONUNBUFFERED": "1"} | os.environ | dict(command.environment),
            )
        except OSError as error:
            raise OptionError(
                f"could not start {command.arguments[0]}: {error.strerror or error}."
            ) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._lifeline: IO[bytes] = self._process.stdin
        self._pipe: IO[bytes] = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)

    def output(self) -> Iterator[bytes]:
        """What it prints, kept as it comes; nothing, from time to time, while it prints nothing."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while True:
                ended = self._process.poll() is not None
                selector.select(0 if ended else _GLANCE_SECONDS)
                chunk = self._pipe.read(_CHUNK)
                if chunk:
                    self._keep(chunk)
                elif (
                    ended or chunk == b""
                ):  # all ends of the pipe are closed, or held by what got away
                    return
                yield chunk or b""

    def _keep(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[self._kept.write(rest) :]
        except OSError as error:
            raise _unwritten(Path(self._kept.name), error) from error

    def status(self) -> int:
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lifeline.close()
        latest = time.monotonic() + 2 * GRACE_SECONDS
        try:
            with suppress(MupscaleError):  # what made it leave is told already
                for _ in self.output():  # read on: a full pipe would keep it from ending well
                    if time.monotonic() > latest:
                        break
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, latest - time.monotonic()))
        finally:
            self._process.kill()
            self._process.wait()
            self._pipe.close()


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("ab", buffering=0)
    except OSError as error:
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"could not write {path}: {error.strerror or error}. Free some room and run the same again."
    )


def _tail(output: Path) -> str:
    """The last lines of the output, without what could steer a terminal."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()][-_TAIL_LINES:]
    shown = "\n".join(
        "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line)
        for line in lines
    )
    return f"The end of its output ({output}):\n{shown}" if lines else "It printed nothing."
