"""The config of a run: a small tree of frozen values, from TOML and flags, checked once."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_type_hints

import tomli_w

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.models import BatchRule, GPTConfig, configuration
from mupscale.planning.factors import check_factor
from mupscale.records import differences
from mupscale.theory import DECAYS, RUNNABLE, Rule, optimizer_named, rule_named
from mupscale.training import settings
from mupscale.training.schedule import ScheduleName, checked_share

Size = TypeVar("Size")
Precision = Literal["float32", "bf16"]
Shard = Literal["none", "ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class Data:
    corpus: str = "python-stdlib"
    tokenizer: str | None = None
    sequence: int = 128


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Values tuned on the base model."""

    name: str = "adamw"
    lr: float = 2**-7
    weight_decay: float = 0.1
    eps: float | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    momentum: float = 0.9
    std: float = 0.02
    decay: str | None = None
    "lr_coupled, independent or l2 (default: the optimizer's own)."
    adamw_lr: float | None = None
    "Learning rate of the parameters that AdamW trains beside Muon (default: `lr`)."
    clip: float | None = None
    "Maximum gradient norm, in the base's units (default: no clipping)."
    multipliers: Literal["fold", "hook"] = "fold"
    factors: Mapping[str, float] = field(default_factory=dict[str, float])
    """By kind of weight, on top of what the rule gives: {"lr.embedding": 2.0}."""


@dataclass(frozen=True, kw_only=True)
class LengthConfig:
    """Steps and batch size: numbers, or the rules that give them."""

    steps: int | None = None
    tokens: int | None = None
    "Of the whole run, instead of `steps`."
    tokens_per_parameter: float | None = None
    "Tokens per non-embedding parameter; sets `steps` if that is left out."
    batch: int | None = None
    "Sequences per step, over all ranks (default: by the batch rule)."
    batch_rule: BatchRule = "table"
    warmup: int | None = None
    "Steps (default: 2 %, at most 375 million tokens)."
    warmup_share: float | None = None
    "Share of the steps, instead of `warmup`."
    floor: float = 0.0
    "Share of the learning rate that is left at the last step."
    schedule: ScheduleName = "cosine"
    "How the rate falls: as a cosine, linearly, or linearly at the end of the run (wsd)."
    decay_share: float | None = None
    "Share of the steps in which wsd decays (default: 0.2)."
    accumulate: int = 1
    "Slices of a batch to accumulate gradients over."


@dataclass(frozen=True, kw_only=True)
class Machine:
    device: str = "auto"
    precision: Precision = "float32"
    compile: bool = False
    shard: Shard = "none"


