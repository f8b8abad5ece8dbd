"""The exceptions that a user can cause, in one tree.

Every message names the thing, the value got, the value expected, and the fix. `exit_status` is what
the command line returns: 2 for wrong use, 4 for a disk that will not take the result.
"""

import difflib
from collections.abc import Iterable


class MupscaleError(Exception):
    """The root: catch this to catch all that mupscale raises on purpose."""

    exit_status = 2


class DimensionError(MupscaleError, ValueError):
    """A width, depth, shape or number of repetitions that cannot be."""


class UnknownNameError(MupscaleError, LookupError):
    """A name that is not known, with the nearest one that is; `aliases` are near too, but not
    listed.

    >>> UnknownNameError("optimizer", "adanw", ["sgd", "muon", "adamw"]).args[0]
    "unknown optimizer 'adanw'. Did you mean 'adamw'? Known: sgd, muon, adamw."
    """

    def __init__(
        self, kind: str, name: object, known: Iterable[str], aliases: Iterable[str] = ()
    ) -> None:
        known = list(known)
        near = difflib.get_close_matches(str(name).lower(), [*known, *aliases], n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind} {str(name)!r}.{hint} Known: {', '.join(known)}.")


class OptionError(MupscaleError, ValueError):
    """A setting whose value is wrong."""


class NotDerivedError(MupscaleError):
    """A unit and an optimizer that have no rule together."""


class NotExactError(MupscaleError):
    """A reparametrization that would change the training it claims to leave alone."""


class PlanMismatchError(MupscaleError):
    """A model, optimizer or file that is not the one that a plan was made for."""


class UnreadableModelError(MupscaleError):
    """A model with parameters that are not understood, or that contradicts its config."""


class NonFiniteError(MupscaleError, ValueError):
    """NaN or infinity where a number is needed."""


class MissingExtraError(MupscaleError, ImportError):
    """An optional dependency that is not installed, with the line that installs it.

    >>> MissingExtraError("matplotlib", "report").args[0]
    "matplotlib is not installed. Install it with: pip install 'mupscale[report]'"
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed. Install it with: pip install 'mupscale[{extra}]'"
        )


class InterruptedRunError(MupscaleError):
    """A run that was asked to stop, and can go on; the exit status is 128 + the signal's number."""

    def __init__(self, signal: int, step: int, folder: str) -> None:
        super().__init__(
            f"stopped after step {step}, which is saved in {folder}. Run the same command to go on."
        )
        self.exit_status = 128 + signal


class JobError(MupscaleError):
    """A job that failed, or whose worker died each time that it was tried."""


class InterruptedJobsError(MupscaleError):
    """Jobs that were asked to stop; the exit status is 128 + the signal's number.

    >>> InterruptedJobsError(15, 3, 8, "runs/jobs.jsonl").args[0]
    'stopped with 3 of 8 jobs done, which are kept in runs/jobs.jsonl. Run the same command to go on.'
    """

    def __init__(self, signal: int, done: int, total: int, ledger: str | None) -> None:
        kept = (
            f"which are kept in {ledger}. Run the same command to go on."
            if ledger
            else "and nothing was kept."
        )
        super().__init__(f"stopped with {done} of {total} jobs done, {kept}")
        self.exit_status = 128 + signal


class StudyFailedError(MupscaleError):
    """A study in which not one trial ran."""

    exit_status = 1


class StorageError(MupscaleError, OSError):
    """A result that could not be written; what was there before is intact."""

    exit_status = 4
