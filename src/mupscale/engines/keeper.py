"""The keeper: a process above a worker or a command that ends everything it started.

A job may start processes in sessions of their own (torchrun's ranks are), which no signal to a
process group reaches. Linux hands the orphans among them to the keeper, which ends them when the
worker has ended for whatever reason: by itself, killed, or because the driver was killed. The
keeper runs no code of a job, so no job can hold it up.

`fork_kept` keeps a worker of an engine. `python keeper.py GRACE LOCK COMMAND…` keeps a command of a
trial; it needs only Python's standard library, so it starts quickly in any environment.
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
"""How long a job that is asked to stop may take to save its state before it is killed."""

END_NOW = signal.SIGHUP
"""To a keeper of a worker: kill the worker and all that it started. Linux sends it when the
driver's thread ends.
"""

_END_SECONDS = 3.0  # after SIGKILL; only a process that waits for a broken disk takes longer
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def fork_kept(driver: int) -> None:
    """Return in a new process, the worker; this process keeps it, and ends as it does."""
    caught = (END_NOW, signal.SIGTERM, signal.SIGCHLD)
    before = {number: signal.getsignal(number) for number in caught}
    received, notes = _caught(*caught)
    # Ctrl-C reaches every process of a terminal, and the driver decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _control(_PR_SET_CHILD_SUBREAPER, 1)
    _control(_PR_SET_PDEATHSIG, END_NOW)
    keeper, worker = os.getpid(), os.fork()
    if worker:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, END_NOW})
        _keep(_Family(worker), driver, received)
    signal.set_wakeup_fd(-1)
    os.close(received)
    os.close(notes)
    _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    for number, handler in (before | {signal.SIGTERM: signal.SIG_DFL}).items():
        signal.signal(number, handler)
    # The driver blocked these until the worker could handle them.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def main() -> NoReturn:
    """Run a command until it ends or our input does: a pipe from the trial, which ends with that
    process, however that one ends. LOCK, the descriptor of the trial's lock, stays open until all
    that the command started has gone.
    """
    grace, lock, command = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(lock, False)
    received, _ = _caught(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
    _control(_PR_SET_CHILD_SUBREAPER, 1)
    family = _Family(_started(command), leads_group=True)
    while family.status is None and select.select([0, received], [], [])[0] == [received]:
        os.read(received, 4096)
        family.reap()
    family.end(grace, patience=float("inf"))
    _end_as(family.status)


def _started(command: list[str]) -> int:
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    try:
        return os.posix_spawnp(command[0], command, os.environ, file_actions=[nothing], setpgroup=0)
    except OSError as error:
        print(f"could not start {command[0]}: {error.strerror}", flush=True)
        sys.exit(127)


def _caught(*numbers: int) -> tuple[int, int]:
    """Both ends of a pipe that receives these signals, one byte each."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in numbers:  # not SIG_IGN, which a command would inherit
        signal.signal(number, _noted)
    return readable, writable


def _noted(number: int, frame: FrameType | None) -> None:
    """Nothing: a signal that has a handler is written to the pipe."""


def _control(what: int, value: int) -> None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


class _Family:
    """A process and its descendants; on Linux, the orphans among them become our children."""

    def __init__(self, first: int, *, leads_group: bool = False) -> None:
        self.status: int | None = None
        "Of the first process, once it has ended."
        self.is_left = True
        self._first, self._leads_group = first, leads_group

    def reap(self) -> None:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._first:
                    self.status = ended[1]
        except ChildProcessError:
            self.is_left = False

    def send(self, number: int) -> None:
        processes = _descendants(os.getpid())
        for process in processes:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        if not processes:  # no /proc: most are in the group of the first
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if self._leads_group else os.kill)(self._first, number)

    def end(self, grace: float = 0.0, patience: float = _END_SECONDS) -> None:
        """Ask all to end, if there is grace, and then kill them; wait for that with patience."""
        kill_at = time.monotonic() + grace
        self.reap()
        if self.is_left and grace:
            self.send(signal.SIGTERM)
        while self.is_left and (now := time.monotonic()) < kill_at + patience:
            if now >= kill_at:  # again and again: a process may fork while it is being killed
                self.send(signal.SIGKILL)
            time.sleep(0.005)
            self.reap()


def _keep(family: _Family, driver: int, received: int) -> NoReturn:
    """Wait for the end of the worker or of the driver, and end what is left."""
    deadline = float("inf")
    while time.monotonic() < deadline and os.getppid() == driver:
        seconds = min(1.0, max(0.0, deadline - time.monotonic()))
        ready, _, _ = select.select([received], [], [], seconds)
        numbers = os.read(received, 4096) if ready else b""
        if END_NOW in numbers:
            break
        if signal.SIGTERM in numbers:  # to all: a training script may save its state too
            family.send(signal.SIGTERM)
            deadline = time.monotonic() + GRACE_SECONDS + 1  # the driver's own patience ends before
        family.reap()
        if not family.is_left or (family.status is not None and deadline == float("inf")):
            break
    family.end()
    if os.getppid() != driver:  # where the system hands no orphans to us, this still finds most
        os.killpg(0, signal.SIGKILL)
    _end_as(family.status)


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
            # It may end meanwhile. Its name, in brackets, may contain anything.
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                yield int(name), int(file.read().rpartition(b")")[2].split()[1])


def _end_as(status: int | None) -> NoReturn:
    """With the status of the first process, so that our parent learns how it ended."""
    if status is not None and os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker's own is the one of interest
        number = os.WTERMSIG(status)
        with suppress(OSError):  # SIGKILL has no other action
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(1)  # the signal may take a moment
    os._exit(1 if status is None else os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
