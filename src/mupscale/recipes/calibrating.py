"""Calibration: which exponent γ of ((1 + √r)/2)^γ fits a proxy's key/value heads?

At the base's r every γ is the same training, so that is one cell in a study of its own. A second
study has every γ at every other r. Both resume, as all studies do.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mupscale.analysis.exponents import (
    Exponents,
    Factored,
    Question,
    fit_exponents,
    log2_paper_factor,
)
from mupscale.errors import DimensionError, OptionError
from mupscale.recipes.shapes import ModelShape
from mupscale.recipes.swept import named_shape, swept_under
from mupscale.studies import Study, StudyConfig
from mupscale.studies.measured import measured, member_label
from mupscale.studies.planning import with_reading
from mupscale.studies.searching import grid
from mupscale.theory import Rule, derive
from mupscale.theory.formulas import r as repetitions_symbol
from mupscale.theory.rule_files import DIGITS, CalibrationEvidence, exponent_formula
from mupscale.training import lengths
from mupscale.training.config import rule_from

GAMMAS = (-1.0, 0.0, 1.0, 2.0)
"""The older rules (0), the paper's (1), and as far again on either side: an answer at the end of
the range is not an answer, so both must lie inside."""

BASE, FACTORS = "base", "factors"
"""Folders of the two studies."""


@dataclass(frozen=True)
class Calibration:
    """The two studies: one of the base, one of every γ at every other r."""

    base: StudyConfig
    factors: StudyConfig

    @property
    def parts(self) -> dict[str, StudyConfig]:
        return {BASE: self.base, FACTORS: self.factors}

    def studies(self, folder: Path | str) -> list[Study]:
        """Both studies in their folders, created if needed."""
        return [Study.create(config, Path(folder) / name) for name, config in self.parts.items()]

    def runs(self) -> int | None:
        """Number of runs; None for a search that decides by itself when to stop."""
        counts = [planned_runs(config) for config in self.parts.values()]
        return None if None in counts else sum(count or 0 for count in counts)

    def tokens(self) -> float | None:
        """Tokens of all runs; None if a custom trainer decides, or the number of runs is open."""
        if self.runs() is None or self.base.trainer is not None:
            return None
        return float(sum(planned_tokens(config) for config in self.parts.values()))

    def fingerprint(self) -> str:
        """A hash of everything that determines the result."""
        content = {name: config.identity() for name, config in self.parts.items()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @staticmethod
    def open(folder: Path) -> "Calibration":
        """Open an existing calibration."""
        base, factors = (Study.open(folder / name).config for name in (BASE, FACTORS))
        return Calibration(base, factors)


def is_calibration(folder: Path) -> bool:
    return all((folder / name / "study.toml").exists() for name in (BASE, FACTORS))


def calibration(
    values: Mapping[str, Any], *, gammas: Sequence[float] = GAMMAS, repetitions: Sequence[int] = ()
) -> Calibration:
    """A calibration of the proxy that the tables of a study describe.

    The study's rule keeps all its choices except the key/value factor. `repetitions` are values of
    r, the base's first (default: chosen by the number of heads).
    """
    given = dict(values)
    given["search"] = {"method": "grid"} | dict(given.get("search", {}))
    config = with_reading(StudyConfig.from_dict(given))
    rule = only_rule(config)
    _check_gammas(gammas)
    dimension, heads, first = _dimension(config), _heads(config), _base_r(config)
    tried = _repetitions(repetitions, config, heads, first)
    space = {**config.space, **config.rule_space.get(config.cells()[0].rule_name, {})}
    if set(space) != {"lr"}:
        raise OptionError(
            f"space has {', '.join(space)}, a calibration searches lr alone. Leave the rest out."
        )
    tables = _with_base(config, tried[0])
    common = {"space": space, "rule_space": {}, "tables": tables}

    def part(name: str, rules: list[dict[str, Any]], levels: Sequence[int]) -> StudyConfig:
        sizes = tuple(heads // r if heads and dimension == "n_kv_heads" else r for r in levels)
        named = f"{config.name[:50]}-{name}"
        return dataclasses.replace(
            config, name=named, rules=tuple(rules), vary={dimension: sizes}, **common
        )

    own = {key: value for key, value in rule.choices.items() if key not in ("name", "kv_factor")}
    rules = [
        {"name": f"gamma_{gamma:g}", "kv_factor": exponent_formula(gamma), **own}
        for gamma in gammas
    ]
    base = [{"name": "base", "kv_factor": "hidden", **own}]
    return Calibration(part(BASE, base, tried[:1]), part(FACTORS, rules, tried[1:]))


# The proxy


def only_rule(config: StudyConfig) -> Rule:
    """The rule that a calibration starts from."""
    rule, *others = config.rules
    if others or config.variants:
        names = ", ".join(dict.fromkeys(cell.rule_name for cell in config.cells()))
        raise OptionError(
            f"the study has several rules or variants ({names}). A calibration starts from one: "
            "choose it with --rule, and leave out [[variants]]."
        )
    return rule_from(rule)


def _check_gammas(gammas: Sequence[float]) -> None:
    listed = ", ".join(f"{gamma:g}" for gamma in gammas)
    if len(set(gammas)) < 3 or len(set(gammas)) < len(gammas):
        raise OptionError(
            f"gammas = {listed}: give at least three different ones, such as -1, 0, 1, 2."
        )
    if not all(math.isfinite(gamma) and abs(gamma) <= 10 for gamma in gammas):
        raise OptionError(f"gammas = {listed}: give numbers between -10 and 10.")


def _dimension(config: StudyConfig) -> str:
    other = [name for name in config.vary if name not in ("r", "n_kv_heads")]
    if other or len(config.vary) > 1:
        raise OptionError(
            f"vary has {', '.join(config.vary)}: a calibration varies n_kv_heads or r alone."
        )
    return next(iter(config.vary), "r")


def _heads(config: StudyConfig) -> int | None:
    """Query heads of the proxy; None if only their ratio to key/value heads is known."""
    if config.trainer is None:
        return config.run_config(config.cells()[0], {"lr": 1.0}, config.seeds[0]).model.n_heads
    heads = _shape(config, config.trainer.target, {}).heads
    varied = config.vary.get("n_kv_heads", ())
    if heads is None and varied:
        first = {"n_kv_heads": varied[0]}
        return varied[0] * _shape(config, config.trainer.target, first).r
    return heads


def _shape(config: StudyConfig, name: str | None, dimensions: Mapping[str, int]) -> ModelShape:
    if name is None:
        raise OptionError(
            "the trainer names no model, so every γ would train the same. Set trainer.target, for "
            'example "hf:llama,hidden_size=64", and let the trainer use its {plan}.'
        )
    return named_shape(name, tuple(dimensions.items()), config.reading)


def _base_r(config: StudyConfig) -> int | None:
    """The base's r, if the study gives it."""
    if config.trainer is not None and config.trainer.base is not None:
        return _shape(config, config.trainer.base, {}).r
    base = config.tables.get("base", {})
    if "r" in base:
        return int(base["r"])
    if {"n_heads", "n_kv_heads"} <= base.keys():
        return int(base["n_heads"]) // int(base["n_kv_heads"])
    return None


