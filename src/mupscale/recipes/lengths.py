"""How long the target is trained: tokens, batch, steps and warmup by the paper's rules."""

import math
from dataclasses import dataclass

from mupscale.errors import DimensionError, OptionError
from mupscale.models import SEQUENCE_TOKENS, BatchRule, budget, warmup_iterations
from mupscale.recipes.options import TargetRun
from mupscale.recipes.shapes import ModelShape


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
    batch_rule: BatchRule
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


def length_for(
    parameters: int, total: float, sequence: tuple[int | None, str], rule: BatchRule = "table"
) -> RunLength:
    """The run of a model with `parameters` parameters on `total` tokens.

    The batch rule counts sequences of 8192 tokens; other sequences fill the same number of tokens.

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
    batch_tokens, batch = budget(tokens, rule).batch_tokens, None
    if size is not None:
        batch = max(1, round(batch_tokens / size))
        batch_tokens = batch * size
        steps = max(1, round(round(tokens / size) / batch))
    else:
        steps = max(1, round(tokens / batch_tokens))
    return RunLength(
        tokens=tokens,
        tokens_per_parameter=tokens / parameters,
        sequence=size,
        sequence_source=source,
        batch_tokens=batch_tokens,
        batch_sequences=batch,
        batch_rule=rule,
        steps=steps,
        warmup=warmup_iterations(steps, 1, batch_tokens),
    )


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
