"""From a config to the plan, the optimizers and the number of steps."""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mupscale.data import Corpus
from mupscale.errors import DimensionError
from mupscale.models import (
    GPT,
    SEQUENCE_TOKENS,
    GPTConfig,
    batch_sequences,
    parameter_counts,
    warmup_iterations,
)
from mupscale.planning import Plan, plan
from mupscale.theory import Optimizer as OptimizerRow
from mupscale.theory import optimizer_named
from mupscale.training.config import OptimizerConfig, RunConfig
from mupscale.training.processes import like, whole


@dataclass(frozen=True)
class Lengths:
    """Steps, batch and warmup in numbers, after a config's rules."""

    steps: int
    batch: int
    warmup: int
    tokens: int


def lengths(config: RunConfig) -> Lengths:
    sequence, length = config.data.sequence, config.length
    batch, steps, warmup, tokens = length.batch, length.steps, length.warmup, None
    if length.tokens_per_parameter is not None:
        parameters = parameter_counts(config.model).non_embedding
        tokens = round(length.tokens_per_parameter * parameters)
    if batch is None:
        if tokens is None:
            raise DimensionError(
                "length.batch is missing, and its rule needs length.tokens_per_parameter."
            )
        batch = max(1, batch_sequences(tokens, length.batch_rule) * SEQUENCE_TOKENS // sequence)
    if steps is None:
        steps = max(1, round((tokens or 0) / (batch * sequence)))
    if warmup is None:
        warmup = warmup_iterations(steps, batch, sequence)
    return Lengths(steps, batch, warmup, steps * batch * sequence)


def on_meta(config: GPTConfig) -> GPT:
    with torch.device("meta"):
        return GPT(config)


def plan_for(config: RunConfig) -> Plan:
    """The plan of a run, relative to its base."""
    chosen = config.optimizer
    return plan(
        on_meta(config.model),
        base=on_meta(config.base_model()),
        optimizer=chosen.name,
        rule=config.rule,
        decay=chosen.decay,  # pyright: ignore[reportArgumentType]
        multipliers=chosen.multipliers,
    )


def check_vocabulary(config: RunConfig, corpus: Corpus) -> None:
    if corpus.vocabulary > config.model.vocabulary:
        raise DimensionError(
            f"{corpus.name} has a vocabulary of {corpus.vocabulary}, but the model's is "
            f"{config.model.vocabulary}. Set model.vocabulary to at least {corpus.vocabulary}."
        )


def optimizers(made: Plan, model: nn.Module, chosen: OptimizerConfig) -> list[Optimizer]:
    """One optimizer, or Muon and the AdamW beside it."""
    values: dict[str, Any] = {"lr": chosen.lr, "weight_decay": chosen.weight_decay}
    row = optimizer_named(made.optimizer)
    if row.whole_matrix:
        beside: dict[str, Any] = dict(values, eps=chosen.eps)
        beside["lr"] = chosen.lr if chosen.adamw_lr is None else chosen.adamw_lr
        hidden = made.param_groups(model, **values, optimizer=made.optimizer, split_rows=True)
        others = made.param_groups(model, **beside, betas=chosen.betas, optimizer="adamw")
        return [_built(row, hidden, chosen), _built(optimizer_named("adamw"), others, chosen)]
    betas = None if row.betas is None else chosen.betas
    return [_built(row, made.param_groups(model, **values, eps=chosen.eps, betas=betas), chosen)]


def _built(row: OptimizerRow, groups: list[dict[str, Any]], chosen: OptimizerConfig) -> Optimizer:
    """The torch optimizer of a registry row."""
    momentum = {"momentum": chosen.momentum} if row.momentum else {}
    return pkgutil.resolve_name(row.torch_class)(groups, **row.settings, **momentum)


def optimizer_state(steppers: list[Optimizer]) -> dict[str, Tensor]:
    """Every tensor of the optimizers, gathered, by the name of its parameter."""
    found: dict[str, Tensor] = {}
    for optimizer in steppers:
        for group in optimizer.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                state: Mapping[str, Any] = optimizer.state.get(parameter, {})
                found |= {f"optimizer/{name}/{key}": whole(value) for key, value in state.items()}
    return found


def load_optimizer_state_(steppers: list[Optimizer], saved: Mapping[str, Tensor]) -> None:
    """Restore `optimizer_state`, on any number of ranks."""
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for key, value in saved.items():
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            name, _, field = rest.rpartition("/")
            by_parameter.setdefault(name, {})[field] = value
    for optimizer in steppers:
        for group in optimizer.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                fields = by_parameter.get(name, {})
                if fields:
                    optimizer.state[parameter] = {
                        key: like(parameter, value) for key, value in fields.items()
                    }
