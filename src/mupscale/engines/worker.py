"""`python -m mupscale.engines.worker`: a process that waits for jobs on its input until the input
ends.

It gets one message that sets it up, one with the function, and then one for each job, which it
answers.
"""

import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import cloudpickle

from mupscale.engines.answers import answer
from mupscale.engines.keeper import fork_kept
from mupscale.engines.wire import framed, read_message


def main() -> None:
    fork_kept(driver=int(sys.argv[1]))
    requests, answers = _protected_pipes()
    setup = read_message(requests)
    if setup is not None:
        _set_up(**json.loads(setup))
        try:
            _serve(requests, answers)
        except BrokenPipeError:  # the driver has gone: nobody is left to tell
            os._exit(1)


def _protected_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the driver, out of reach of jobs that print, read their input, or start
    processes.
    """
    requests, answers = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    # A process that a job forks must not keep them open: the driver knows by their end that this
    # one has died.
    os.register_at_fork(
        after_in_child=lambda: [os.dup2(nowhere, pipe) for pipe in (requests, answers)]
    )
    return os.fdopen(requests, "rb"), os.fdopen(answers, "wb")


def _set_up(path: list[str], pythonpath: str | None, memory_limit: int | None) -> None:
    sys.path[:] = path
    if pythonpath is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = pythonpath
    if memory_limit is not None:
        _limit_memory(memory_limit)


def _limit_memory(limit: int) -> None:
    """Of what is allocated: a limit on the address space counts torch's libraries too, and CUDA
    cannot start in it.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(
        resource.RLIMIT_DATA, (limit if most == resource.RLIM_INFINITY else min(limit, most), most)
    )


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    function = _once(read_message(requests) or b"")
    while (payload := read_message(requests)) is not None:
        text = answer(lambda payload=payload: function()(cloudpickle.loads(payload)))
        answers.write(framed(text.encode()))
        answers.flush()


def _once(pickled: bytes) -> Callable[[], Callable[[Any], Any]]:
    """The function, loaded inside the first job: an import that fails is then the job's answer."""
    loaded: list[Callable[[Any], Any]] = []

    def load() -> Callable[[Any], Any]:
        if not loaded:
            loaded.append(cloudpickle.loads(pickled))
        return loaded[0]

    return load


if __name__ == "__main__":
    main()
