"""Rules by name, and rules as JSON files: a calibrated choice with its evidence.

A file has the choices of a rule and `evidence`: the exponent γ of ((1 + √r)/2)^γ, or the exponents
of batch and tokens, with their intervals and the runs that measured them. A file that contradicts
itself raises an error: a choice that was edited by hand is no longer the measured one.
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
from mupscale.theory.rules import EVIDENCE, NEWER, RULES, Rule
from mupscale.theory.runs import RUN_FIELDS

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


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """How the exponents of batch B and tokens D were measured."""

    exponents: Mapping[str, tuple[float, float, float]]
    """By value and axis, with the ends of the interval: {"lr.batch": (0.43, 0.4, 0.46)}."""
    ranges: Mapping[str, tuple[float, float]]
    "The smallest and the largest of each axis, in tokens."
    fits: tuple[str, ...]
    "The interval contains those of all of them."
    runs: int
    seeds: int
    study: str
    "Fingerprint of the studies."
    also: str = ""
    "Evidence of the rule that the calibration started from."

    def __post_init__(self) -> None:
        for name, ends in self.exponents.items():
            numbers = [one for one in ends if isinstance(one, int | float) and math.isfinite(one)]  # pyright: ignore[reportUnnecessaryIsInstance]
            if len(numbers) != 3 or not numbers[1] <= numbers[0] <= numbers[2]:
                raise OptionError(
                    f"the exponent {name} = {ends} is not a number with its interval. Calibrate "
                    "again."
                )
            value, _, axis = name.partition(".")
            if value not in RUN_FIELDS or axis not in self.ranges or axis not in _SYMBOLS:
                raise OptionError(
                    f"the exponent {name} is not one of lr or weight_decay over batch or tokens, "
                    "with a range. Calibrate again."
                )

    @property
    def formula(self) -> str:
        """The choice for batch and tokens.

        >>> RunEvidence(
        ...     exponents={"lr.batch": (0.43, 0.4, 0.46), "lr.tokens": (-0.2, -0.3, -0.1)},
        ...     ranges={"batch": (512, 8192), "tokens": (1e6, 8e6)},
        ...     fits=("cubic",), runs=9, seeds=3, study="",
        ... ).formula
        'lr=B**0.43*D**-0.2'
        """
        parts: dict[str, list[str]] = {}
        for name, (value, *_) in self.exponents.items():
            field, _, axis = name.partition(".")
            parts.setdefault(field, []).append(f"{_SYMBOLS[axis]}**{value:g}")
        return ", ".join(f"{field}={'*'.join(powers)}" for field, powers in parts.items())

    def __str__(self) -> str:
        each = ", ".join(
            f"{name.partition('.')[0]} ∝ {_SYMBOLS[name.partition('.')[2]]}^{value:.2f} "
            f"[{low:.2f}, {high:.2f}]"
            for name, (value, low, high) in self.exponents.items()
        )
        sizes = " and ".join(
            f"{axis} from {low:,.0f} to {high:,.0f}" for axis, (low, high) in self.ranges.items()
        )
        also = f"; {self.also}" if self.also else ""
        return f"{each}, measured over {sizes} ({self.runs} runs, {self.seeds} seeds){also}"


_SYMBOLS = {"batch": "B", "tokens": "D"}

AnyEvidence = CalibrationEvidence | RunEvidence


def exponent_formula(gamma: float) -> str:
    """The key/value factor with this exponent.

    >>> exponent_formula(0.25)
    '((1 + sqrt(r))/2)**0.25'
    """
    return f"((1 + sqrt(r))/2)**{round(gamma, DIGITS):g}"


def write_rule(path: Path, rule: Rule, evidence: AnyEvidence) -> None:
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


def with_run(rule: Rule, choice: str | None) -> Rule:
    """The rule with another choice for batch and tokens; a .json file gives the measured one."""
    if choice is None or not choice.endswith(".json"):
        return rule.with_(run=choice)
    measured = read_rule(choice)
    if measured.run == "none":
        raise OptionError(
            f"rule {choice} says nothing about batch and tokens. mupscale calibrate --over "
            "batch,tokens writes one that does."
        )
    changed = rule.with_(run=measured.run)
    return dataclasses.replace(changed, run_ranges=measured.run_ranges, evidence=measured.evidence)


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
    choices: dict[str, Any] = {**NEWER, **fields}
    known = [field.name for field in dataclasses.fields(Rule) if field.name not in EVIDENCE]
    _check_fields("rule", choices, known)
    if isinstance(evidence, RunEvidence):
        _check_measured("run", choices["run"], evidence.formula, "the exponents")
        ranges = tuple((axis, *ends) for axis, ends in evidence.ranges.items())
        return Rule(**choices, evidence=str(evidence), run_ranges=ranges)
    expected = exponent_formula(evidence.gamma)
    _check_measured("kv_factor", choices["kv_factor"], expected, f"gamma = {evidence.gamma:g}")
    return Rule(**choices, evidence=str(evidence))


def _check_measured(choice: str, given: str, expected: str, measured: str) -> None:
    if given != expected:
        raise OptionError(
            f"{choice} = {given!r} does not match {measured}: the file was edited. Calibrate "
            f"again, or pass --{choice.replace('_', '-')} {given!r} instead of the file."
        )


def _evidence(fields: Any) -> AnyEvidence:
    if not isinstance(fields, dict):
        raise OptionError("it has no evidence. mupscale calibrate writes it.")
    values = dict(cast(dict[str, Any], fields))
    kind = RunEvidence if "exponents" in values else CalibrationEvidence
    _check_fields("evidence", values, [field.name for field in dataclasses.fields(kind)])
    for name in ("swept", "repetitions", "fits"):
        if name in values:
            values[name] = tuple(_listed(name, values[name]))
    for name in ("exponents", "ranges"):
        if name in values:
            if not isinstance(values[name], dict):
                raise OptionError(f"evidence.{name} = {values[name]!r} is not a table.")
            table = cast(dict[str, Any], values[name])
            values[name] = {key: tuple(_listed(f"{name}.{key}", v)) for key, v in table.items()}
    return kind(**values)


def _listed(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise OptionError(f"evidence.{name} = {value!r} is not a list.")
    return cast(list[Any], value)


def _check_fields(where: str, values: Mapping[str, Any], known: list[str]) -> None:
    for name in values:
        if name not in known:
            raise UnknownNameError(f"part of the {where}", name, known)
    missing = [name for name in known if name not in values]
    if missing:
        raise OptionError(f"the {where} lacks {', '.join(missing)}.")
