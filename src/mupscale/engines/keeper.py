"""The keeper: a process between the driver and its worker, so that nothing that a job started
outlives the worker.

A job may start processes, in sessions of their own too (torchrun's ranks are), which no signal to a
group reaches. Linux hands the orphans among them to the keeper, which ends them when the worker has
ended, for whatever reason: by itself, killed, or because the driver was killed. The keeper runs
nothing of a job's, so no job can hold it up.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import NoReturn

GRACE_SECONDS = 5.0
"""How long a worker may take to leave, for a job that saves its state when it is asked to stop."""

END_NOW = signal.SIGHUP
"""To a keeper: end the worker and all that it started. Linux sends it when the driver's thread has
ended.
"""

_END_SECONDS = 3.0  # after SIGKILL: only a process that waits for a broken disk takes longer
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def fork_kept(driver: int) -> None:
    """Return in a new process, the worker; this one keeps it, and ends as it does."""
    before = {
        number: signal.signal(number, _note) for number in (END_NOW, signal.SIGTERM, signal.SIGCHLD)
    }
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches every process of a terminal, and the driver decides
    heard, notes = os.pipe()
    os.set_blocking(notes, False)
    signal.set_wakeup_fd(notes)
    _control(_PR_SET_CHILD_SUBREAPER, 1)
    _control(_PR_SET_PDEATHSIG, END_NOW)
    keeper, worker = os.getpid(), os.fork()
    if worker:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, END_NOW})
        _keep(_Family(worker), driver, heard)
    signal.set_wakeup_fd(-1)
    os.close(heard)
    os.close(notes)
    _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    for number, handler in (before | {signal.SIGTERM: signal.SIG_DFL}).items():
        signal.signal(number, handler)
    signal.pthread_sigmask(
        signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM}
    )  # the driver held these back


def _note(number: int, frame: FrameType | None) -> None:
    """A signal that has a handler is written to the pipe, which is where it is acted upon."""


def _control(what: int, value: int) -> None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


class _Family:
    """The worker and its descendants; on Linux, those whose parent ended become children of this
    process.
    """

    def __init__(self, worker: int) -> None:
        self.worker, self.is_left = worker, True
        self.status: int | None = None

    def reap(self) -> None:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.worker:
                    self.status = ended[1]
        except ChildProcessError:
            self.is_left = False

    def send(self, number: int) -> None:
        for process in _descendants(os.getpid()) or [self.worker]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)

    def end(self) -> None:
        """Again and again, because a process may fork while it is being killed."""
        deadline = time.monotonic() + _END_SECONDS
        self.reap()
        while self.is_left and time.monotonic() < deadline:
            self.send(signal.SIGKILL)
            time.sleep(0.002)
            self.reap()


def _keep(family: _Family, driver: int, heard: int) -> NoReturn:
    """Wait for the end of the worker or of the driver, and see that nothing is left."""
    deadline = float("inf")
    while time.monotonic() < deadline and os.getppid() == driver:
        numbers = _heard(heard, seconds=min(1.0, deadline - time.monotonic()))
        if END_NOW in numbers:
            break
        if (
            signal.SIGTERM in numbers
        ):  # to all: a training script that was started may save its state too
            family.send(signal.SIGTERM)
            deadline = time.monotonic() + GRACE_SECONDS + 1  # the driver's own patience ends before
        family.reap()
        if not family.is_left or (family.status is not None and deadline == float("inf")):
            break
    family.end()
    if os.getppid() != driver:
        os.killpg(
            0, signal.SIGKILL
        )  # where the system hands no orphans to us, this still finds most
    _end_as(family.status)


def _heard(pipe: int, seconds: float) -> bytes:
    """The signals that came, a byte each."""
    ready, _, _ = select.select([pipe], [], [], max(0.0, seconds))
    return os.read(pipe, 4096) if ready else b""


def _descendants(root: int) -> list[int]:
    """All processes below one; none where the system has no /proc."""
    children: dict[int, list[int]] = {}
    for process, parent in _processes():
        children.setdefault(parent, []).append(process)
    found, below = [], [root]
    while below:
        below = [child for process in below for child in children.get(process, ())]
        found += below
    return found


def _processes() -> Iterator[tuple[int, int]]:
    """Each with its parent."""
    with suppress(FileNotFoundError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with (
                suppress(OSError),
                open(f"/proc/{name}/stat", "rb") as file,
            ):  # it may have ended meanwhile
                yield int(name), int(file.read().rpartition(b")")[2].split()[1])


def _end_as(status: int | None) -> NoReturn:
    """With the worker's own status, by which the driver tells how it ended."""
    if status is not None and os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker's own is the one of interest
        number = os.WTERMSIG(status)
        with suppress(OSError):  # SIGKILL has no other action
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(1)  # for a signal on its way
    os._exit(1 if status is None else os.WEXITSTATUS(status))
