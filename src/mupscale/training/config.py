"""What a run is: a small tree of frozen values, from TOML and flags, checked once."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_type_hints

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.models import BatchRule, GPTConfig, configuration
from mupscale.records import differences
from mupscale.theory import DECAYS, RUNNABLE, Rule, optimizer_named, rule_named
from mupscale.training import settings, toml

Precision = Literal["float32", "bf16"]
Shard = Literal["none", "ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class Data:
    corpus: str = "python-stdlib"
    tokenizer: str | None = None
    sequence: int = 128


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Base values: what the base was tuned to."""

    name: str = "adamw"
    lr: float = 2**-7
    weight_decay: float = 0.1
    eps: float | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    momentum: float = 0.9
    std: float = 0.02
    decay: str | None = None
    "lr_coupled, independent or l2; what the optimizer does, unless said."
    adamw_lr: float | None = None
    "Beside Muon, the rate of what AdamW trains; `lr` unless said."
    clip: float | None = None
    "Of the gradients' norm, as the base would have it; off unless given."
    multipliers: Literal["fold", "hook"] = "fold"


@dataclass(frozen=True, kw_only=True)
class LengthConfig:
    """How long, and in which batches: numbers, or the rules that give them."""

    steps: int | None = None
    tokens_per_parameter: float | None = None
    "Tokens for each non-embedding parameter, where `steps` is not given."
    batch: int | None = None
    "Sequences in a step, over all ranks; by the batch rule unless given."
    batch_rule: BatchRule = "table"
    warmup: int | None = None
    "Steps; by the rule (2 %, at most 375 million tokens) unless given."
    floor: float = 0.0
    "Of the rate, at the end of the cosine."
    accumulate: int = 1
    "Slices of a batch, one after the other."


@dataclass(frozen=True, kw_only=True)
class Machine:
    device: str = "auto"
    precision: Precision = "float32"
    compile: bool = False
    shard: Shard = "none"


@dataclass(frozen=True, kw_only=True)
class Recording:
    log_every: int = 1
    "Steps between lines of metrics."
    eval_every: int | None = None
    "Steps between evaluations; at the end only, unless given."
    eval_batches: int = 16
    checkpoint_every: int = 100
    tensorboard: bool = False


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run. `base` holds the dimensions in which the tuned base differs from the
    model.
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
        """The shape that was tuned: the model's with `base` put in. Heads follow a new width at the
        same size and r.
        """
        return self.model.resized(**self.base)

    def to_dict(self) -> dict[str, Any]:
        return _without_none(dataclasses.asdict(self) | {"rule": self.rule.to_dict()})

    def to_toml(self) -> str:
        return toml.dumps(self.to_dict())

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "RunConfig":
        """From the tables of a TOML file. `model` may name a configuration and change some of
        it.
        """
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
        """From a file with dotted overrides put over it: {"model.n_kv_heads": 2}."""
        values = {} if path is None else settings.read_toml(path)
        for dotted, value in overrides.items():
            table, _, key = dotted.rpartition(".")
            place = values.setdefault(table, {}) if table else values
            if not isinstance(place, dict):
                raise OptionError(
                    f"--{dotted}: {table} is {place!r} in {path}, and not a table of settings."
                )
            cast(dict[str, Any], place)[key] = value
        return RunConfig.from_dict(values)


SECTIONS: dict[str, type[Any]] = {
    "data": Data,
    "optimizer": OptimizerConfig,
    "length": LengthConfig,
    "machine": Machine,
    "record": Recording,
}


