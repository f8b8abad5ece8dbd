"""Calibration over batch and tokens: how does the best rate of a proxy change with its run?

One study per batch trains every length at every rate of a grid. From all of them,
`analysis.run_exponents` measures log2 lr* = c + a·log2 B − b·log2 D, and the same for the decay if
it was searched. The measured exponents become the `run` of a rule.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.fits import FITS, Agreement, agreed, mean_over_seeds
from mupscale.analysis.run_exponents import RunExponents, SizedTable, fit_run_exponents
from mupscale.errors import DimensionError, MupscaleError, OptionError
from mupscale.recipes.calibrating import only_rule, planned_runs, planned_tokens
from mupscale.studies import Study, StudyConfig
from mupscale.studies.config import Cell
from mupscale.studies.planning import with_reading
from mupscale.theory import RunSize, derive_run
from mupscale.theory.rule_files import DIGITS, RunEvidence
from mupscale.theory.rules import Rule
from mupscale.theory.runs import PUBLISHED, RUN_CHOICES
from mupscale.training import lengths
from mupscale.training.config import RUN_SIZES, rule_from

SHIFT = 0.5
"""Octaves by which the range of rates moves up per doubling of the batch: √B. It only places the
range, so that one that is wide enough for one batch is so for all."""

_MULTIPLES = (1, 2, 4)
"""Of the study's own batch and tokens, unless others are given."""

MEASURED = ("lr", "weight_decay")


