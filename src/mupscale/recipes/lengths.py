"""How long the target is trained: tokens, batch, steps and warmup by the paper's rules."""

import math
from dataclasses import dataclass

from mupscale.errors import DimensionError, OptionError
from mupscale.models import SEQUENCE_TOKENS, BatchRule, budget, warmup_iterations
from mupscale.recipes.shapes import ModelShape


@dataclass(frozen=True)
class SequenceLength:
    """Tokens of a sequence, None where nothing says how many, and who says it."""

    tokens: int | None
    source: str


@dataclass(frozen=True)
class RunLength:
    """A run of the target."""

    tokens: int
    tokens_per_parameter: float
    sequence: int | None
    sequence_source: str
    batch_tokens: int
    batch_sequences: int | None
    "None where the length of a sequence is not known."
    batch_rule: BatchRule
    steps: int
    warmup: int


def sequence_for(shape: ModelShape, asked: int | None) -> SequenceLength:
    """The sequences asked for, or the paper's of 8192, cut to the positions that the target has.

    A target that does not say how many positions it has gets none. Positions that are learned are
    all there are.
    """
    if asked is not None:
        if asked < 1:
            raise DimensionError(f"sequence={asked} is not a number of tokens. Give at least 1.")
        if shape.learned_positions is not None and asked > shape.learned_positions:
            raise DimensionError(
                f"sequence={asked} is longer than the {shape.learned_positions} positions that "
                f"{shape.architecture} "
                f"has embeddings for. Choose at most {shape.learned_positions}, or a target with "
                "more positions."
            )
        return SequenceLength(asked, "given")
    if shape.positions is None:
        return SequenceLength(None, "not known")
    if shape.positions <= SEQUENCE_TOKENS:
        return SequenceLength(shape.positions, "all positions of the target")
    return SequenceLength(
        SEQUENCE_TOKENS, f"the paper's; the target has {shape.positions:,} positions"
    )


def length_for(
    parameters: int, total: float, sequence: SequenceLength, rule: BatchRule = "table"
) -> RunLength:
    """The run of a model with so many parameters on so many tokens.

    The batch rule counts sequences of 8192; other sequences fill the same number of tokens.

    >>> found = length_for(88_190_000, 881_900_000, SequenceLength(8192, "given"))
    >>> found.batch_sequences, found.batch_tokens, found.steps, found.warmup
    (33, 270336, 3262, 65)
    >>> length_for(88_190_000, 881_900_000, SequenceLength(8192, "given"), "printed").batch_sequences
    22
    """
    if not (math.isfinite(total) and total >= SEQUENCE_TOKENS):
        raise OptionError(
            f"{total:g} tokens are too few to train. Give at least {SEQUENCE_TOKENS}."
        )
    tokens, size = round(total), sequence.tokens
    batch_tokens, batch = budget(tokens, rule).batch_tokens, None
    if size is not None:
        batch = max(1, round(batch_tokens / size))
        batch_tokens = batch * size
        steps = max(1, round(round(tokens / size) / batch))
    else:
        steps = max(1, round(tokens / batch_tokens))
    return RunLength(
        tokens, tokens / parameters, size, sequence.source, batch_tokens, batch, rule, steps,
        warmup_iterations(steps, 1, batch_tokens),
    )  # fmt: skip


def total_tokens(
    parameters: int, tokens: float | None, per_parameter: float | None
) -> float | None:
    """Of the run, from what was asked for; None where nothing was."""
    if tokens is not None and per_parameter is not None:
        raise OptionError(
            f"tokens={tokens:g} and tokens_per_parameter={per_parameter:g} say the same. Give one "
            "of them."
        )
    return (
        tokens
        if tokens is not None
        else None
        if per_parameter is None
        else per_parameter * parameters
    )
