"""What a job answers, as JSON: its result, or the error that it ended with. Nothing that comes back
is unpickled.
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
    """Carry out a job, whatever happens in it."""
    try:
        return _encoded(call())
    except BaseException as error:  # a job that calls sys.exit must not end the worker
        return json.dumps({"error": _described(error)})


def outcome_of(job: str, text: str, attempts: int = 1) -> Outcome:
    """What an answer says: a result, or the error as it was raised."""
    try:
        read = json.loads(text, parse_constant=_refusing(job))
    except NonFiniteError as error:
        return Outcome(job, failure=Failure("error", error), attempts=attempts)
    if "error" not in read:
        return Outcome(job, read["result"], attempts=attempts)
    kind = "oom" if read["error"]["memory"] else "error"
    return Outcome(job, failure=Failure(kind, _revived(job, read["error"])), attempts=attempts)


def called_here(job: str, function: Callable[[Any], Any], payload: Any) -> Outcome:
    """The same in this process: the same results and errors, which here keep their real
    tracebacks.
    """
    try:
        text = _encoded(function(payload))
    except MupscaleError as error:
        error.add_note(f"in job {job!r}")
        return Outcome(job, failure=Failure("oom" if _is_of_memory(error) else "error", error))
    except (Exception, SystemExit) as error:
        failure = Failure(
            "oom" if _is_of_memory(error) else "error", _revived(job, _described(error))
        )
        failure.error.__cause__ = error
        return Outcome(job, failure=failure)
    return outcome_of(job, text)


def _is_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, by the error or its cause: Python's, numpy's, the system's, torch's
    on any device.
    """
    if error is None:
        return False
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or any(
            kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__
        )  # torch's, which is not imported
        or (
            isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
        )  # torch's on a CPU
        or _is_of_memory(error.__cause__)
    )


def _encoded(result: Any) -> str:
    """NaN passes here, for the reader to refuse: it knows the job."""
    try:
        return json.dumps({"result": result})
    except (TypeError, ValueError, RecursionError) as error:
        fix = "Return numbers, strings, None, and lists and dictionaries of these."
        raise TypeError(f"the result cannot be written as JSON: {error}. {fix}") from None


def _refusing(job: str) -> Callable[[str], Any]:
    def refuse(constant: str) -> Any:
        raise NonFiniteError(
            f"job {job!r}: its result holds {constant}, which JSON cannot carry. Return None "
            "instead."
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
    """A traceback from where the job's own code begins."""
    while (
        frames is not None
        and Path(frames.tb_frame.f_code.co_filename).parent == Path(__file__).parent
    ):
        frames = frames.tb_next
    return frames


def _revived(job: str, described: dict[str, Any]) -> MupscaleError:
    """The error as it was, when it is one of ours; else a JobError that tells of it."""
    if described["classes"]:
        kind = _nearest(described["classes"])
        # Not by __init__, which in some classes composes another message from its arguments.
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
