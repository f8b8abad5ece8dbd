"""The answer of a job, as JSON: its result, or the error that it raised. Nothing that comes back is
unpickled.
"""

import errno
import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from mupscale.engines.session import Failure, Outcome
from mupscale.errors import JobError, MupscaleError, NonFiniteError


def answer(call: Callable[[], Any]) -> str:
    """Run a job, and catch every error."""
    try:
        return _encoded(call())
    except BaseException as error:  # a job that calls sys.exit must not end the worker
        return json.dumps({"error": _described(error)})


def outcome_of(job: str, text: str, attempts: int = 1) -> Outcome:
    """Decode an answer: a result, or the error as it was raised."""
    try:
        read = json.loads(text, parse_constant=_refusing(job))
    except NonFiniteError as error:
        return Outcome(job, failure=Failure("error", error), attempts=attempts)
    if "error" not in read:
        return Outcome(job, read["result"], attempts=attempts)
    kind = "oom" if read["error"]["memory"] else "error"
    return Outcome(job, failure=Failure(kind, _revived(job, read["error"])), attempts=attempts)


def called_here(job: str, function: Callable[[Any], Any], payload: Any) -> Outcome:
    """Run a job in this process: the same results and errors, but with their real tracebacks."""
    try:
        text = _encoded(function(payload))
    except (Exception, SystemExit) as error:
        if isinstance(error, MupscaleError):
            error.add_note(f"in job {job!r}")
            raised = error
        else:
            raised = _revived(job, _described(error))
            raised.__cause__ = error
        return Outcome(job, failure=Failure("oom" if _is_of_memory(error) else "error", raised))
    return outcome_of(job, text)


def _is_of_memory(error: BaseException | None) -> bool:
    """Whether the error or its cause is a lack of memory: Python's, numpy's, the system's, or
    torch's on any device.
    """
    if error is None:
        return False
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        # By name, because torch is not imported here; on a CPU it has no class of its own.
        or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
        or _is_of_memory(error.__cause__)
    )


def _encoded(result: Any) -> str:
    """NaN passes here; the reader rejects it, because it knows the name of the job."""
    try:
        return json.dumps({"result": result})
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"the result cannot be written as JSON: {error}. Return numbers, strings, None, and "
            "lists and dictionaries of these."
        ) from None


def _refusing(job: str) -> Callable[[str], Any]:
    def refuse(constant: str) -> Any:
        raise NonFiniteError(
            f"job {job!r}: its result contains {constant}, which JSON cannot represent. Return "
            "None instead."
        )

    return refuse


def _described(error: BaseException) -> dict[str, Any]:
    frames = _without_engine(error.__traceback__)
    return {
        "classes": [_name(kind) for kind in type(error).__mro__ if issubclass(kind, MupscaleError)],
        "message": str(error) if isinstance(error, MupscaleError) else "",
        "exit_status": getattr(error, "exit_status", None),
        "memory": _is_of_memory(error),
        "summary": "".join(traceback.format_exception_only(error)).strip(),
        "tail": "".join(traceback.format_tb(frames, limit=-2)).rstrip(),
        "traceback": "".join(traceback.format_exception(type(error), error, frames)).rstrip(),
    }


def _without_engine(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from where the job's own code begins."""
    ours = Path(__file__).parent
    while frames is not None and Path(frames.tb_frame.f_code.co_filename).parent == ours:
        frames = frames.tb_next
    return frames


def _revived(job: str, described: dict[str, Any]) -> MupscaleError:
    """The error as it was, if it is one of ours; otherwise a JobError that describes it."""
    if described["classes"]:
        kind = _nearest(described["classes"])
        # Not by __init__, which in some classes makes the message from other arguments.
        error = kind.__new__(kind, described["message"])
        error.exit_status = described["exit_status"]
    else:
        error = JobError(
            f"job {job!r} failed with {described['summary']}\n{described['tail']}".rstrip()
        )
    error.add_note(f"in job {job!r}:\n{described['traceback']}")
    return error


def _nearest(names: list[str]) -> type[MupscaleError]:
    """The first of these classes that is loaded here; the root always is."""
    loaded = {_name(kind): kind for kind in _family(MupscaleError)}
    return next(loaded[name] for name in names if name in loaded)


def _family(kind: type[MupscaleError]) -> Iterator[type[MupscaleError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _family(child)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
