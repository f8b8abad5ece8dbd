"""The gradient noise scale of a run: the batch above which a larger one hardly saves steps.

McCandlish et al. 2018 (arXiv 1812.06162), appendix A: B_simple = tr(Σ)/|G|², with G the gradient of
the whole data and Σ the covariance of one token's gradient. A batch of B tokens has a gradient of
expected squared norm |G|² + tr(Σ)/B, so two sizes of batch give both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mupscale.errors import DimensionError


class NoiseParts(NamedTuple):
    """Unbiased estimates from one step. Either may be negative by chance."""

    signal: float
    "|G|²."
    noise: float
    "tr(Σ), per token."


def noise_parts(
    small: float, large: float, squared_small: float, squared_large: float
) -> NoiseParts:
    """From the squared norms of the gradients of a batch of `small` tokens and one of `large`.

    The small batch may be a part of the large one: only the expected squared norms enter.

    >>> noise_parts(100, 200, squared_small=5.0, squared_large=3.0)
    NoiseParts(signal=1.0, noise=400.0)
    """
    if not 0 < small < large:
        raise DimensionError(f"small={small:g} must be above 0 and below large={large:g}.")
    return NoiseParts(
        signal=(large * squared_large - small * squared_small) / (large - small),
        noise=(squared_small - squared_large) / (1 / small - 1 / large),
    )


@dataclass
class NoiseScale:
    """Moving averages of signal and noise over the steps that were measured, and their ratio.

    The two are averaged before they are divided: the ratio of a single step has no useful mean.
    Both averages start at 0, which their ratio does not see.
    """

    memory: float = 0.9
    "What is kept of the averages at each measurement: 0.9 looks back about ten measurements."
    signal: float = 0.0
    noise: float = 0.0

    def add(self, parts: NoiseParts) -> None:
        """One more measurement; a gradient that is not finite is left out."""
        if not (math.isfinite(parts.signal) and math.isfinite(parts.noise)):
            return
        new = 1 - self.memory
        self.signal = self.memory * self.signal + new * parts.signal
        self.noise = self.memory * self.noise + new * parts.noise

    @property
    def tokens(self) -> float | None:
        """The noise scale in tokens; None while the averages are not both positive."""
        if self.signal <= 0 or self.noise <= 0:
            return None
        return self.noise / self.signal

    def state(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"signal": self.signal, "noise": self.noise}

    def load_(self, state: Mapping[str, float]) -> None:
        self.signal, self.noise = state["signal"], state["noise"]
