"""The config of a study: rules × model variants (cells) × seeds, a search space, a search method,
and how trials run.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import tomli_w

from mupscale.engines.attempts import check_limits
from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.planning.factors import QUANTITIES, factor_names
from mupscale.reading import Reading
from mupscale.studies.commands import arguments
from mupscale.studies.names import plain
from mupscale.studies.trials import Space
from mupscale.theory import read_rule
from mupscale.training import RunConfig, lengths, settings
from mupscale.training.config import RUN_SIZES, OptimizerConfig, model_sizes
from mupscale.training.preparation import plan_for

Method = Literal["adaptive", "grid", "paired", "random", "tpe"]
VALUES = ("lr", "weight_decay", "tau_epoch", "std", "eps", "one_minus_beta2")
"""Base values that can be searched; so can factors by kind of weight, such as lr.embedding."""
VARIED = ("n_kv_heads", "r", "width", "depth", "d_ff", "head_dim", *RUN_SIZES)
"""Sizes that a study may vary: of the model, and of the run."""
RUN_TABLES = ("model", "base", "data", "optimizer", "length", "machine", "record")


@dataclass(frozen=True, kw_only=True)
class Search:
    """Which points are tried. `trials` and `tokens` are budgets per cell."""

    method: Method = "adaptive"
    trials: int | None = None
    tokens: float | None = None
    step: float = 0.5
    "Spacing of the grid, or the smallest step of a paired search, in octaves (powers of two)."
    tolerance: float = 0.25
    "The adaptive search ends when the optimum is known to ± this many octaves."
    at_once: int | None = None
    "Trials of a cell that are proposed together (default: about four per study)."
    stop_hopeless: bool = True
    "Adaptive and TPE: stop trials that are far behind the best one."
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Where trials run."""

    name: Literal["local", "ray"] = "local"
    workers: int | None = None
    "Processes of the local engine (default: one per core)."
    address: str | None = None
    "Address of the Ray cluster (default: RAY_ADDRESS)."
    cpus: float = 1.0
    gpus: float = 0.0
    "What Ray reserves for each trial."
    ranks: int = 1
    'Processes per trial (torchrun), for machine.shard = "fsdp" or "ddp".'
    retries: int = 2
    time_limit: float | None = None
    "Seconds per trial."
    memory_limit: float | None = None
    "Gigabytes per trial."


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The user's own trainer: a command or a Python function (default: the reference model)."""

    command: tuple[str, ...] | None = None
    function: str | None = None
    metrics: str = "json"
    target: str | None = None
    "The model whose plan the trainer gets, as for `mupscale plan`."
    base: str | None = None
    "The tuned model, if the dimensions of [base] do not describe it."
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Cell:
    """A rule on a model variant: the unit that has an optimum."""

    rule: str | Mapping[str, Any]
    label: str | None
    "The variant's name, if it has one."
    dimensions: Mapping[str, int]
    'What is varied, of the model or of the run: {"n_kv_heads": 3, "batch": 16}.'
    tables: Mapping[str, Any]
    "The tables of a run's config, without rule, seed and dimensions."
    space: Space

    @cached_property
    def name(self) -> str:
        """Of its folder too: gqa-mup.n_kv_heads-3."""
        label = [self.label] if self.label else []
        varied = [f"{name}-{value}" for name, value in self.dimensions.items()]
        return plain("cell", ".".join([self.rule_name, *label, *varied]))

    @property
    def model_sizes(self) -> dict[str, int]:
        """What is varied of the model."""
        return model_sizes(self.dimensions)

    @property
    def run_sizes(self) -> dict[str, int]:
        """What is varied of the run: batch and tokens."""
        return {name: self.dimensions[name] for name in RUN_SIZES if name in self.dimensions}

    @property
    def variant(self) -> dict[str, int | str]:
        return ({"variant": self.label} if self.label else {}) | dict(self.dimensions)

    @property
    def rule_name(self) -> str:
        return rule_name(self.rule)


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """A validated study. `tables` are those of a run: model, base, data, optimizer, length,
    machine, record.
    """

    name: str
    rules: tuple[str | Mapping[str, Any], ...]
    seeds: tuple[int, ...]
    space: Space
    rule_space: Mapping[str, Space] = field(default_factory=dict[str, Space])
    "Ranges for one rule, by its name: [space.sp] in the file."
    vary: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    variants: tuple[Mapping[str, Any], ...] = ()
    search: Search = Search()
    engine: EngineConfig = EngineConfig()
    trainer: Trainer | None = None
    storage: str | None = None
    keep_runs: bool = False
    reading: Reading = field(default_factory=Reading)
    "What cannot be read from the trainer's model: roles, ignored keys, inputs."
    tables: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        _check(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "StudyConfig":
        given = dict(values)
        fields = [
            f.name
            for f in dataclasses.fields(StudyConfig)
            if f.name not in ("tables", "rule_space")
        ]
        settings.known("setting", given, [*fields, *RUN_TABLES])
        for name, fix in _MISSING.items():
            if name not in given:
                raise OptionError(f"the study has no {name}. {fix}")
        space = _dotted(settings.table("space", given.pop("space")))
        own = {
            name: space.pop(name)
            for name, ranges in list(space.items())
            if isinstance(ranges, Mapping)
        }
        return StudyConfig(
            name=settings.typed("name", given.pop("name"), str),
            rules=tuple(
                map(_from_file, _listed("rules", given.pop("rules", ["gqa-mup"]), (str, Mapping)))
            ),
            seeds=tuple(_listed("seeds", given.pop("seeds", [1, 2, 3]), (int,))),
            space=_with_lr(_space("space", space)),
            rule_space={name: _space(f"space.{name}", ranges) for name, ranges in own.items()},
            vary=_vary(given.pop("vary", {})),
            variants=tuple(_listed("variants", given.pop("variants", []), (Mapping,))),
            search=settings.section("search", Search, given.pop("search", {})),
            engine=settings.section("engine", EngineConfig, given.pop("engine", {})),
            trainer=_trainer(given.pop("trainer", None)),
            storage=settings.typed("storage", given.pop("storage", None), str | None),
            keep_runs=settings.typed("keep_runs", given.pop("keep_runs", False), bool),
            reading=Reading.from_dict(settings.table("reading", given.pop("reading", {}))),
            tables=given,
        )

    @staticmethod
    def load(path: Path) -> "StudyConfig":
        return StudyConfig.from_dict(settings.read_toml(path))

    def to_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        # An empty one is left out, so that studies older than this setting are unchanged.
        values["reading"] = self.reading.to_dict() or None
        values |= values.pop("tables")
        values["space"] |= values.pop("rule_space")
        return settings.for_toml(values)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    def identity(self) -> dict[str, Any]:
        """What makes it this study: everything except budgets, engine and storage, which may
        change between runs.
        """
        values = self.to_dict()
        for name in ("engine", "storage", "keep_runs"):
            values.pop(name, None)
        for name in ("trials", "tokens", "tolerance"):
            values["search"].pop(name, None)
        return values

    def cells(self) -> list[Cell]:
        """Every rule on every variant, in order."""
        return [
            Cell(
                rule,
                variant.get("name"),
                dict(zip(self.vary, values, strict=True)),
                _merged(self.tables, variant),
                {**self.space, **self.rule_space.get(rule_name(rule), {})},
            )
            for rule in self.rules
            for variant in self.variants or ({},)
            for values in itertools.product(*self.vary.values())
        ]

    def widest_space(self) -> dict[str, tuple[float, float]]:
        """For each parameter, the range that covers the ranges of all cells."""
        spaces = [self.space, *self.rule_space.values()]
        ranges = {name: [space[name] for space in spaces if name in space] for name in self.space}
        return {
            name: (min(low for low, _ in ends), max(high for _, high in ends))
            for name, ends in ranges.items()
        }

    def run_config(self, cell: Cell, params: Mapping[str, float], seed: int) -> RunConfig:
        """The config of one trial of the reference model."""
        tables = _merged(cell.tables, {"length": cell.run_sizes} if cell.run_sizes else {})
        config = RunConfig.from_dict({**tables, "rule": cell.rule, "seed": seed})
        heads, r = config.model.n_heads, cell.model_sizes.get("r", 1)
        if heads % r:
            divisors = ", ".join(str(k) for k in range(1, heads + 1) if heads % k == 0)
            raise DimensionError(
                f"vary: r = {r} does not divide n_heads = {heads}. Choose one of {divisors}."
            )
        model = config.model.resized(**cell.model_sizes)
        optimizer = _with_params(config.optimizer, params)
        base = self._base(config.base, model.n_heads)
        config = dataclasses.replace(config, model=model, base=base, optimizer=optimizer)
        if "tau_epoch" in params:
            decay = 1 / (optimizer.lr * params["tau_epoch"] * lengths(config).steps)
            optimizer = dataclasses.replace(optimizer, weight_decay=decay)
            config = dataclasses.replace(config, optimizer=optimizer)
        return config

    def _base(self, given: Mapping[str, int], heads: int) -> dict[str, int]:
        """The base: [base], and otherwise the least sharing, width, depth, batch and tokens of
        what is varied.
        """
        base = dict(given)
        if self.vary.keys() & {"r", "n_kv_heads"} and not base.keys() & {"r", "n_kv_heads"}:
            base["r"] = min(self.vary.get("r") or [heads // k for k in self.vary["n_kv_heads"]])
        for name in ("width", "depth", *RUN_SIZES):
            if name in self.vary:
                base.setdefault(name, min(self.vary[name]))
        return base


def _with_params(optimizer: OptimizerConfig, params: Mapping[str, float]) -> OptimizerConfig:
    """The settings of a trial; its decay by tau_epoch follows from the number of steps."""
    changes: dict[str, Any] = {
        name: value
        for name, value in params.items()
        if name in ("lr", "weight_decay", "std", "eps")
    }
    if "one_minus_beta2" in params:
        changes["betas"] = (optimizer.betas[0], 1 - params["one_minus_beta2"])
    factors = factors_in(params)
    if factors:
        changes["factors"] = {**optimizer.factors, **factors}
    return dataclasses.replace(optimizer, **changes)


def factors_in(params: Mapping[str, float]) -> dict[str, float]:
    """Those of the parameters that are factors by kind of weight.

    >>> factors_in({"lr": 0.01, "lr.embedding": 2.0})
    {'lr.embedding': 2.0}
    """
    return {name: value for name, value in params.items() if "." in name}


_MISSING = {
    "name": 'Write name = "gqa-1" at the top.',
    "space": 'Write [space] and below it lr = ["2^-10", "2^-4"].',
}


def rule_name(rule: str | Mapping[str, Any]) -> str:
    """The name of a rule as it is written in a study."""
    return rule if isinstance(rule, str) else str(rule.get("name", "own"))


def _from_file(rule: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """The choices of a rule that is a file, so that the study does not change when the file
    does.
    """
    if not isinstance(rule, str) or not rule.endswith(".json"):
        return rule
    return read_rule(rule).to_dict()


def _listed(name: str, value: Any, kinds: tuple[type, ...]) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise OptionError(f"{name} = {value!r} is not a list. Write {name} = [...].")
    items = list(cast(Sequence[Any], value))
    for item in items:
        if not isinstance(item, kinds) or isinstance(item, bool):
            wanted = " or ".join("table" if kind is Mapping else kind.__name__ for kind in kinds)
            raise OptionError(
                f"{name}: {item!r} has type {type(item).__name__}; expected {wanted}."
            )
    return items


def _vary(value: Any) -> dict[str, tuple[int, ...]]:
    given = settings.table("vary", value)
    settings.known("dimension to vary", given, VARIED)
    found = {name: tuple(_listed(f"vary.{name}", values, (int,))) for name, values in given.items()}
    for name, values in found.items():
        if not values or min(values) < 1 or len(set(values)) < len(values):
            raise DimensionError(
                f"vary.{name} = {list(values)} must be different whole numbers, each at least 1."
            )
    return found


def _space(where: str, value: Any) -> dict[str, tuple[float, float]]:
    given = settings.table(where, value)
    for name in given:
        _check_searchable(name)
    found: dict[str, tuple[float, float]] = {}
    for name, ends in given.items():
        if not isinstance(ends, list | tuple) or len(cast(Sequence[Any], ends)) != 2:
            raise OptionError(
                f'{where}.{name} = {ends!r} is not a range. Write {name} = ["2^-10", "2^-4"].'
            )
        low, high = (number(f"{where}.{name}", end) for end in cast(Sequence[Any], ends))
        if not low < high:
            raise OptionError(
                f"{where}.{name}: {low:g} is not below {high:g}. Write the smaller end first."
            )
        if name == "one_minus_beta2" and high >= 1:
            raise OptionError(f"{where}.{name}: {high:g} must be below 1, so that β2 is above 0.")
        found[name] = (low, high)
    return found


def _dotted(space: dict[str, Any]) -> dict[str, Any]:
    """With std.embedding = [...] as one name, which TOML reads as a table."""
    tables = {
        name: value
        for name, value in space.items()
        if name in QUANTITIES and isinstance(value, Mapping)
    }
    others = {name: value for name, value in space.items() if name not in tables}
    return others | settings.flattened(tables)


def _check_searchable(name: str) -> None:
    if name in ("beta2", "betas"):
        raise OptionError(
            f"space: {name} cannot be searched on a logarithmic scale. Search 1 − β2 instead: "
            "one_minus_beta2 = [0.005, 0.1]."
        )
    if name not in VALUES and name not in factor_names():
        raise UnknownNameError(
            "parameter to search", name, [*VALUES, "lr.embedding", "…"], [*VALUES, *factor_names()]
        )


def _with_lr(space: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    if "lr" not in space:
        raise OptionError('space: lr is not searched. Write lr = ["2^-10", "2^-4"].')
    if {"weight_decay", "tau_epoch"} <= space.keys():
        raise OptionError(
            "space: weight_decay and tau_epoch are equivalent at a given lr. Search one of them."
        )
    return space


def number(name: str, value: Any) -> float:
    """A positive number, also written as a power of two.

    >>> number("lr", "2^-7.5")
    0.005524271728019903
    """
    power = (
        re.fullmatch(r"\s*2\s*(?:\^|\*\*)\s*\(?\s*(-?[0-9.]+)\s*\)?\s*", value)
        if isinstance(value, str)
        else None
    )
    try:
        found = 2.0 ** float(power[1]) if power else float(value)
    except (TypeError, ValueError, OverflowError):
        raise OptionError(
            f'{name}: {value!r} is not a number. Write 0.01, or a power of two: "2^-7".'
        ) from None
    if isinstance(value, bool) or not math.isfinite(found) or found <= 0:
        raise OptionError(
            f"{name}: {value!r} must be a finite number above 0: the scale is logarithmic."
        )
    return found


def _trainer(value: Any) -> Trainer | None:
    if value is None:
        return None
    given = settings.table("trainer", value)
    settings.known("setting in trainer", given, [f.name for f in dataclasses.fields(Trainer)])
    command = given.pop("command", None)
    environment = settings.table("trainer.environment", given.pop("environment", {}))
    for name, value in environment.items():
        if not isinstance(value, str) or "=" in name or "\0" in name + value:
            raise OptionError(
                f'trainer.environment: {name} = {value!r} is invalid. Write {name} = "{value}".'
            )
    return Trainer(
        command=None if command is None else tuple(arguments(command)),
        environment=environment,
        **{key: settings.typed(f"trainer.{key}", item, str) for key, item in given.items()},
    )


def _check(config: StudyConfig) -> None:
    """Check what types cannot express, before anything is allocated."""
    plain("study", config.name)
    for name, values in (("rules", config.rules), ("seeds", config.seeds)):
        if not values or len({repr(value) for value in values}) < len(values):
            raise OptionError(f"{name} = {list(values)} must have at least one, and none twice.")
    if min(config.seeds) < 0:
        raise OptionError(f"seeds = {list(config.seeds)} must be at least 0.")
    _check_search(config)
    engine, trainer = config.engine, config.trainer
    check_limits(engine.retries, engine.time_limit, engine.memory_limit)
    if engine.ranks < 1 or (engine.workers is not None and engine.workers < 0):
        raise OptionError(
            f"engine: ranks = {engine.ranks} must be at least 1, and workers = {engine.workers} "
            "at least 0."
        )
    if trainer is not None and (trainer.command is None) == (trainer.function is None):
        raise OptionError("trainer: give either command or function.")
    if config.storage is not None and urlsplit(config.storage).password:
        raise OptionError(
            "storage: the URL contains a password, which would be written to study.toml. Leave it "
            "out, and set PGPASSWORD or use ~/.pgpass."
        )
    if trainer is not None and engine.ranks > 1:
        raise OptionError(
            f"engine.ranks = {engine.ranks} is for the reference model. Put torchrun into the "
            "command instead."
        )
    _check_reading(config)
    _check_run_sizes(config)
    names = [cell.name for cell in config.cells()]
    if len(set(names)) < len(names):
        raise OptionError(
            "two cells have the same name. Give every rule and every variant its own name."
        )
    if trainer is None:
        middle = {name: math.sqrt(low * high) for name, (low, high) in config.space.items()}
        for cell in config.cells():
            run = config.run_config(cell, middle, config.seeds[0])
            lengths(run)
            if run.optimizer.factors:  # the model must have such weights
                plan_for(run)


def _check_reading(config: StudyConfig) -> None:
    if not config.reading:
        return
    if config.trainer is None or config.trainer.target is None:
        raise OptionError(
            "the study has a reading (roles, ignored keys or inputs), but no trainer.target, the "
            'model to read. Name the model (trainer.target = "my_package.models:build"), or leave '
            "the reading out."
        )
    inputs = config.reading.inputs or ()
    for name, value in inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs):
        if value is None:
            raise OptionError(
                f"reading.inputs: {name} is None, which TOML cannot represent. Leave the argument "
                "out, or pass the others by name."
            )


def _check_run_sizes(config: StudyConfig) -> None:
    """Steps say nothing about the tokens of a run if its batch varies."""
    varied = [name for name in RUN_SIZES if name in config.vary]
    for variant in config.variants or ({},):
        length = _merged(config.tables, variant).get("length", {})
        if varied and "steps" in length:
            raise OptionError(
                f"vary has {' and '.join(varied)}, and length.steps = {length['steps']} would "
                "change the tokens with the batch. Leave steps out, and "
                + (
                    "vary.tokens sets the length."
                    if "tokens" in varied
                    else "set length.tokens, the tokens of the whole run."
                )
            )


def _check_search(config: StudyConfig) -> None:
    search = config.search
    for rule, own in config.rule_space.items():
        settings.known("rule with its own space", {rule: own}, [*map(rule_name, config.rules)])
        settings.known(f"parameter in space.{rule} that space does not have", own, config.space)
    for name in ("trials", "tokens", "at_once", "step", "tolerance"):
        value = getattr(search, name)
        if value is not None and not 0 < value < math.inf:
            raise OptionError(f"search.{name} = {value} must be a finite number above 0.")
    if search.method in ("random", "tpe") and search.trials is None and search.tokens is None:
        raise OptionError(
            f'search.method = "{search.method}" does not end by itself. Set search.trials = 50, '
            "for example."
        )
    if search.method == "adaptive" and set(config.space) != {"lr"}:
        raise OptionError(
            'search.method = "adaptive" searches only lr, but space has '
            f"{', '.join(config.space)}. Choose paired, random, tpe or grid."
        )
    if search.method == "paired" and len(config.seeds) < 2:
        raise OptionError(
            f'search.method = "paired" compares points on the same seeds, and seeds = '
            f"{list(config.seeds)} shows no noise. Give two or more."
        )
    if search.seed < 0:
        raise OptionError(f"search.seed = {search.seed} must be at least 0.")


def _merged(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with some of their settings changed by a variant, which may have a name.

    >>> _merged({"model": {"width": 64, "depth": 2}}, {"name": "wide", "model": {"width": 96}})
    {'model': {'width': 96, 'depth': 2}}
    """
    merged = dict(tables)
    for name, change in changes.items():
        if name == "name":
            continue
        settings.known("table of a run", {name: change}, RUN_TABLES)
        table = merged.get(name, {})
        table = {"name": table} if isinstance(table, str) else settings.table(name, table)
        merged[name] = {**table, **settings.table(name, change)}
    return merged
