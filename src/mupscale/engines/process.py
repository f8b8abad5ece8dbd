"""One worker process as the driver sees it: its two pipes, the job that it has, and how it ended."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from typing import IO

from mupscale.engines.wire import framed, take_message_
from mupscale.errors import OptionError

GRACE_SECONDS = 5.0
"""How long a worker may take to leave, for a job that saves its state when it is asked to stop."""

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_CHUNK = 1 << 20


class WorkerDiedError(Exception):
    """The worker has ended without an answer."""


class Worker:
    """A process that was started, and what is still to be sent to it."""

    def __init__(self, function: bytes) -> None:
        """`function` is pickled, and sent once."""
        self.job: str | None = None
        self._process: subprocess.Popen[bytes] = _started()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.requests: IO[bytes] = self._process.stdin
        self.answers: IO[bytes] = self._process.stdout
        os.set_blocking(self.requests.fileno(), False)
        self._unsent: bytes | memoryview = framed(_setup()) + framed(function)
        self._received = bytearray()

    def assign(self, job: str, payload: bytes) -> None:
        self.job = job
        self._unsent = memoryview(bytes(self._unsent) + framed(payload))

    def send(self) -> bool:
        """Send what the pipe takes without waiting; whether that was all."""
        try:
            self._unsent = self._unsent[os.write(self.requests.fileno(), self._unsent[:_CHUNK]) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:  # it died: the end of its answers says so too
            self._unsent = b""
        if self._unsent:
            return False
        self._unsent = b""  # an empty view would keep all of the payload
        return True

    def receive(self) -> str | None:
        """Read what has come; the answer once it is whole."""
        chunk = os.read(self.answers.fileno(), _CHUNK)
        if not chunk:
            raise WorkerDiedError(self._last_words())
        self._received += chunk
        message = take_message_(self._received)
        return None if message is None else message.decode()

    def leave(self) -> None:
        """Ask an idle worker to end, which the end of its requests does, and a busy one by a signal."""
        if self.job is not None:
            self._process.terminate()
        self.requests.close()
        self.answers.close()

    def wait(self, deadline: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _last_words(self) -> str:
        self.wait(time.monotonic() + GRACE_SECONDS)
        self.kill()
        return ending(self._process.returncode)


@contextmanager
def signals_held() -> Generator[None]:
    """Requests to stop wait until this is left; a worker that is started inside inherits that until it is ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def dismiss(workers: Collection[Worker]) -> None:
    """See every worker out: the busy ones are asked to stop, and those that do not are killed."""
    try:
        for worker in workers:
            worker.leave()
        deadline = time.monotonic() + GRACE_SECONDS
        for worker in workers:
            worker.wait(deadline)
    finally:
        for worker in workers:
            worker.kill()


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
    hint = " (the system does that when memory runs out)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _started() -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "mupscale.engines.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # By this path it finds mupscale as we did; it gets our own PYTHONPATH back as soon as it has started.
            env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )
    except OSError as error:
        raise OptionError(f"could not start a worker: {error}. Choose fewer workers.") from error


def _setup() -> bytes:
    path = [os.fspath(entry) for entry in sys.path]
    return json.dumps({"driver": os.getpid(), "path": path, "pythonpath": os.environ.get("PYTHONPATH")}).encode()
