"""From a config to the plan, the optimizers and the number of steps."""

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mupscale.data import Corpus
from mupscale.errors import DimensionError, OptionError
from mupscale.models import (
    GPT,
    SEQUENCE_TOKENS,
    GPTConfig,
    batch_sequences,
    parameter_counts,
    warmup_iterations,
)
from mupscale.planning import Plan, plan
from mupscale.planning.run_sizes import RunJump
from mupscale.reading import ModelFacts, read
from mupscale.theory import Optimizer as OptimizerRow
from mupscale.theory import RunSize, optimizer_named
from mupscale.training.config import RUN_SIZES, OptimizerConfig, RunConfig
from mupscale.training.processes import like, whole
from mupscale.training.schedule import Schedule


@dataclass(frozen=True)
class Lengths:
    """Steps, batch, warmup and schedule in numbers, after a config's rules."""

    steps: int
    batch: int
    warmup: int
    tokens: int
    schedule: Schedule


def lengths(config: RunConfig) -> Lengths:
    sequence, length = config.data.sequence, config.length
    batch, steps, warmup, tokens = length.batch, length.steps, length.warmup, None
    if length.tokens is not None:
        tokens = length.tokens
    elif length.tokens_per_parameter is not None:
        parameters = parameter_counts(config.model).non_embedding
        tokens = round(length.tokens_per_parameter * parameters)
    if batch is None:
        if tokens is None:
            raise DimensionError(
                "length.batch is missing, and its rule needs length.tokens or "
                "length.tokens_per_parameter."
            )
        batch = max(1, batch_sequences(tokens, length.batch_rule) * SEQUENCE_TOKENS // sequence)
    if length.tokens is not None and length.tokens < batch * sequence:
        raise DimensionError(
            f"length.tokens = {length.tokens:,} is less than one batch: {batch} sequences of "
            f"{sequence} tokens are {batch * sequence:,}. Give more tokens or a smaller batch."
        )
    if steps is None:
        steps = max(1, round((tokens or 0) / (batch * sequence)))
    if length.warmup_share is not None:
        warmup = round(length.warmup_share * steps)
    if warmup is None:
        warmup = warmup_iterations(steps, batch, sequence)
    schedule = Schedule(length.schedule, steps, warmup, length.floor, length.decay_share)
    return Lengths(steps, batch, warmup, steps * batch * sequence, schedule)


def run_sizes(config: RunConfig) -> RunJump | None:
    """From the run in which the values were tuned to this one; None if the rule does not scale with
    them.

    What [base] does not say of its run is the same as here.
    """
    if config.rule.run == "none":
        return None
    own, sequence = lengths(config), config.data.sequence
    if not config.base.keys() & set(RUN_SIZES):
        raise OptionError(
            f"the rule {config.rule} scales with batch and tokens (run = {config.rule.run!r}), "
            "but [base] does not say in which run its values were tuned. Set base.batch (in "
            "sequences) and base.tokens."
        )
    batch = config.base.get("batch", own.batch) * sequence
    base = RunSize(batch=batch, tokens=config.base.get("tokens", own.tokens))
    return RunJump(base, RunSize(batch=own.batch * sequence, tokens=own.tokens))


def on_meta(config: GPTConfig) -> GPT:
    with torch.device("meta"):
        return GPT(config)


@lru_cache(maxsize=64)
def _facts_of(config: GPTConfig) -> ModelFacts:
    """Read once per model: the runs of a study differ in rules, rates and seeds."""
    return read(on_meta(config))


def plan_for(config: RunConfig) -> Plan:
    """The plan of a run, relative to its base."""
    chosen = config.optimizer
    planned = plan(
        _facts_of(config.model),
        base=_facts_of(config.base_model()),
        optimizer=chosen.name,
        rule=config.rule,
        decay=chosen.decay,  # pyright: ignore[reportArgumentType]
        multipliers=chosen.multipliers,
    )
    jump = run_sizes(config)
    if jump is not None:
        planned = planned.with_run(base=jump.base, target=jump.target)
    return planned.with_factors(chosen.factors) if chosen.factors else planned


def check_vocabulary(config: RunConfig, corpus: Corpus) -> None:
    if corpus.vocabulary > config.model.vocabulary:
        raise DimensionError(
            f"{corpus.name} has a vocabulary of {corpus.vocabulary}, but the model's is "
            f"{config.model.vocabulary}. Set model.vocabulary to at least {corpus.vocabulary}."
        )


def optimizers(planned: Plan, model: nn.Module, chosen: OptimizerConfig) -> list[Optimizer]:
    """One optimizer, or Muon with AdamW for the parameters that Muon does not train."""
    row = optimizer_named(planned.optimizer)
    values: dict[str, Any] = {"lr": chosen.lr, "weight_decay": chosen.weight_decay}
    if not row.whole_matrix:
        betas = None if row.betas is None else chosen.betas
        momentum = chosen.momentum if row.momentum else None
        groups = planned.param_groups(
            model, **values, eps=chosen.eps, betas=betas, momentum=momentum
        )
        return [_built(row, groups, chosen)]
    hidden = planned.param_groups(model, **values, optimizer=row.name, split_rows=True)
    values |= {"lr": chosen.lr if chosen.adamw_lr is None else chosen.adamw_lr, "eps": chosen.eps}
    others = planned.param_groups(model, **values, betas=chosen.betas, optimizer="adamw")
    return [_built(row, hidden, chosen), _built(optimizer_named("adamw"), others, chosen)]


def _built(row: OptimizerRow, groups: list[dict[str, Any]], chosen: OptimizerConfig) -> Optimizer:
    """The torch optimizer of a registry row."""
    momentum = {"momentum": chosen.momentum} if row.momentum else {}
    return pkgutil.resolve_name(row.torch_class)(groups, **row.settings, **momentum)


def optimizer_state(running: list[Optimizer]) -> dict[str, Tensor]:
    """Every tensor of the optimizers, gathered from all ranks, by the name of its parameter."""
    return {
        f"optimizer/{name}/{key}": whole(value)
        for optimizer, name, parameter in _parameters(running)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_state_(running: list[Optimizer], saved: Mapping[str, Tensor]) -> None:
    """Restore `optimizer_state`, on any number of ranks."""
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for key, value in saved.items():
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            name, _, field = rest.rpartition("/")
            by_parameter.setdefault(name, {})[field] = value
    for optimizer, name, parameter in _parameters(running):
        if name in by_parameter:
            state = {key: like(parameter, value) for key, value in by_parameter[name].items()}
            optimizer.state[parameter] = state


def _parameters(running: list[Optimizer]) -> Iterator[tuple[Optimizer, str, Tensor]]:
    for optimizer in running:
        for group in optimizer.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                yield optimizer, name, parameter
