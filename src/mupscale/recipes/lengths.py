"""How long the target is trained: tokens, batch, steps and warmup by the paper's rules."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.models import SEQUENCE_TOKENS, BatchRule, budget, warmup_iterations
from mupscale.recipes.options import TargetBatchRule, TargetRun
from mupscale.recipes.shapes import ModelShape
from mupscale.theory.laws import LAWS, POWER_LINES

BATCH_SOURCES: Mapping[str, str] = {
    "table": "table: 0.0011·√tokens sequences of 8,192 tokens, as in the paper's tables",
    "printed": "printed: 0.000733·√tokens sequences of 8,192 tokens, as in the paper's text",
    "power-lines": f"power-lines: {LAWS['batch'].text}, {POWER_LINES}",
    "given": "given",
}
"""What a batch rule is and where it comes from."""


@dataclass(frozen=True)
class RunLength:
    """The target's run in numbers."""

    tokens: int
    tokens_per_parameter: float
    sequence: int | None
    sequence_source: str
    batch_tokens: int
    batch_sequences: int | None
    "None where the length of a sequence is unknown."
    batch_rule: str
    "table, printed, power-lines or given."
    batch_source: str
    steps: int
    warmup: int


def sequence_for(shape: ModelShape, requested: int | None) -> tuple[int | None, str]:
    """Tokens per sequence, and their source: the requested length, or the paper's 8192 cut to the
    target's positions.

    None if the target's config does not give its positions. A table of learned positions is a hard
    limit.
    """
    if requested is not None:
        if requested < 1:
            raise DimensionError(f"sequence={requested} must be at least 1 token.")
        if shape.learned_positions is not None and requested > shape.learned_positions:
            raise DimensionError(
                f"sequence={requested} is longer than the {shape.learned_positions} positions that "
                f"{shape.architecture} has embeddings for. Choose at most "
                f"{shape.learned_positions}, or a target with more positions."
            )
        return requested, "given"
    if shape.positions is None:
        return None, "not known"
    if shape.positions <= SEQUENCE_TOKENS:
        return shape.positions, "all positions of the target"
    return SEQUENCE_TOKENS, f"the paper's; the target has {shape.positions:,} positions"


def batch_choice(run: TargetRun, default: BatchRule) -> TargetBatchRule | float:
    """The batch in tokens if it is given, otherwise the name of the rule."""
    if run.batch is not None and run.batch_rule is not None:
        raise OptionError(
            f"batch={run.batch:g} and batch_rule={run.batch_rule!r} set the same thing. Give one "
            "of them."
        )
    if run.batch_rule is not None and run.batch_rule not in get_args(TargetBatchRule):
        raise UnknownNameError("batch rule", run.batch_rule, get_args(TargetBatchRule))
    return run.batch_rule or default if run.batch is None else run.batch


def length_for(
    parameters: int,
    total: float,
    sequence: tuple[int | None, str],
    rule: TargetBatchRule | float = "table",
) -> RunLength:
    """The run of a model with `parameters` parameters on `total` tokens.

    `rule` is that of the batch, or the batch in tokens. The paper's rules count sequences of 8192
    tokens; other sequences fill the same number of tokens.

    >>> run = length_for(88_190_000, 881_900_000, (8192, "given"))
    >>> run.batch_sequences, run.batch_tokens, run.steps, run.warmup
    (33, 270336, 3262, 65)
    >>> length_for(88_190_000, 881_900_000, (8192, "given"), "printed").batch_sequences
    22
    """
    if not (math.isfinite(total) and total >= SEQUENCE_TOKENS):
        raise OptionError(
            f"{total:g} tokens are too few to train. Give at least {SEQUENCE_TOKENS}."
        )
    tokens, (size, source) = round(total), sequence
    batch_tokens, batch = _batch_tokens(tokens, size, rule), None
    if size is not None:
        batch = max(1, round(batch_tokens / size))
        batch_tokens = batch * size
        steps = max(1, round(round(tokens / size) / batch))
    else:
        steps = max(1, round(tokens / batch_tokens))
    name = rule if isinstance(rule, str) else "given"
    return RunLength(
        tokens=tokens,
        tokens_per_parameter=tokens / parameters,
        sequence=size,
        sequence_source=source,
        batch_tokens=batch_tokens,
        batch_sequences=batch,
        batch_rule=name,
        batch_source=BATCH_SOURCES[name],
        steps=steps,
        warmup=warmup_iterations(steps, 1, batch_tokens),
    )


def _batch_tokens(tokens: int, sequence: int | None, rule: TargetBatchRule | float) -> int:
    if rule == "power-lines":
        return max(1, round(LAWS["batch"].at(D=tokens)))
    if isinstance(rule, str):
        return budget(tokens, rule).batch_tokens
    least = sequence or 1
    if not (math.isfinite(rule) and rule >= least):
        kind = "one sequence" if sequence else "one token"
        raise DimensionError(f"batch={rule:g} is less than {kind} ({least:,} tokens).")
    return round(rule)


def total_tokens(parameters: int, run: TargetRun, default_ratio: float | None) -> float | None:
    """Tokens in the run; `default_ratio` is the study's tokens per parameter, None if unknown."""
    ratio = run.tokens_per_parameter
    if run.tokens is not None and ratio is not None:
        raise OptionError(
            f"tokens={run.tokens:g} and tokens_per_parameter={ratio:g} set the same thing. Give "
            "one of them."
        )
    if run.tokens is not None:
        return run.tokens
    ratio = default_ratio if ratio is None else ratio
    return None if ratio is None else ratio * parameters