@dataclass(frozen=True, kw_only=True)
class Recording:
    log_every: int = 1
    "Steps between two rows of metrics."
    eval_every: int | None = None
    "Steps between evaluations (default: only at the end)."
    eval_batches: int = 16
    checkpoint_every: int = 100
    tensorboard: bool = False
    noise_every: int | None = None
    "Steps between measurements of the gradient noise scale (default: none)."


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run. `base` holds the dimensions in which the base, the model you tuned,
    differs from `model`, and the `batch` (in sequences) and `tokens` of its run.
    """

    model: GPTConfig
    base: Mapping[str, int] = field(default_factory=dict[str, int])
    rule: Rule = field(default_factory=lambda: rule_named("gqa-mup"))
    seed: int = 0
    data: Data = Data()
    optimizer: OptimizerConfig = OptimizerConfig()
    length: LengthConfig = LengthConfig()
    machine: Machine = Machine()
    record: Recording = Recording()

    def __post_init__(self) -> None:
        _check(self)

    def base_model(self) -> GPTConfig:
        """The tuned model: `model` with `base` applied. Heads keep their size and r."""
        return self.model.resized(**model_sizes(self.base))

    def to_dict(self) -> dict[str, Any]:
        values = _all_settings(self)
        for (table, key), default in _LEFT_OUT.items():
            if values[table][key] == default:
                del values[table][key]
        return settings.for_toml(values)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "RunConfig":
        """From the tables of a TOML file. `model` may start from a named configuration."""
        given = dict(values)
        settings.known("setting", given, [f.name for f in dataclasses.fields(RunConfig)])
        return RunConfig(
            model=_model(given.pop("model", {})),
            rule=rule_from(given.pop("rule", "gqa-mup")),
            base=_base(given.pop("base", {})),
            seed=settings.typed("seed", given.pop("seed", 0), int),
            **{name: settings.section(name, SECTIONS[name], given[name]) for name in given},
        )

    @staticmethod
    def load(path: Path | None, overrides: Mapping[str, Any]) -> "RunConfig":
        """From a file, with dotted overrides such as {"model.n_kv_heads": 2}."""
        values = {} if path is None else settings.read_toml(path)
        for dotted, value in overrides.items():
            table, _, key = dotted.rpartition(".")
            place = values.setdefault(table, {}) if table else values
            if not isinstance(place, dict):
                raise OptionError(f"--{dotted}: {table} is {place!r} in {path}, not a table.")
            cast(dict[str, Any], place)[key] = value
        return RunConfig.from_dict(values)


_LEFT_OUT: dict[tuple[str, str], Any] = {
    ("optimizer", "factors"): {},
    ("length", "schedule"): "cosine",
}
"""Settings that are newer than some records. A config leaves them out where they have the value
that older runs had, so that those are unchanged. What is None is always left out.
"""


def _all_settings(config: RunConfig) -> dict[str, Any]:
    return dataclasses.asdict(config) | {"rule": config.rule.to_dict()}


SECTIONS: dict[str, type[Any]] = {
    "data": Data,
    "optimizer": OptimizerConfig,
    "length": LengthConfig,
    "machine": Machine,
    "record": Recording,
}


def _model(values: Any) -> GPTConfig:
    table = settings.table("model", {"name": values} if isinstance(values, str) else values)
    name, hints = table.pop("name", None), get_type_hints(GPTConfig)
    fields = [f.name for f in dataclasses.fields(GPTConfig)]
    settings.known("setting in model", table, ["name", *fields])
    checked = {key: settings.typed(f"model.{key}", v, hints[key]) for key, v in table.items()}
    if name is not None:
        return dataclasses.replace(configuration(str(name)).model, **checked)
    missing = [key for key in ("width", "depth", "n_heads") if key not in checked]
    if missing:
        raise OptionError(
            f"model: {', '.join(missing)} missing. Set them, or name a configuration: "
            'model.name = "cpu_64_r2" (mupscale models lists them).'
        )
    return GPTConfig(**checked)


def rule_from(value: Any) -> Rule:
    """A rule by name or file, or your own as a table of its choices."""
    if isinstance(value, str):
        return rule_named(value)
    table = settings.table("rule", value)
    settings.known(
        "setting in rule", table, [*(f.name for f in dataclasses.fields(Rule)), "because"]
    )
    ranges = {key: table.pop(key) for key in ["run_ranges"] if key in table}
    return Rule.from_dict({"name": "own", **ranges} | {key: str(v) for key, v in table.items()})


_DIMENSIONS = ("width", "depth", "n_heads", "n_kv_heads", "head_dim", "d_ff", "r")
RUN_SIZES = ("batch", "tokens")
"""Sizes of a run: sequences per step, and tokens of the whole run."""


def model_sizes(sizes: Mapping[str, Size]) -> dict[str, Size]:
    """Those of the model, without those of the run.

    >>> model_sizes({"width": 64, "batch": 16})
    {'width': 64}
    """
    return {name: size for name, size in sizes.items() if name not in RUN_SIZES}


def _base(value: Any) -> dict[str, int]:
    table = settings.table("base", value)
    settings.known("setting in base", table, [*_DIMENSIONS, *RUN_SIZES])
    return {key: settings.typed(f"base.{key}", number, int) for key, number in table.items()}


def _check(config: RunConfig) -> None:
    """Check what types cannot express, before anything is allocated."""
    chosen, length, record, model = config.optimizer, config.length, config.record, config.model
    for name in ("lr", "weight_decay", "eps", "std", "clip", "adamw_lr"):
        value = getattr(chosen, name)
        above = name in ("eps", "std", "clip")
        fine = value is None or (math.isfinite(value) and (value > 0 if above else value >= 0))
        if not fine:
            bound = "above" if above else "at least"
            raise OptionError(f"optimizer.{name} = {value} must be a finite number {bound} 0.")
    for name, value in chosen.factors.items():
        check_factor(name, value)
    if optimizer_named(chosen.name).name not in RUNNABLE:
        raise UnknownNameError("optimizer for a run", chosen.name, RUNNABLE)
    if chosen.decay is not None and chosen.decay not in DECAYS:
        raise UnknownNameError("optimizer.decay", chosen.decay, DECAYS)
    counts = {
        "data.sequence": config.data.sequence,
        **{
            f"length.{key}": getattr(length, key)
            for key in ("steps", "tokens", "batch", "accumulate")
        },
        **{f"base.{key}": config.base.get(key) for key in RUN_SIZES},
        **{
            f"record.{key}": getattr(record, key)
            for key in (
                "log_every",
                "eval_every",
                "eval_batches",
                "checkpoint_every",
                "noise_every",
            )
        },
    }
    for name, value in counts.items():
        if value is not None and value < 1:
            raise DimensionError(f"{name} = {value} must be at least 1.")
    if length.warmup is not None and length.warmup < 0:
        raise DimensionError(f"length.warmup = {length.warmup} must be at least 0.")
    if not 0 <= length.floor <= 1:
        raise OptionError(f"length.floor = {length.floor} must be from 0 to 1.")
    checked_share(length.schedule, length.decay_share, "length.decay_share")
    if length.warmup is not None and length.warmup_share is not None:
        raise OptionError(
            f"length: warmup = {length.warmup} and warmup_share = {length.warmup_share:g} set the "
            "same thing. Give one of them."
        )
    if length.warmup_share is not None and not 0 <= length.warmup_share <= 1:
        raise OptionError(f"length.warmup_share = {length.warmup_share:g} must be from 0 to 1.")
    if length.tokens is not None:
        for name in ("steps", "tokens_per_parameter"):
            if (other := getattr(length, name)) is not None:
                raise OptionError(
                    f"length: tokens = {length.tokens:,} and {name} = {other:g} set the same "
                    "thing. Give one of them."
                )
    if length.steps is None and length.tokens is None and length.tokens_per_parameter is None:
        raise OptionError("length: give steps, tokens, or tokens_per_parameter.")
    if config.seed < 0:
        raise OptionError(f"seed = {config.seed} must be at least 0.")
    if config.data.sequence > model.context and model.positions == "learned":
        raise DimensionError(
            f"data.sequence = {config.data.sequence} is longer than model.context = "
            f"{model.context}."
        )
    config.base_model()


def changed_settings(old: RunConfig, new: RunConfig) -> list[str]:
    """Settings that make it another run, as `a.b: old → new`."""
    before, after = (settings.for_toml(_all_settings(config)) for config in (old, new))
    return list(differences(before, after, ignore=_EXECUTION))


_EXECUTION = ("machine.device", "machine.shard", "machine.compile", "record.tensorboard")
"""Where and how a run executes, which may change between an interruption and its continuation."""
