"""`python guard.py GRACE LOCK COMMAND…`: runs a command, and ends it with all that it started when
its input ends.

The input is a pipe from whoever started this, so it ends with that process, however that one ends.
What the command started is found also where it left the command's process group, as torchrun's
ranks do: orphans come to this process (Linux). The lock of the trial's folder is kept until all of
them have gone. It needs only Python's own library.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main() -> None:
    grace, lock, command = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(lock, False)
    wakeup = _wakeup()
    _adopt_orphans()
    child = _started(command)
    while select.select([0, wakeup], [], [])[0] == [wakeup] and not _has_ended(child):
        os.read(wakeup, 1)
    _leave(_end(child, grace))


def _wakeup() -> int:
    """A pipe that can be read when a child has ended."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    # A handler, and not SIG_IGN, which the command would inherit.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return readable


def _adopt_orphans() -> None:
    with suppress(OSError, AttributeError):  # elsewhere, the process group has to do
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _started(command: list[str]) -> int:
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    try:
        return os.posix_spawnp(command[0], command, os.environ, file_actions=[nothing], setpgroup=0)
    except OSError as error:
        print(f"could not start {command[0]}: {error.strerror}", flush=True)
        sys.exit(127)


def _has_ended(child: int) -> bool:
    """Without taking its status: its number must stay its own while the group is signalled."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(child: int, grace: float) -> int:
    """Ask all that is left to end, and kill what has not done so in time; the status of the
    command.
    """
    deadline = time.monotonic() + grace
    status = 0
    _signal(child, signal.SIGTERM)
    while True:
        late = time.monotonic() > deadline
        if late:
            _signal(child, signal.SIGKILL)
        try:
            # After a kill it is safe to wait: of what is killed, the orphans have come here when it
            # has gone.
            process, ended = os.waitpid(-1, 0 if late else os.WNOHANG)
        except ChildProcessError:
            return status
        if process == child:
            status = ended
        elif process == 0:
            time.sleep(0.01)


def _signal(child: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, number)
    for process in _children():
        if process != child:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)


def _children() -> list[int]:
    """The processes whose parent this is, as Linux lists them."""
    found: list[int] = []
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit() and _parent(name) == os.getpid():
                found.append(int(name))
    return found


def _parent(process: str) -> int | None:
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # The name of the program, in brackets, may hold anything.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _leave(status: int) -> None:
    """End as the command did."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