@dataclass(frozen=True)
class RunCalibration:
    """One study per batch; each has every length."""

    parts: Mapping[str, StudyConfig]

    def studies(self, folder: Path | str) -> list[Study]:
        """All studies in their folders, created if needed."""
        return [Study.create(config, Path(folder) / name) for name, config in self.parts.items()]

    def runs(self) -> int:
        return sum(planned_runs(config) or 0 for config in self.parts.values())

    def tokens(self) -> float:
        """Of all runs."""
        return sum(_tokens(config) for config in self.parts.values())

    def fingerprint(self) -> str:
        """A hash of everything that determines the result."""
        content = {name: config.identity() for name, config in self.parts.items()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @staticmethod
    def open(folder: Path) -> "RunCalibration":
        """Open an existing calibration."""
        studies = Study.open(folder).parts
        return RunCalibration({study.folder.name: study.config for study in studies})


def is_run_calibration(folder: Path) -> bool:
    """Whether a folder holds studies over batch or tokens."""
    try:
        parts = Study.open(folder).parts
    except MupscaleError:
        return False
    return bool(parts) and all(set(part.config.vary) <= set(RUN_SIZES) for part in parts)


def run_calibration(
    values: Mapping[str, Any],
    over: Sequence[str],
    *,
    batches: Sequence[int] = (),
    tokens: Sequence[int] = (),
) -> RunCalibration:
    """A calibration of the proxy that the tables of a study describe.

    `over` lists what varies: batch, tokens or both. `batches` are in sequences and `tokens` in
    tokens of the whole run (default: one, two and four times those of the study).
    """
    given = dict(values)
    given["search"] = {"method": "grid"} | dict(given.get("search", {}))
    config = with_reading(StudyConfig.from_dict(given))
    _check(config, over)
    sizes = _sizes(config, over, batches, tokens)
    length = {
        key: value
        for key, value in config.tables.get("length", {}).items()
        if key not in ("steps", "tokens_per_parameter", *RUN_SIZES)
    }
    tables = {**config.tables, "length": length}
    base = {**config.tables.get("base", {}), **{name: min(sizes[name]) for name in RUN_SIZES}}
    if config.trainer is None or config.trainer.base is None:
        tables["base"] = base
    least = min(sizes["batch"])

    def part(batch: int) -> StudyConfig:
        # Both, so that a trainer of the user's own always gets {batch} and {tokens}.
        vary = {"batch": (batch,), "tokens": sizes["tokens"]}
        low, high = config.space["lr"]
        # Whole steps of the grid, so that rates of different batches can be compared by eye.
        step = config.search.step
        move = 2.0 ** (round(SHIFT * math.log2(batch / least) / step) * step)
        space = {**config.space, "lr": (low * move, high * move)}
        name = f"{config.name[:50]}-{_folder(batch)}"
        return dataclasses.replace(
            config, name=name, vary=vary, space=space, rule_space={}, tables=tables
        )

    return RunCalibration({_folder(batch): part(batch) for batch in sizes["batch"]})


def _folder(batch: int) -> str:
    return f"batch-{batch}"


def _check(config: StudyConfig, over: Sequence[str]) -> None:
    rule = only_rule(config)
    if config.vary:
        raise OptionError(
            f"vary has {', '.join(config.vary)}. A calibration over {' and '.join(over)} varies "
            "nothing else: leave vary out."
        )
    if rule.run != "none":
        raise OptionError(
            f"the rule {rule} already scales with batch and tokens (run = {rule.run!r}). Calibrate "
            'a rule without: run = "none".'
        )
    others = set(config.space) - set(MEASURED)
    if others:
        raise OptionError(
            f"space has {', '.join(sorted(others))}. A calibration over {' and '.join(over)} "
            "searches lr, and weight_decay if you want its exponents too. Leave the rest out."
        )
    if config.search.method != "grid":
        raise OptionError(
            f"search.method = {config.search.method!r}: best rates of different runs are compared "
            'on the same grid of rates. Use "grid".'
        )


def _sizes(
    config: StudyConfig, over: Sequence[str], batches: Sequence[int], tokens: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """The batches and tokens to train, ascending; those of the study where nothing varies."""
    own = _own_sizes(config)
    found: dict[str, tuple[int, ...]] = {}
    for name, asked in (("batch", batches), ("tokens", tokens)):
        if name in over:
            chosen = asked or tuple(own[name] * multiple for multiple in _MULTIPLES)
            if len(set(chosen)) < 2 or min(chosen) < 1:
                raise DimensionError(
                    f"{name} = {', '.join(map(str, chosen))}: give at least two different whole "
                    "numbers above 0."
                )
            found[name] = tuple(sorted(set(chosen)))
        elif asked:
            raise OptionError(
                f"{name} = {', '.join(map(str, asked))}, but the calibration is over "
                f"{' and '.join(over)}. Add {name} to --over."
            )
        else:
            found[name] = (own[name],)
    sequence = config.tables.get("data", {}).get("sequence")
    if sequence and max(found["batch"]) * sequence > min(found["tokens"]):
        raise DimensionError(
            f"tokens = {min(found['tokens']):,} is less than one batch of {max(found['batch'])} "
            f"sequences of {sequence} tokens. Give longer runs or smaller batches."
        )
    return found


def _own_sizes(config: StudyConfig) -> dict[str, int]:
    """Batch and tokens of the study's own runs."""
    if config.trainer is None:
        length = lengths(config.run_config(config.cells()[0], {"lr": 1.0}, config.seeds[0]))
        return {"batch": length.batch, "tokens": length.tokens}
    table = config.tables.get("length", {})
    missing = [f"length.{name}" for name in RUN_SIZES if name not in table]
    missing += [] if "sequence" in config.tables.get("data", {}) else ["data.sequence"]
    if missing:
        raise OptionError(
            f"a calibration over batch and tokens needs {', '.join(missing)}: batch in sequences, "
            "tokens of the whole run. Your trainer gets them as {batch} and {tokens}."
        )
    return {name: table[name] for name in RUN_SIZES}


def _tokens(config: StudyConfig) -> float:
    if config.trainer is None:
        return planned_tokens(config)
    each = [cell.dimensions["tokens"] for cell in config.cells()]
    return (planned_runs(config) or 0) / len(each) * sum(each)


# The results


def sized_tables(study: Study, parameter: str = "lr") -> list[SizedTable]:
    """The losses of each batch and length, by seed and value of a parameter.

    Where two parameters were searched, each loss is the lowest over the values of the other.
    """
    config, trials = study.config, study.trials
    tables: list[SizedTable] = []
    for cell in config.cells():
        own = [one for one in trials if one.cell == cell.name]
        own = [one for one in own if one.status in ("finished", "diverged")]
        if not own:
            continue
        values = sorted({round(math.log2(one.params[parameter]), 6) for one in own})
        losses = np.full((len(config.seeds), len(values)), math.nan)
        for one in own:
            value = round(math.log2(one.params[parameter]), 6)
            place = config.seeds.index(one.seed), values.index(value)
            losses[place] = np.fmin(losses[place], math.nan if one.loss is None else one.loss)
        size = run_size(config, cell)
        diverged = sum(one.loss is None for one in own)
        tables.append(
            SizedTable(size.batch, size.tokens, config.seeds, tuple(values), losses, diverged)
        )
    return sorted(tables, key=lambda one: (one.batch, one.tokens))


def run_size(config: StudyConfig, cell: Cell) -> RunSize:
    """Batch and tokens of a cell's runs, both in tokens."""
    if config.trainer is None:
        run = config.run_config(cell, dict.fromkeys(config.space, 1.0), config.seeds[0])
        length = lengths(run)
        return RunSize(batch=length.batch * run.data.sequence, tokens=length.tokens)
    table = {**config.tables.get("length", {}), **cell.dimensions}
    return RunSize(batch=table["batch"] * cell.tables["data"]["sequence"], tokens=table["tokens"])


def run_answers(study: Study) -> dict[str, RunExponents]:
    """The exponents of each searched parameter."""
    return {
        name: fit_run_exponents(sized_tables(study, name))
        for name in MEASURED
        if name in study.config.space
    }


def calibrated_run(
    made: RunCalibration, found: Mapping[str, RunExponents]
) -> tuple[Rule, RunEvidence] | None:
    """The rule with the measured exponents, and its evidence; None if the runs do not bound those
    of the rate. Exponents of the decay are left out where the runs do not bound them.
    """
    if not found["lr"].bounded:
        return None
    exponents = {
        f"{name}.{axis}": _rounded(one.slope(axis).widest)
        for name, one in found.items()
        if one.bounded
        for axis in one.axes
    }
    config = next(iter(made.parts.values()))
    rule, lr = only_rule(config), found["lr"]
    evidence = RunEvidence(
        exponents=exponents,
        ranges={axis: lr.ranges[axis] for axis in lr.axes},
        fits=tuple(FITS),
        runs=lr.runs,
        seeds=len(lr.seeds),
        study=made.fingerprint(),
        also=rule.evidence or "",
    )
    choices = rule.choices | {"name": "calibrated", "run": evidence.formula}
    ranges = tuple((axis, *ends) for axis, ends in evidence.ranges.items())
    made_rule = rule_from(choices)
    return dataclasses.replace(made_rule, evidence=str(evidence), run_ranges=ranges), evidence


def _rounded(one: Estimate | None) -> tuple[float, float, float]:
    assert one is not None
    low, value, high = (round(end, DIGITS) for end in (one.low, one.value, one.high))
    return value, low, high


# Beside published rules


@dataclass(frozen=True)
class CarriedRate:
    """What a choice for batch and length makes of the smallest run's best rate at the largest."""

    choice: str
    source: str
    octaves: float
    "By which it moves the rate, in log2."
    off: Agreement
    "Octaves above the best rate there."
    regret: Agreement
    "Nats above the lowest loss there."


def carried_rates(tables: Sequence[SizedTable], measured: str | None = None) -> list[CarriedRate]:
    """Each choice of `run` from the smallest batch and length to the largest. `measured` is the
    formula of a calibration, which has seen the losses that it is judged by.
    """
    first, last = tables[0], tables[-1]
    sizes = [RunSize(batch=one.batch, tokens=one.tokens) for one in (first, last)]
    named = {choice: choice for choice in RUN_CHOICES} | (
        {measured: "measured"} if measured else {}
    )
    found: list[CarriedRate] = []
    for choice, name in named.items():
        octaves = 0.0
        if choice != "none":
            factors = derive_run(choice, "adamw").evaluate(base=sizes[0], target=sizes[1])
            octaves = math.log2(factors.lr)
        found.append(
            CarriedRate(
                name,
                _source(choice, name),
                octaves,
                agreed({fit: _off(first, last, fit, octaves) for fit in FITS}, _side),
                agreed({fit: _regret(first, last, fit, octaves) for fit in FITS}, _cost),
            )
        )
    return found


def _source(choice: str, name: str) -> str:
    if choice in PUBLISHED:
        return PUBLISHED[choice].source
    return {
        "none": "the rate carried over unchanged",
        "sde": "derived",
        "completed-p": "derived; Complete(d)P (arXiv 2512.22382)",
        "measured": "these runs, so that its own error is not tested",
    }[name]


def _off(first: SizedTable, last: SizedTable, fit: str, octaves: float) -> Estimate | None:
    if not (first.located(fit) and last.located(fit)):
        return None
    pairs = zip(first.lowest(fit), last.lowest(fit), strict=True)
    return mean_over_seeds([a.log2_rate + octaves - b.log2_rate for a, b in pairs])


def _regret(first: SizedTable, last: SizedTable, fit: str, octaves: float) -> Estimate | None:
    """At the rate that one would carry: the mean of the seeds' best rates, moved."""
    if not first.located(fit):
        return None
    best = float(np.mean([point.log2_rate for point in first.lowest(fit)]))
    return last.regret(fit, best + octaves)


def _side(off: Estimate) -> str:
    if not off.excludes(0):
        return "indistinguishable from the best"
    return "too high" if off.value > 0 else "too low"


def _cost(regret: Estimate) -> str:
    return "costs loss" if regret.low > 0 else "indistinguishable from 0"
