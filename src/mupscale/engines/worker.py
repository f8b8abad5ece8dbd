"""`python -m mupscale.engines.worker`: a process that reads jobs from its input until that ends.

The first message has the settings, the second the function. Each further message is a job, which
the worker answers.
"""

import json
import os
import resource
import sys
from functools import cache
from typing import BinaryIO

import cloudpickle

from mupscale.engines.answers import answer
from mupscale.engines.keeper import fork_kept
from mupscale.engines.wire import framed, read_message


def main() -> None:
    fork_kept(driver=int(sys.argv[1]))
    requests, answers = _protected_pipes()
    setup = read_message(requests)
    if setup is not None:
        _set_up(*json.loads(setup))
        try:
            _serve(requests, answers)
        except BrokenPipeError:  # the driver has gone
            os._exit(1)


def _protected_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the driver, moved away from jobs that print, read their input, or start
    processes.
    """
    requests, answers = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    # A process that a job forks must not keep them open: the driver learns from their end that this
    # process has died.
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
    """Of allocations: a limit on the address space would count torch's libraries too, and keep CUDA
    from starting.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, most))


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    pickled = read_message(requests) or b""
    # Loaded inside the first job, so that an import that fails is the answer of the job.
    function = cache(lambda: cloudpickle.loads(pickled))
    while (payload := read_message(requests)) is not None:
        text = answer(lambda payload=payload: function()(cloudpickle.loads(payload)))
        answers.write(framed(text.encode()))
        answers.flush()


if __name__ == "__main__":
    main()
