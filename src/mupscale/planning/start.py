"""Values to start from without a search.

On a reference GPT with a base of width 64 and a vocabulary of 256 bytes, both together ended 0.28
nats below a std of 0.02 with one rate for all weights, and 0.31 below it at width 256
(results/start-values).
"""

import math
from collections.abc import Mapping

START_STD = 0.8
"""Initial std times √width of the base: GPT-2's 0.02 at its largest width, 1600. In the study, half
of it made no significant difference at width 64, and twice, a quarter and less were worse."""

START_FACTORS: Mapping[str, float] = {"lr.embedding": 8.0}
"""For `Plan.with_factors`: embeddings train at eight times the rate of the other weights, also
learned positions, which the study did not have. Stds of embedding and readout and the scale of
attention scores made no better start at another value."""


def start_std(base_width: int) -> float:
    """The initial std to start from, for a base of this width.

    >>> start_std(1600), start_std(64)
    (0.02, 0.1)
    """
    return START_STD / math.sqrt(base_width)
