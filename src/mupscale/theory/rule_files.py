"""Rules by name, and rules as files: what a calibration found, with what it rests on.

A file is JSON: the choices of a rule, and `evidence`, the exponent γ of ((1 + √r)/2)^γ with its
interval and the runs it was measured with. A file whose parts contradict each other is refused: a
factor that was changed by hand is no longer what was measured.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from mupscale.errors import OptionError, UnknownNameError
from mupscale.records import write_whole
from mupscale.theory.rules import RULES, Rule

FORMAT = "mupscale rule"
VERSION = 1
DIGITS = 4
"""Of γ in a file: more than any interval warrants."""

_ASKED = {
    "still": "the optimal learning rate stays still over r",
    "loss": "the loss at its own optimal learning rate is lowest",
}


@dataclass(frozen=True, kw_only=True)
class CalibrationEvidence:
    """What a calibrated factor rests on."""

    gamma: float
    low: float
    high: float
    question: Literal["still", "loss"]
    "What γ was chosen for."
    swept: tuple[float, float]
    "The least and the largest γ that were tried."
    repetitions: tuple[int, ...]
    "The r that were tried, the base's first."
    runs: int
    seeds: int
    study: str
    "Fingerprint of what was run."

    def __post_init__(self) -> None:
        numbers: tuple[Any, ...] = (
            self.gamma,
            self.low,
            self.high,
            *self.swept,
        )  # as a file has them
        if len(numbers) != 5 or not all(
            isinstance(one, int | float) and math.isfinite(one) for one in numbers
        ):
            raise OptionError(
                f"gamma = {self.gamma} [{self.low}, {self.high}] is not bounded by numbers."
            )
        if not self.swept[0] <= self.gamma <= self.swept[1]:
            raise OptionError(
                f"gamma = {self.gamma:g} lies outside of what was swept, {self.swept}. Calibrate "
                "anew."
            )
        if not self.low <= self.gamma <= self.high:
            raise OptionError(
                f"gamma = {self.gamma:g} lies outside of its own interval [{self.low:g}, "
                f"{self.high:g}]."
            )
        if self.question not in _ASKED:
            raise UnknownNameError("question", self.question, _ASKED)

    def __str__(self) -> str:
        tried = ", ".join(map(str, self.repetitions))
        return (
            f"γ = {self.gamma:.2f} [{self.low:.2f}, {self.high:.2f}] of ((1 + √r)/2)^γ, measured: "
            "with it "
            f"{_ASKED[self.question]} ({self.runs} runs, {self.seeds} seeds, r = {tried})"
        )


def exponent_formula(gamma: float) -> str:
    """The key/value factor with this exponent.

    >>> exponent_formula(0.25)
    '((1 + sqrt(r))/2)**0.25'
    """
    return f"((1 + sqrt(r))/2)**{round(gamma, DIGITS):g}"


def write_rule(path: Path, rule: Rule, evidence: CalibrationEvidence) -> None:
    """Whole or not at all."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        **rule.choices,
        "evidence": dataclasses.asdict(evidence),
    }
    write_whole(
        path, (json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode()
    )


def read_rule(path: str | Path) -> Rule:
    """The rule in a file, with what it rests on as its reason."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise OptionError(
            f"rule {path}: {error.strerror or error}. mupscale calibrate writes one."
        ) from error
    except ValueError as error:
        raise OptionError(
            f"rule {path} is not a rule: {error}. mupscale calibrate writes one."
        ) from error
    try:
        return _rule(content)
    except (OptionError, UnknownNameError) as error:
        raise OptionError(f"rule {path}: {error}") from error


def rule_named(name: str) -> Rule:
    """The preset of that name, or the rule in a .json file.

    >>> rule_named("mup").decay
    'none'
    """
    known = RULES.get(name.lower().replace("_", "-"))
    if known is not None:
        return known
    if name.endswith(".json"):
        return read_rule(name)
    raise UnknownNameError("rule", name, [*RULES, "FILE.json"])


def _refuse(constant: str) -> Any:
    raise ValueError(f"it holds {constant}")


def _rule(content: Any) -> Rule:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise OptionError(
            f'it is not a rule: there is no "format": "{FORMAT}" in it. mupscale calibrate writes '
            "one."
        )
    given = cast(dict[str, Any], content)
    if given.get("version") != VERSION:
        raise OptionError(
            f"it has version {given.get('version')!r}; this mupscale reads {VERSION}. Calibrate "
            "anew."
        )
    choices = {
        key: value for key, value in given.items() if key not in ("format", "version", "evidence")
    }
    known = [field.name for field in dataclasses.fields(Rule) if field.name != "evidence"]
    _check_fields("rule", choices, known)
    evidence = _evidence(given.get("evidence"))
    if choices["kv_factor"] != exponent_formula(evidence.gamma):
        raise OptionError(
            f"kv_factor = {choices['kv_factor']!r} is not that of gamma = {evidence.gamma:g}: the "
            "file was changed. "
            f"Calibrate anew, or pass --kv-factor {choices['kv_factor']!r} instead of the file."
        )
    return Rule(**choices, evidence=str(evidence))


def _evidence(given: Any) -> CalibrationEvidence:
    if not isinstance(given, dict):
        raise OptionError("it has no evidence. mupscale calibrate writes it.")
    values = dict(cast(dict[str, Any], given))
    _check_fields(
        "evidence", values, [field.name for field in dataclasses.fields(CalibrationEvidence)]
    )
    for name in ("swept", "repetitions"):
        if not isinstance(values[name], list):
            raise OptionError(f"evidence.{name} = {values[name]!r} is not a list.")
        values[name] = tuple(cast(list[Any], values[name]))
    return CalibrationEvidence(**values)


def _check_fields(where: str, values: Mapping[str, Any], known: list[str]) -> None:
    for name in values:
        if name not in known:
            raise UnknownNameError(f"part of the {where}", name, known)
    missing = [name for name in known if name not in values]
    if missing:
        raise OptionError(f"the {where} lacks {', '.join(missing)}.")
