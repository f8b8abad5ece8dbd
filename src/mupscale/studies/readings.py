"""Reads the losses of a command: from its output or from a file, as JSON lines or by a regular
expression.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, cast

from mupscale.errors import OptionError, UnknownNameError
from mupscale.studies.curves import LossCurve
from mupscale.studies.names import inside, plain

LONGEST_LINE = 10_000
"""Longer lines (in bytes) are skipped: no report is that long, and a regular expression may take
very long on them.
"""

GROUPS = ("loss", "validation_loss", "step", "steps", "tokens")
_VALIDATION = ("validation_loss", "eval_loss")
_CHUNK = 1 << 16


class Lines:
    """Splits bytes, as they come, into lines. Lines that are too long are dropped early."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[str]:
        r"""The lines that `chunk` completes; a carriage return ends a line too, for progress bars.

        >>> lines = Lines()
        >>> lines.feed(b"step 1\nste"), lines.feed(b"p 2\rstep 3\n")
        (['step 1'], ['step 2', 'step 3'])
        """
        *whole, rest = re.split(rb"[\r\n]+", self._rest + chunk)
        self._rest = rest[: LONGEST_LINE + 1]
        return [line.decode(errors="replace") for line in whole if 0 < len(line) <= LONGEST_LINE]

    def end(self) -> list[str]:
        """A last line without an end."""
        return self.feed(b"\n")


class MetricReader:
    """Finds losses in the lines that a command prints or, with a path, in the file that it appends
    them to and may also replace.
    """

    def __init__(
        self, described: str, report: Callable[[str], Mapping[str, Any]], path: Path | None = None
    ) -> None:
        self.described, self._report, self._path = described, report, path
        self._file, self._read, self._lines = 0, 0, Lines()

    def printed(self, chunk: bytes, curve: LossCurve) -> None:
        """Add to the curve what was printed."""
        for line in self._lines.feed(chunk) if self._path is None else ():
            tell(self._report(line), curve)

    def look(self, curve: LossCurve, last: bool) -> None:
        """Add to the curve what is in the file; `last` if the command has ended."""
        for line in self._new_lines(curve):
            tell(self._report(line), curve)
        for line in self._lines.end() if last else ():
            tell(self._report(line), curve)

    def _new_lines(self, curve: LossCurve) -> Iterator[str]:
        try:
            file = self._path.open("rb") if self._path else None
        except OSError:  # it does not exist yet
            file = None
        if file is None:
            return
        with file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._file or found.st_size < self._read:
                curve.clear()
                self._file, self._read, self._lines = found.st_ino, 0, Lines()
            file.seek(self._read)
            while chunk := file.read(_CHUNK):
                self._read += len(chunk)
                yield from self._lines.feed(chunk)


def metrics_in(text: Any, folder: Path) -> MetricReader:
    """The reader for "json", "file:NAME" in the trial's folder, or "regex:…" with a group named
    loss.
    """
    kind, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    if text == "json":
        return MetricReader('lines of JSON with a "loss" in the output', _json_object)
    if kind == "file":
        names = [plain("metrics file", name) for name in rest.split("/")]
        described = f'lines of JSON with a "loss" in the file {rest}'
        return MetricReader(described, _json_object, inside(folder, *names))
    if kind == "regex":
        return MetricReader(f"lines of the output that match {rest!r}", _matched(_pattern(rest)))
    raise OptionError(
        f'trainer.metrics = {text!r} does not say where the losses are. Write "json" (lines of '
        'JSON in the output), "file:metrics.jsonl" (in the folder of the trial), or '
        '"regex:loss (?P<loss>[0-9.]+)".'
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise OptionError(
            f"trainer.metrics: {text!r} is not a regular expression: {error}."
        ) from error
    for name in pattern.groupindex:
        if name not in GROUPS:
            raise UnknownNameError("group in trainer.metrics", name, GROUPS)
    if "loss" not in pattern.groupindex:
        raise OptionError(
            f"trainer.metrics: {text!r} has no group for the loss. Write, for example, "
            "loss (?P<loss>[0-9.]+)."
        )
    return pattern


def _matched(pattern: re.Pattern[str]) -> Callable[[str], Mapping[str, Any]]:
    """All matches in one line are one report."""

    def report(line: str) -> Mapping[str, Any]:
        groups = (match.groupdict().items() for match in pattern.finditer(line))
        return {name: text for found in groups for name, text in found if text is not None}

    return report


def tell(report: Mapping[str, Any], curve: LossCurve) -> None:
    """Add the report of one line to the curve; what is not a number is ignored. Raises as the curve
    does.

    >>> curve = LossCurve()
    >>> tell({"loss": "2.5", "step": 10, "steps": 40}, curve)
    >>> curve.loss, curve.step, curve.steps
    (2.5, 10, 40)
    """
    step = count(report.get("step"))
    curve.steps = count(report.get("steps")) or curve.steps
    curve.tokens = count(report.get("tokens")) or curve.tokens
    loss = number(report["loss"]) if "loss" in report else None
    if report.get("diverged") is True:
        loss = math.nan
    if loss is not None:
        curve.add(loss, step)
    for name in _VALIDATION:
        value = number(report[name]) if name in report else None
        if value is not None:
            curve.add(value, step, validation=True)


def _json_object(line: str) -> Mapping[str, Any]:
    if not line.lstrip().startswith("{"):
        return {}
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return cast(Mapping[str, Any], found) if isinstance(found, Mapping) else {}


def number(value: Any) -> float | None:
    """NaN for null, which represents it in strict JSON; None for anything but a number."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, Real | str):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None


def count(value: Any) -> int | None:
    """A whole number, at least 0; None for anything else.

    >>> count("12"), count(-1), count("many")
    (12, None, None)
    """
    found = number(value)
    return int(found) if found is not None and 0 <= found < math.inf else None
