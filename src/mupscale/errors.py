"""The exceptions that a user can cause, in one tree.

Every message names the thing, its value, the expected value, and the fix. `exit_status` is what the
command line returns: 2 for wrong use, 4 if a result could not be written.
"""

import difflib
from collections.abc import Iterable


class MupscaleError(Exception):
    """The root: catch it to catch all errors that mupscale raises on purpose."""

    exit_status = 2


class DimensionError(MupscaleError, ValueError):
    """An invalid width, depth, shape or number of repetitions."""


class UnknownNameError(MupscaleError, LookupError):
    """An unknown name, with the nearest known one; `aliases` can be suggested, but are not listed.

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


def check_arguments(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """For a function that takes the fields of its groups of options by name.

    >>> check_arguments("transfer", ["token"], ["tokens", "clip"])
    Traceback (most recent call last):
    mupscale.errors.UnknownNameError: unknown argument of transfer 'token'. Did you mean 'tokens'? \
Known: clip, tokens.
    """
    known = sorted(known)
    for name in given:
        if name not in known:
            raise UnknownNameError(f"argument of {function}", name, known)


class OptionError(MupscaleError, ValueError):
    """A setting with an invalid value."""


class NotDerivedError(MupscaleError):
    """A combination of unit and optimizer for which no rule exists."""


class NotExactError(MupscaleError):
    """A reparametrization that would change the training."""


class PlanMismatchError(MupscaleError):
    """A model, optimizer or file that does not match the plan."""


class UnreadableModelError(MupscaleError):
    """A model that has unknown parameters, or contradicts its config."""


class NonFiniteError(MupscaleError, ValueError):
    """NaN or infinity where a number is needed."""


class MissingExtraError(MupscaleError, ImportError):
    """An optional dependency that is not installed, with the command that installs it.

    >>> MissingExtraError("matplotlib", "report").args[0]
    "matplotlib is not installed. Install it with: pip install 'mupscale[report]'"
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed. Install it with: pip install 'mupscale[{extra}]'"
        )


class InterruptedRunError(MupscaleError):
    """A run that was asked to stop, and can resume; the exit status is 128 + the signal's
    number.
    """

    def __init__(self, signal: int, step: int, folder: str) -> None:
        super().__init__(
            f"stopped after step {step}, saved in {folder}. Run the same command to resume."
        )
        self.exit_status = 128 + signal


class JobError(MupscaleError):
    """A job that failed, or whose worker died in every attempt."""


class InterruptedJobsError(MupscaleError):
    """Jobs that were asked to stop; the exit status is 128 + the signal's number.

    >>> InterruptedJobsError(15, 3, 8, "runs/jobs.jsonl").args[0]
    'stopped with 3 of 8 jobs done. Results are in runs/jobs.jsonl. Run the same command to resume.'
    """

    def __init__(self, signal: int, done: int, total: int, ledger: str | None) -> None:
        kept = f"Results are in {ledger}. Run the same command to resume."
        if ledger is None:
            kept = "Their results are lost, because there is no ledger."
        super().__init__(f"stopped with {done} of {total} jobs done. {kept}")
        self.exit_status = 128 + signal


class StudyFailedError(MupscaleError):
    """A study in which no trial ran."""

    exit_status = 1


class StorageError(MupscaleError, OSError):
    """A result that could not be written; what was there before is intact."""

    exit_status = 4
