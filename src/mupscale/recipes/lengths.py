"""How long the target is trained: tokens, batch, steps and warmup by the paper's rules."""

import math
from dataclasses import dataclass

from mupscale.errors import DimensionError, OptionError
from mupscale.models import SEQUENCE_TOKENS, budget, warmup_iterations


@dataclass(frozen=True)
class Length:
    """A run of the target."""

    tokens: int
    tokens_per_parameter: float
    sequence: int
    batch_sequences: int
    steps: int
    warmup: int

    @property
    def batch_tokens(self) -> int:
        return self.batch_sequences * self.sequence


def length_for(parameters: int, *, tokens: float | None, per_parameter: float | None, sequence: int | None) -> Length:
    """The run for a number of tokens, or of tokens for each parameter.

    The batch rule counts sequences of 8192; other sequences fill the same number of tokens.

    >>> length_for(88_190_000, tokens=None, per_parameter=10, sequence=None)
    Length(tokens=881900000, tokens_per_parameter=10.0, sequence=8192, batch_sequences=33, steps=3262, warmup=65)
    """
    total = _total(parameters, tokens, per_parameter)
    sequence = SEQUENCE_TOKENS if sequence is None else sequence
    if sequence < 1:
        raise DimensionError(f"sequence={sequence} is not a number of tokens. Give at least 1.")
    batch = max(1, round(budget(total).batch_tokens / sequence))
    steps = max(1, round(round(total / sequence) / batch))
    return Length(total, total / parameters, sequence, batch, steps, warmup_iterations(steps, batch, sequence))


def _total(parameters: int, tokens: float | None, per_parameter: float | None) -> int:
    if tokens is not None and per_parameter is not None:
        raise OptionError(
            f"tokens={tokens:g} and tokens_per_parameter={per_parameter:g} say the same. Give one of them."
        )
    total = tokens if tokens is not None else per_parameter and per_parameter * parameters
    if total is None:
        raise OptionError("the study does not say how many tokens its runs saw. Give tokens, or tokens_per_parameter.")
    if not (math.isfinite(total) and total >= SEQUENCE_TOKENS):
        raise OptionError(f"{total:g} tokens are no training run. Give at least {SEQUENCE_TOKENS}.")
    return round(total)
