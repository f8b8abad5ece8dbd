"""A trainer that is the user's own command: its placeholders are filled, and it runs without a
shell.
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
from typing import IO, Any, Self

from mupscale.engines import keeper
from mupscale.engines.process import ending
from mupscale.errors import MupscaleError, OptionError, UnknownNameError
from mupscale.records import storage_error
from mupscale.studies.curves import LossCurve, TrialStopped
from mupscale.studies.readings import MetricReader, metrics_in

ALWAYS = ("seed", "folder", "plan", "rule", "trial", "python")
"""Placeholders that every command may use, in addition to what is searched and varied."""

_PLACEHOLDER = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<name>[A-Za-z_]\w*)\}|(?P<lone>[{}])")
_GLANCE_SECONDS = 0.1
_TAIL_BYTES = 2000
_TAIL_LINES = 12
_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Command:
    """The arguments, with placeholders filled, and where its losses are."""

    arguments: Sequence[str]
    metrics: str = "json"
    time_limit: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


class _TimeLimitError(Exception):
    """The command takes too long."""


def check_command(command: Sequence[str], metrics: str, names: Iterable[str]) -> None:
    """Raise an error for a command that cannot work, before anything runs. `names` are the searched
    parameters and the varied dimensions.

    >>> check_command(["python", "train.py", "--lr", "{lr}"], "json", ["lr"])
    >>> check_command(["python", "train.py", "--lr", "{lrr}"], "json", ["lr"])
    Traceback (most recent call last):
    mupscale.errors.UnknownNameError: unknown placeholder in the command 'lrr'. Did you mean ...
    """
    metrics_in(metrics, Path())
    known = list(dict.fromkeys([*names, *ALWAYS]))
    used: set[str] = set()
    for argument in command:
        _substituted(argument, known, lambda name: used.add(name) or "")
    if "lr" in known and "lr" not in used:
        raise OptionError(
            "trainer.command has no {lr}: every trial would be the same. Add, for example, "
            "--lr {lr}."
        )


def filled(command: Sequence[str], values: Mapping[str, float | str]) -> list[str]:
    """The arguments with their placeholders replaced; numbers keep all their digits.

    >>> filled(["--lr={lr}", "{{}}", "{seed}"], {"lr": 2**-7, "seed": 3})
    ['--lr=0.0078125', '{}', '3']
    """
    return [
        _substituted(argument, list(values), lambda name: str(values[name])) for argument in command
    ]


def arguments(command: Any) -> list[str]:
    """The command of a config file, validated."""
    if isinstance(command, str):
        raise OptionError(
            f"trainer.command = {command!r} is one string, which only a shell could split. Write "
            'the arguments as a list: command = ["python", "train.py", "--lr", "{lr}"].'
        )
    if not isinstance(command, Sequence) or not command:
        raise OptionError(
            f"trainer.command = {command!r} is not a list of arguments. Write the program and its "
            "arguments."
        )
    for argument in command:
        if not isinstance(argument, str) or "\0" in argument:
            raise OptionError(
                f'trainer.command: {argument!r} is not a string. Quote numbers too: "8".'
            )
    return list(command)


def _substituted(argument: str, known: Sequence[str], value: Callable[[str], str]) -> str:
    """By name only: nothing in braces is evaluated, unlike with str.format."""

    def replaced(match: re.Match[str]) -> str:
        if match["brace"]:
            return match["brace"][0]
        if match["lone"]:
            raise OptionError(
                f"trainer.command: {argument!r} has a {match['lone']} outside of a placeholder. "
                "Write {name} for a placeholder, and {{ and }} for braces."
            )
        if match["name"] not in known:
            raise UnknownNameError("placeholder in the command", match["name"], known)
        return value(match["name"])

    return _PLACEHOLDER.sub(replaced, argument)


def run(command: Command, folder: Path, curve: LossCurve, lock: int) -> dict[str, Any]:
    """Run a command to its end; the result of the trial. All that it prints is in output.txt.

    `lock` is a file descriptor that stays open until the last of its processes has gone.
    """
    metrics = metrics_in(command.metrics, folder)
    output = folder / "output.txt"
    try:
        status = _followed(command, output, metrics, curve, lock)
    except TrialStopped as end:
        return curve.result(end.status)
    except _TimeLimitError:
        error = f"exceeded its time limit of {command.time_limit:g} seconds."
        return curve.result("timeout", error=error)
    if status != 0:
        error = f"{command.arguments[0]} {ending(status)}. {_tail(output)}"
        return curve.result("failed", error=error)
    if curve.loss is None:
        error = f"{command.arguments[0]} reported no loss. Expected {metrics.described}. "
        return curve.result("failed", error=error + _tail(output))
    return curve.result("finished", loss=curve.loss)


def _followed(
    command: Command, output: Path, metrics: MetricReader, curve: LossCurve, lock: int
) -> int:
    """The exit status; each printed line is read as it comes."""
    deadline = math.inf if command.time_limit is None else time.monotonic() + command.time_limit
    looked = 0.0
    with _opened(output) as log, _Running(command, log, lock) as running:
        for chunk in running.output():
            metrics.printed(chunk, curve)
            now = time.monotonic()
            if now > deadline:
                raise _TimeLimitError
            if now > looked + _GLANCE_SECONDS:  # not after every chunk of a flood of output
                metrics.look(curve, last=False)
                looked = now
        metrics.look(curve, last=True)
        return running.status()


class _Running:
    """A command below its keeper. Leaving ends it and everything that it started."""

    def __init__(self, command: Command, log: IO[bytes], lock: int) -> None:
        self._log = log
        # By path and isolated, so that it starts quickly, whatever the command's environment.
        kept = [sys.executable, "-I", "-S", keeper.__file__, repr(keeper.GRACE_SECONDS), str(lock)]
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [*kept, *command.arguments],
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
        """What it prints, also written to the log; b"" from time to time while it is silent."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while True:
                ended = self._process.poll() is not None
                selector.select(0 if ended else _GLANCE_SECONDS)
                chunk = self._pipe.read(_CHUNK)
                if chunk:
                    self._write(chunk)
                elif ended or chunk == b"":  # a process that escaped may keep the pipe open
                    return
                yield chunk or b""

    def _write(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[self._log.write(rest) :]
        except OSError as error:
            raise storage_error("write", Path(self._log.name), error) from error

    def status(self) -> int:
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._lifeline.close()
        latest = time.monotonic() + 2 * keeper.GRACE_SECONDS
        try:
            with suppress(MupscaleError):  # the reason for leaving is being raised already
                for _ in self.output():  # a full pipe would keep it from ending in good order
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
        raise storage_error("write", path, error) from error


def _tail(output: Path) -> str:
    """The last lines of the output, without control characters."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()][-_TAIL_LINES:]
    shown = "\n".join(
        "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line)
        for line in lines
    )
    return f"The end of its output ({output}):\n{shown}" if lines else "It printed nothing."