def _repetitions(
    asked: Sequence[int], config: StudyConfig, heads: int | None, first: int | None
) -> list[int]:
    """In order, the base's r first: the requested ones, those of the study, or some that the heads
    allow.
    """
    found = sorted(set(asked or _varied(config, heads)))
    least = first if first is not None else (found[0] if found else 1)
    if heads is not None:
        found = found or [least, *_spread(heads, least)]
        _check_divides(found, heads)
    elif not found:
        raise OptionError(
            "the model's config does not give its heads, so no r can be proposed. Set them with "
            "--repetitions 1,2,4."
        )
    found = sorted({least, *found})
    if found[0] != least or len(found) < 2:
        raise DimensionError(
            f"r = {', '.join(map(str, found))}: the base has r = {least}, which must be the "
            "smallest, and at least one more is needed."
        )
    return found


def _varied(config: StudyConfig, heads: int | None) -> list[int]:
    kv_heads = config.vary.get("n_kv_heads", ())
    return [heads // k for k in kv_heads] if kv_heads and heads else list(config.vary.get("r", ()))


def _check_divides(found: Sequence[int], heads: int) -> None:
    divisors = [r for r in range(1, heads + 1) if heads % r == 0]
    wrong = [r for r in found if r not in divisors]
    if wrong:
        allowed = ", ".join(map(str, divisors))
        raise DimensionError(
            f"r = {wrong[0]} does not divide {heads} heads. Choose among {allowed}."
        )


def _spread(heads: int, least: int) -> list[int]:
    """The largest r that the heads allow, and halfway there in log2 of the factor."""
    above = [r for r in range(least + 1, heads + 1) if heads % r == 0]
    if not above:
        raise DimensionError(
            f"{heads} heads cannot be shared by more than r = {least}. Choose another proxy."
        )
    half = log2_paper_factor(above[-1], least) / 2
    return sorted({min(above, key=lambda r: abs(log2_paper_factor(r, least) - half)), above[-1]})


def _with_base(config: StudyConfig, r: int) -> dict[str, Any]:
    """Both studies have one base, which neither can infer from the sizes it varies."""
    tables = dict(config.tables)
    if config.trainer is None or config.trainer.base is None:
        tables["base"] = {
            key: v for key, v in tables.get("base", {}).items() if key != "n_kv_heads"
        } | {"r": r}
    return tables


def planned_runs(config: StudyConfig) -> int | None:
    """Number of runs; None for a search that decides by itself when to stop."""
    search, cells = config.search, config.cells()
    if search.method == "grid":
        count = sum(len(grid(cell.space, config.seeds, search.step)) for cell in cells)
        return count if search.trials is None else min(count, search.trials * len(cells))
    return (
        None if search.method == "adaptive" or search.trials is None else search.trials * len(cells)
    )


def planned_tokens(config: StudyConfig) -> float:
    """Tokens of all runs of the reference model."""
    each = [
        lengths(config.run_config(cell, {"lr": 1.0}, config.seeds[0])).tokens
        for cell in config.cells()
    ]
    return (planned_runs(config) or 0) / len(each) * sum(each)


# The results


def factored(
    studies: Iterable[Study], only: Mapping[str, Sequence[str]] | None = None
) -> list[Factored]:
    """The runs of each factor at each r; a factor that several rules share counts once.

    `only` lists the rules to take, by the name of the study.
    """
    found: dict[tuple[int, float], Factored] = {}
    cells: list[tuple[int, Rule, Sequence[Any]]] = []
    for study in studies:
        runs, _ = measured(study)
        for name in dict.fromkeys(cell.rule_name for cell in study.config.cells()):
            if only is not None and name not in only.get(study.config.name, [name]):
                continue
            swept = swept_under(study, name)
            own = [cell for cell in study.config.cells() if cell.rule_name == name]
            for cell, variant in zip(own, swept.variants, strict=True):
                label = member_label(cell)
                here = [run for run in runs if run.rule == name and run.member.label == label]
                cells.append((variant.shape.r, swept.rule, here))
    base_r = min((r for r, _, _ in cells), default=1)
    parts = dict.fromkeys(rule.kv_part for r, rule, _ in cells if r != base_r)
    if len(parts) > 1:
        raise OptionError(
            f"the rules put their factor on different heads (kv_part = {', '.join(parts)}). A "
            "calibration needs one kv_part: leave the other rules out."
        )
    for r, rule, runs in cells:
        z = 0.0 if r == base_r else log2_factor(rule, r, base_r)
        key = r, round(z, 9)
        if runs and key not in found:
            found[key] = Factored(r, z, runs)
    return list(found.values())


def log2_factor(rule: Rule, r: int, base_r: int = 1) -> float:
    """log2 of a rule's factor on the key/value rate at r, relative to the base.

    >>> log2_factor(Rule("mine", kv_factor="r"), 12, base_r=3)
    2.0
    """
    literal = rule.literal_kv_factor()
    if rule.kv_factor == "rms":
        literal = derive("kv", rule=rule).lr / derive("dense", rule=rule).lr
    if literal is None:
        return log2_paper_factor(r, base_r)
    if literal.free_symbols - {repetitions_symbol}:
        raise OptionError(
            f"kv_factor = {rule.kv_factor!r} depends on more than r. A calibration needs a "
            "function of r alone."
        )
    here, there = (float(literal.subs(repetitions_symbol, value)) for value in (r, base_r))
    return math.log2(here / there)


def answers(folder: Path | str) -> Exponents:
    """Both answers from the records of a calibration."""
    return fit_exponents(factored([Study.open(Path(folder) / name) for name in (BASE, FACTORS)]))


def calibrated_rule(
    made: Calibration, found: Exponents, question: Question
) -> tuple[Rule, CalibrationEvidence] | None:
    """The rule with the measured γ, and its evidence; None if the runs do not bound γ."""
    answer = found.answer(question)
    gamma = answer.gamma
    if gamma is None or not gamma.bounded:
        return None
    low, value, high = (round(one, DIGITS) for one in (gamma.low, gamma.value, gamma.high))
    evidence = CalibrationEvidence(
        gamma=value,
        low=low,
        high=high,
        question=question,
        swept=(round(answer.swept[0], DIGITS), round(answer.swept[1], DIGITS)),
        repetitions=tuple(sorted({int(found.base.r), *(int(cell.r) for cell in found.cells)})),
        runs=found.runs,
        seeds=found.seeds,
        study=made.fingerprint(),
    )
    choices = dict(made.factors.rules[0]) if isinstance(made.factors.rules[0], Mapping) else {}
    rule = rule_from(choices | {"name": "calibrated", "kv_factor": exponent_formula(value)})
    return dataclasses.replace(rule, evidence=str(evidence)), evidence
