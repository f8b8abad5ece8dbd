"""What a study trained under one rule: its models, run lengths, settings and base."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mupscale.errors import OptionError
from mupscale.reading import Reading
from mupscale.reading.structure import bare, bare_name
from mupscale.recipes.shapes import ModelShape, shape_of
from mupscale.studies import Study, StudyConfig, TrialRecord
from mupscale.studies.config import Cell, Trainer
from mupscale.studies.planning import own_run_jump
from mupscale.targets import Family, resolve
from mupscale.theory import Rule, RunSize
from mupscale.training import lengths
from mupscale.training.config import OptimizerConfig, model_sizes, rule_from
from mupscale.training.preparation import on_meta, run_sizes


@dataclass(frozen=True)
class Variant:
    """A swept model and the length of its runs; None for what a custom trainer did not report."""

    shape: ModelShape
    steps: int | None
    tokens: int | None
    sequence: int | None = None

    @property
    def batch_tokens(self) -> int | None:
        return round(self.tokens / self.steps) if self.tokens and self.steps else None

    @property
    def tokens_per_parameter(self) -> float | None:
        return self.tokens / self.shape.parameters if self.tokens else None

    @property
    def run(self) -> RunSize | None:
        if not (self.tokens and self.batch_tokens):
            return None
        return RunSize(self.batch_tokens, self.tokens)


@dataclass(frozen=True)
class Swept:
    """A rule of a study. `settings` holds the base values that were not searched, or None."""

    study: str
    rule: Rule
    variants: tuple[Variant, ...]
    trials: tuple[TrialRecord, ...]
    "Those that ran, whatever their outcome."
    base: Mapping[str, int]
    one_base: bool
    "Whether all variants have the same base."
    base_run: RunSize | None
    "None if the rule does not scale with batch and tokens."
    settings: Mapping[str, Any]
    schedules: tuple[tuple[str | None, float | None], ...]
    "The different schedules of the variants with their decay shares; None where unknown."
    corpus: str | None
    flops: float | None
    "6 × parameters × tokens over all trials of the study, other rules included."

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({trial.seed for trial in self.trials if trial.loss is not None}))

    @property
    def steps(self) -> float | None:
        """Per run: the geometric mean over variants, because optima are averaged in log2."""
        counts = [variant.steps for variant in self.variants if variant.steps]
        return math.exp(sum(map(math.log, counts)) / len(counts)) if counts else None

    @property
    def runs(self) -> list[RunSize]:
        """Batch and tokens of the run in which the base values were tuned: that of the base if the
        rule scales with them, and otherwise those of the variants, where they are known.
        """
        if self.base_run is not None:
            return [self.base_run]
        return [variant.run for variant in self.variants if variant.run]

    def numbers(self, name: str) -> list[int]:
        """A size of the swept models, such as width or r, where it is known."""
        values = [getattr(variant.shape, name) for variant in self.variants]
        return [value for value in values if value is not None]


def swept_under(study: Study, rule: str) -> Swept:
    """What the study did under a rule."""
    config = study.config
    trials = [trial for trial in study.trials if trial.has_run]
    reader = _Reference(config) if config.trainer is None else _Own(config, config.trainer)
    variants = {cell.name: reader.variant(cell, trials) for cell in config.cells()}
    cells = [cell for cell in config.cells() if cell.rule_name == rule]
    bases = [reader.base(cell) for cell in cells]
    return Swept(
        study=config.name,
        rule=rule_from(cells[0].rule),
        variants=tuple(variants[cell.name] for cell in cells),
        trials=tuple(trial for trial in trials if trial.rule == rule),
        base=bases[0],
        one_base=all(base == bases[0] for base in bases),
        base_run=base_run(config, cells[0]),
        settings=reader.settings(cells[0]),
        schedules=tuple(
            dict.fromkeys((s["schedule"], s["decay_share"]) for s in map(reader.settings, cells))
        ),
        corpus=reader.corpus,
        flops=_flops(study.trials, variants),
    )


def base_run(config: StudyConfig, cell: Cell) -> RunSize | None:
    """The run in which the base values of a cell were tuned, if its rule scales with batch and
    tokens.
    """
    if config.trainer is not None:
        jump = own_run_jump(config, cell)
    else:
        middle = {name: math.sqrt(low * high) for name, (low, high) in config.space.items()}
        jump = run_sizes(config.run_config(cell, middle, config.seeds[0]))
    return None if jump is None else jump.base


def _flops(trials: Sequence[TrialRecord], variants: Mapping[str, Variant]) -> float | None:
    """None if a trial did not report its tokens."""
    if any(trial.has_run and trial.tokens is None for trial in trials):
        return None
    sizes = {name: variant.shape.active_parameters for name, variant in variants.items()}
    return float(sum(6 * sizes.get(trial.cell, 0) * (trial.tokens or 0) for trial in trials))


class _Reference:
    """A study of the reference GPT: its configs hold every setting."""

    def __init__(self, config: StudyConfig) -> None:
        self._config = config
        self._middle = {name: math.sqrt(low * high) for name, (low, high) in config.space.items()}
        self.corpus: str | None = self._run(config.cells()[0]).data.corpus

    def _run(self, cell: Cell) -> Any:
        return self._config.run_config(cell, self._middle, self._config.seeds[0])

    def variant(self, cell: Cell, trials: Iterable[TrialRecord]) -> Variant:
        run = self._run(cell)
        length = lengths(run)
        return Variant(_gpt_shape(run.model), length.steps, length.tokens, run.data.sequence)

    def base(self, cell: Cell) -> Mapping[str, int]:
        return _gpt_shape(self._run(cell).base_model()).base_dimensions

    def settings(self, cell: Cell) -> Mapping[str, Any]:
        run = self._run(cell)
        return dataclasses.asdict(run.optimizer) | {
            "clip": run.optimizer.clip or 0.0,
            "floor": run.length.floor,
            "schedule": run.length.schedule,
            "decay_share": run.length.decay_share,
            "batch_rule": run.length.batch_rule,
        }


@cache
def _gpt_shape(config: Any) -> ModelShape:
    return shape_of(on_meta(config))


class _Own:
    """A study of a custom trainer: its models by name, the rest as its trials reported it."""

    corpus: str | None = None

    def __init__(self, config: StudyConfig, trainer: Trainer) -> None:
        if trainer.target is None:
            raise OptionError(
                f"the study {config.name} does not name the model it trained, so there is no base "
                'to scale from. Add trainer.target to its study.toml, for example "hf:llama,'
                'hidden_size=256".'
            )
        self._config, self._target, self._base = config, trainer.target, trainer.base

    def _shape(self, name: str, dimensions: Mapping[str, int]) -> ModelShape:
        return named_shape(name, tuple(dimensions.items()), self._config.reading)

    def variant(self, cell: Cell, trials: Iterable[TrialRecord]) -> Variant:
        own = [trial for trial in trials if trial.cell == cell.name and trial.status == "finished"]
        steps = [trial.steps for trial in own if trial.steps]
        tokens = [trial.tokens for trial in own if trial.tokens]
        shape = self._shape(self._target, cell.model_sizes)
        sequence = cell.tables.get("data", {}).get("sequence")
        return Variant(shape, max(steps, default=None), max(tokens, default=None), sequence)

    def base(self, cell: Cell) -> Mapping[str, int]:
        if self._base is not None:
            return self._shape(self._base, {}).base_dimensions
        given, varied = model_sizes(cell.tables.get("base", {})), self._config.vary
        least = {k: max(v) if k == "n_kv_heads" else min(v) for k, v in model_sizes(varied).items()}
        if not given and not varied:
            raise OptionError(
                f"the study {self._config.name} has no base. Write [base] with width, depth and r."
            )
        if not given:
            return self._shape(self._target, least).base_dimensions
        own = self._shape(self._target, cell.model_sizes)
        return _resized(own.base_dimensions, given)

    def settings(self, cell: Cell) -> Mapping[str, Any]:
        """The [optimizer] and [length] tables; None for what they leave out.

        Trials receive a plan for AdamW with folded multipliers, so these two are known.
        """
        given, length = dict(cell.tables.get("optimizer", {})), cell.tables.get("length", {})
        unknown = dict.fromkeys((f.name for f in dataclasses.fields(OptimizerConfig)), None)
        schedule = {name: length.get(name) for name in ("floor", "schedule", "decay_share")}
        fixed = {"name": "adamw", "multipliers": "fold"}
        return (
            unknown | fixed | schedule | {"batch_rule": length.get("batch_rule", "table")} | given
        )


@cache
def named_shape(name: str, dimensions: tuple[tuple[str, int], ...], reading: Reading) -> ModelShape:
    """The shape of a named model with some of its dimensions changed."""
    model = Family(name, device="meta")(**dict(dimensions)) if dimensions else resolve(name).model
    return shape_of(
        model, reading.fitting([bare_name(key) for key, _ in bare(model).named_parameters()])
    )


def _resized(own: Mapping[str, int], given: Mapping[str, int]) -> dict[str, int]:
    """Complete a base given in part: attention and feed-forward sizes follow the width."""
    width = given.get("width", own["width"])
    follow = {name: own[name] * width // own["width"] for name in ("inner", "d_ff") if name in own}
    return {**own, **follow, **given}