def _model(values: Any) -> GPTConfig:
    if isinstance(values, str):
        values = {"name": values}
    table = settings.table("model", values)
    named = table.pop("name", None)
    fields = [f.name for f in dataclasses.fields(GPTConfig)]
    settings.known("setting in model", table, ["name", *fields])
    hints = get_type_hints(GPTConfig)
    checked = {
        key: settings.typed(f"model.{key}", value, hints[key]) for key, value in table.items()
    }
    if named is not None:
        return dataclasses.replace(configuration(str(named)).model, **checked)
    missing = [name for name in ("width", "depth", "n_heads") if name not in checked]
    if missing:
        raise OptionError(
            f"model: {', '.join(missing)} not given. Set them, or name a configuration: model.name "
            '= "cpu_64_r2" '
            "(mupscale models lists them)."
        )
    return GPTConfig(**checked)


def rule_from(value: Any) -> Rule:
    """A rule by name or file, or one's own as a table of its choices."""
    if isinstance(value, str):
        return rule_named(value)
    table = settings.table("rule", value)
    settings.known(
        "setting in rule", table, [*(f.name for f in dataclasses.fields(Rule)), "because"]
    )
    return Rule.from_dict({"name": "own"} | {key: str(v) for key, v in table.items()})


def _base(value: Any) -> dict[str, int]:
    table = settings.table("base", value)
    settings.known(
        "setting in base",
        table,
        ["width", "depth", "n_heads", "n_kv_heads", "head_dim", "d_ff", "r"],
    )
    return {key: settings.typed(f"base.{key}", number, int) for key, number in table.items()}


def _check(config: RunConfig) -> None:
    """What the types cannot say, before anything is allocated."""
    numbers = dataclasses.asdict(config.optimizer)
    for name in ("lr", "weight_decay", "eps", "std", "clip", "adamw_lr"):
        value = numbers[name]
        least = "above" if name in ("eps", "std", "clip") else "at least"
        if value is not None and (
            not math.isfinite(value) or value < 0 or (value == 0 and least == "above")
        ):
            raise OptionError(f"optimizer.{name} = {value} must be a finite number {least} 0.")
    if optimizer_named(config.optimizer.name).name not in RUNNABLE:
        raise UnknownNameError("optimizer for a run", config.optimizer.name, RUNNABLE)
    if config.optimizer.decay is not None and config.optimizer.decay not in DECAYS:
        raise UnknownNameError("optimizer.decay", config.optimizer.decay, DECAYS)
    length, record = config.length, config.record
    counts = {"data.sequence": config.data.sequence, "length.steps": length.steps, "length.batch": length.batch,
              "length.accumulate": length.accumulate, "record.log_every": record.log_every,
              "record.eval_every": record.eval_every, "record.eval_batches": record.eval_batches,
              "record.checkpoint_every": record.checkpoint_every}  # fmt: skip
    for name, value in counts.items():
        if value is not None and value < 1:
            raise DimensionError(f"{name} = {value} must be at least 1.")
    if length.warmup is not None and length.warmup < 0:
        raise DimensionError(f"length.warmup = {length.warmup} must be at least 0.")
    if not 0 <= length.floor <= 1:
        raise OptionError(f"length.floor = {length.floor} is a share of the rate: from 0 to 1.")
    if length.steps is None and length.tokens_per_parameter is None:
        raise OptionError("length: give steps, or tokens_per_parameter.")
    if config.seed < 0:
        raise OptionError(f"seed = {config.seed} must be at least 0.")
    if config.data.sequence > config.model.context and config.model.positions == "learned":
        raise DimensionError(
            f"data.sequence = {config.data.sequence} is longer than model.context = "
            f"{config.model.context}."
        )
    config.base_model()


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain(value) for key, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _without_none(cast(Mapping[str, Any], value))
    return list(cast(tuple[Any, ...], value)) if isinstance(value, tuple) else value


def changed_settings(old: RunConfig, new: RunConfig) -> list[str]:
    """Settings that make it another run, as `a.b: old → new`."""
    return list(differences(old.to_dict(), new.to_dict(), ignore=_EXECUTION))


_EXECUTION = ("machine.device", "machine.shard", "machine.compile", "record.tensorboard")
"""Where and how a run executes, which may change between an interruption and its continuation."""
