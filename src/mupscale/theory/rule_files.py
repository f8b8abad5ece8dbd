"""Rules by name, and rules as JSON files: a calibrated factor with its evidence.

A file has the choices of a rule and `evidence`: the exponent γ of ((1 + √r)/2)^γ, its interval and
the runs that measured it. A file that contradicts itself raises an error: a factor that was edited
by hand is no longer the measured one.
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
from mupscale.theory.rules import NEWER, RULES, Rule

FORMAT = "mupscale rule"
VERSION = 1
DIGITS = 4
"""Decimals of γ in a file: more than any interval warrants."""

_ASKED = {
    "still": "the optimal learning rate stays still over r",
    "loss": "the loss at its own optimal learning rate is lowest",
}


@dataclass(frozen=True, kw_only=True)
class CalibrationEvidence:
    """How a calibrated factor was measured."""

    gamma: float
    low: float
    high: float
    question: Literal["still", "loss"]
    "What γ optimizes."
    swept: tuple[float, float]
    "The smallest and the largest γ tried."
    repetitions: tuple[int, ...]
    "The r tried, the base's first."
    runs: int
    seeds: int
    study: str
    "Fingerprint of the study."

    def __post_init__(self) -> None:
        # A file may hold anything here.
        numbers: tuple[Any, ...] = (self.gamma, self.low, self.high, *self.swept)
        finite = [isinstance(one, int | float) and math.isfinite(one) for one in numbers]
        if len(numbers) != 5 or not all(finite):
            raise OptionError(
                f"gamma = {self.gamma} [{self.low}, {self.high}] must have a finite interval."
            )
        if not self.swept[0] <= self.gamma <= self.swept[1]:
            raise OptionError(
                f"gamma = {self.gamma:g} lies outside {self.swept}, the range that was swept. "
                "Calibrate again."
            )
        if not self.low <= self.gamma <= self.high:
            raise OptionError(
                f"gamma = {self.gamma:g} lies outside its own interval [{self.low:g}, "
                f"{self.high:g}]. Calibrate again."
            )
        if self.question not in _ASKED:
            raise UnknownNameError("question", self.question, _ASKED)

    def __str__(self) -> str:
        tried = ", ".join(map(str, self.repetitions))
        return (
            f"γ = {self.gamma:.2f} [{self.low:.2f}, {self.high:.2f}] of ((1 + √r)/2)^γ, measured: "
            f"with it {_ASKED[self.question]} ({self.runs} runs, {self.seeds} seeds, r = {tried})"
        )


def exponent_formula(gamma: float) -> str:
    """The key/value factor with this exponent.

    >>> exponent_formula(0.25)
    '((1 + sqrt(r))/2)**0.25'
    """
    return f"((1 + sqrt(r))/2)**{round(gamma, DIGITS):g}"


def write_rule(path: Path, rule: Rule, evidence: CalibrationEvidence) -> None:
    """Write a rule file atomically."""
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
    """The rule in a file, with its evidence as text."""
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
    """The preset with this name, or the rule in a .json file.

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
            f'it is not a rule: "format": "{FORMAT}" is missing. mupscale calibrate writes one.'
        )
    fields = dict(cast(dict[str, Any], content))
    del fields["format"]
    version = fields.pop("version", None)
    if version != VERSION:
        raise OptionError(
            f"it has version {version!r}; this mupscale reads {VERSION}. Calibrate again."
        )
    evidence = _evidence(fields.pop("evidence", None))
    choices = fields
    known = [field.name for field in dataclasses.fields(Rule) if field.name != "evidence"]
    _check_fields("rule", dict(NEWER) | choices, known)
    if choices["kv_factor"] != exponent_formula(evidence.gamma):
        raise OptionError(
            f"kv_factor = {choices['kv_factor']!r} does not match gamma = {evidence.gamma:g}: the "
            f"file was edited. Calibrate again, or pass --kv-factor {choices['kv_factor']!r} "
            "instead of the file."
        )
    return Rule(**choices, evidence=str(evidence))


def _evidence(fields: Any) -> CalibrationEvidence:
    if not isinstance(fields, dict):
        raise OptionError("it has no evidence. mupscale calibrate writes it.")
    values = dict(cast(dict[str, Any], fields))
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
