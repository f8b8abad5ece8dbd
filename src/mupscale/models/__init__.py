"""Models: the reference GPT with grouped-query attention, its configurations and their budgets."""

from mupscale.models.budgets import (
    BATCH_CONSTANTS,
    SEQUENCE_TOKENS,
    BatchRule,
    Budget,
    TableRow,
    batch_sequences,
    budget,
    parameter_counts,
    table_row,
    warmup_iterations,
)
from mupscale.models.configurations import CONFIGURATIONS, Configuration, configuration
from mupscale.models.gpt import GPT, GPTConfig, ParameterCounts

__all__ = [
    "BATCH_CONSTANTS",
    "CONFIGURATIONS",
    "SEQUENCE_TOKENS",
    "BatchRule",
    "Budget",
    "Configuration",
    "GPT",
    "GPTConfig",
    "ParameterCounts",
    "TableRow",
    "batch_sequences",
    "budget",
    "configuration",
    "parameter_counts",
    "table_row",
    "warmup_iterations",
]
