"""How long a model trains: the paper's rules for tokens, batch, iterations and warmup, and the rows
of its tables.

The tables and the text of the paper disagree on the constant for the batch: see `BATCH_CONSTANTS`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.models.configurations import CONFIGURATIONS, configuration
from mupscale.models.gpt import GPT, GPTConfig, ParameterCounts

SEQUENCE_TOKENS = 8192
"""The length of the paper's sequences, which its batch rule counts."""

BatchRule = Literal["table", "printed"]
BATCH_CONSTANTS: dict[BatchRule, float] = {"table": 0.0011, "printed": 0.000733}
"""Sequences per √token: in all nine rows of the tables, and in the text."""

WARMUP_SHARE = 0.02
WARMUP_TOKENS = 375e6
"""Warmup is this share of the iterations, up to this number of tokens (Dey et al. 2025)."""


@dataclass(frozen=True)
class Budget:
    """What a training run sees."""

    tokens: int
    sequences: int
    batch_tokens: int
    batch_sequences: int
    iterations: int
    warmup_iterations: int


def printed_tokens(non_embedding: int, tokens_per_parameter: int) -> int:
    """Tokens for a number of parameters as the paper prints it, in hundredths of a million.

    >>> printed_tokens(80_620_800, 10)
    806200000
    """
    hundredths = round(non_embedding / 10_000)
    if hundredths < 1 or tokens_per_parameter < 1:
        raise DimensionError(
            f"{tokens_per_parameter} tokens per parameter for {non_embedding} parameters is not a "
            "budget: parameters are counted in units of 10,000. Use budget(tokens) instead."
        )
    return hundredths * 10_000 * tokens_per_parameter


def batch_sequences(tokens: int, rule: BatchRule = "table") -> int:
    """Sequences in a batch: a constant times √tokens, rounded up.

    >>> batch_sequences(881_900_000), batch_sequences(881_900_000, "printed")
    (33, 22)
    """
    if rule not in BATCH_CONSTANTS:
        raise UnknownNameError("batch rule", rule, BATCH_CONSTANTS)
    return math.ceil(BATCH_CONSTANTS[rule] * math.sqrt(tokens))


def warmup_iterations(
    iterations: int, batch_sequences: int, sequence_tokens: int = SEQUENCE_TOKENS
) -> int:
    """Steps of linear warmup: 2 % of all steps, up to 375 million tokens.

    >>> warmup_iterations(3075, 32), warmup_iterations(1_000_000, 512)
    (61, 89)
    """
    most = int(WARMUP_TOKENS / (batch_sequences * sequence_tokens))
    return min(int(WARMUP_SHARE * iterations), most)


def budget(tokens: int, rule: BatchRule = "table") -> Budget:
    """Sequences, batch, iterations and warmup for a number of tokens."""
    if tokens < SEQUENCE_TOKENS:
        raise DimensionError(f"tokens={tokens} is less than one sequence of {SEQUENCE_TOKENS}.")
    sequences, batch = round(tokens / SEQUENCE_TOKENS), batch_sequences(tokens, rule)
    iterations = max(1, round(sequences / batch))
    warmup = warmup_iterations(iterations, batch)
    return Budget(tokens, sequences, batch * SEQUENCE_TOKENS, batch, iterations, warmup)


def parameter_counts(config: GPTConfig) -> ParameterCounts:
    """The counts of a model, without building its weights."""
    with torch.device("meta"):
        return GPT(config).parameter_counts()


@dataclass(frozen=True)
class TableRow:
    """A row of the paper's tables of model configurations, in the order of their columns."""

    name: str
    total_parameters: int
    non_embedding_parameters: int
    width: int
    depth: int
    n_heads: int
    head_dim: int
    n_kv_heads: int
    repetitions: int
    tokens_per_parameter: int
    budget: Budget


def table_row(name: str, rule: BatchRule = "table") -> TableRow:
    """The row of a named configuration, computed from its shape.

    >>> row = table_row("jwd-large")
    >>> row.budget.tokens, row.budget.batch_sequences, row.budget.iterations
    (531930000, 26, 2497)
    """
    chosen = configuration(name)
    tpp = chosen.tokens_per_parameter
    if tpp is None:
        known = ", ".join(one.name for one in CONFIGURATIONS.values() if one.tokens_per_parameter)
        raise OptionError(
            f"{name} has no row, because it has no number of tokens per parameter. Choose one of "
            f"{known}."
        )
    config, counts = chosen.model, parameter_counts(chosen.model)
    heads = config.n_heads, config.head_size, config.kv_heads, config.repetitions
    tokens = printed_tokens(counts.non_embedding, tpp)
    return TableRow(name, *counts, config.width, config.depth, *heads, tpp, budget(tokens, rule))
