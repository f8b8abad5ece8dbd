"""A worker process as the driver sees it: its two pipes, its job, and how it ended."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO

from mupscale.engines.keeper import END_NOW, GRACE_SECONDS
from mupscale.engines.wire import framed, take_message_
from mupscale.errors import OptionError

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_CHUNK = 1 << 20
_PAUSE_SECONDS = 0.002
_END_SECONDS = 4.0  # longer than a keeper waits for what it kills


class WorkerDiedError(Exception):
    """The worker ended without an answer."""

    def __init__(self, status: int) -> None:
        super().__init__(ending(status))
        self.status = status


@dataclass(frozen=True)
class Terms:
    """The settings of a new worker; `folder` is None for the folder of the process that starts
    it.
    """

    folder: str | None = None
    threads: int = 1
    memory_limit: int | None = None
    path: tuple[str, ...] = field(default_factory=lambda: tuple(map(os.fspath, sys.path)))
    pythonpath: str | None = field(default_factory=lambda: os.environ.get("PYTHONPATH"))

    @property
    def environment(self) -> dict[str, str]:
        """With this path the worker finds mupscale; it gets our own PYTHONPATH back as soon as it
        has started.
        """
        path = os.pathsep.join(map(os.path.abspath, self.path))
        return {"PYTHONPATH": path} | dict.fromkeys(_THREADS, str(self.threads))

    @property
    def message(self) -> bytes:
        return json.dumps([self.path, self.pythonpath, self.memory_limit]).encode()


class Worker:
    """The process that was started (its keeper), and what is still to be sent to it."""

    def __init__(self, function: bytes, terms: Terms) -> None:
        """`function` is pickled. It is sent once."""
        self.is_busy = False
        self._process: subprocess.Popen[bytes] = _started(terms)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.requests: IO[bytes] = self._process.stdin
        self.answers: IO[bytes] = self._process.stdout
        os.set_blocking(self.requests.fileno(), False)
        self._unsent: bytes | memoryview = framed(terms.message) + framed(function)
        self._received = bytearray()

    def assign(self, payload: bytes) -> None:
        self.is_busy = True
        self._unsent = memoryview(bytes(self._unsent) + framed(payload))

    def send(self) -> bool:
        """Send as much as the pipe takes without waiting; whether that was all."""
        try:
            self._unsent = self._unsent[os.write(self.requests.fileno(), self._unsent[:_CHUNK]) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:  # it died, which the end of its answers shows too
            self._unsent = b""
        if self._unsent:
            return False
        self._unsent = b""  # an empty view would keep the whole payload in memory
        return True

    def receive(self) -> str | None:
        """Read what has arrived; the answer once it is complete."""
        chunk = os.read(self.answers.fileno(), _CHUNK)
        if not chunk:
            raise WorkerDiedError(self._last_status())
        self._received += chunk
        message = take_message_(self._received)
        if message is None:
            return None
        self.is_busy = False
        return message.decode()

    def leave(self) -> None:
        """Ask the worker to end, by closing its requests, and if it is busy by a signal too."""
        if self.is_busy:
            self._signal(signal.SIGTERM)
        self.requests.close()
        self.answers.close()

    def end_now(self) -> None:
        """Have it killed with all that it started; its answers end when that is done."""
        self._signal(END_NOW)

    @property
    def has_ended(self) -> bool:
        """Without reaping it, so that its group can still be killed by its pid."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll() is not None
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is not None

    def wait(self, deadline: float) -> None:
        while not self.has_ended and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)

    def kill(self) -> None:
        """Kill it, and what is left of its group if the keeper itself was killed."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def _last_status(self) -> int:
        self.wait(time.monotonic() + GRACE_SECONDS)
        self.kill()
        assert self._process.returncode is not None
        return self._process.returncode


@contextmanager
def signals_held() -> Generator[None]:
    """Delay requests to stop. A worker that is started inside inherits this until it is ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def dismiss(workers: Collection[Worker]) -> None:
    """End all workers: ask the busy ones to stop, and kill those that do not."""
    try:
        for worker in workers:
            worker.leave()
        _wait_for(workers, GRACE_SECONDS)
    finally:
        with signals_held():  # a second Ctrl-C ends the grace, and a third one waits
            for worker in workers:
                worker.end_now()
            _wait_for(workers, _END_SECONDS)
            for worker in workers:
                worker.kill()


def _wait_for(workers: Collection[Worker], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.wait(deadline)


def ending(status: int) -> str:
    """How a process ended, by its return code.

    >>> ending(-11), ending(3)
    ('was killed by SIGSEGV', 'exited with status 3')
    """
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal
        name = f"signal {-status}"
    return f"was killed by {name}{_HINTS.get(name, '')}"


_HINTS = {
    "SIGKILL": " (the system does that when memory runs out)",
    "SIGILL": " (some virtual machines claim to have AMX but do not: set "
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16)",
}


def _started(terms: Terms) -> subprocess.Popen[bytes]:
    folder = terms.folder if terms.folder is not None and os.path.isdir(terms.folder) else None
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "mupscale.engines.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=folder,
            start_new_session=True,  # its own group, so that Ctrl-C does not reach it
            env=os.environ | terms.environment,
        )
    except OSError as error:
        raise OptionError(f"could not start a worker: {error}. Choose fewer workers.") from error
