"""Spectral and Frobenius norms of matrices at every step, each started from the last result."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mupscale.norms import Method, spectral_norm

JUDGED, SHOWN = 5e-3, 2e-2
"""Relative errors of norms: far below the noise over seeds for judged ones, and below what a
figure can show for the others.
"""


class WeightSizes(NamedTuple):
    """Norms of one matrix, or their root mean square over a stack of matrices (experts)."""

    spectral: float
    frobenius: float


@dataclass
class WarmNorms:
    """Norms of matrices that change little from one step to the next. Keep one per series.

    Computed matrix by matrix, while each is in cache: stacking those of the same shape took longer
    than all the norms.
    """

    rtol: float = JUDGED
    method: Method = "auto"
    starts: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def of(self, key: int, matrix: Tensor) -> WeightSizes:
        """The norms of a matrix; `key` identifies it over the steps."""
        answer = spectral_norm(matrix, self.method, rtol=self.rtol, start=self.starts.get(key))
        self.starts[key] = answer.start
        count = math.prod(matrix.shape[:-2])
        value = torch.linalg.vector_norm(answer.value) if count > 1 else answer.value.sum()
        scale = math.sqrt(count)
        return WeightSizes(float(value) / scale, float(torch.linalg.vector_norm(matrix)) / scale)
