"""Spectral and Frobenius norms of a model's matrices at every step, each started from its last
answer.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mupscale.norms import Method, spectral_norm

JUDGED, SHOWN = 5e-3, 2e-2
"""Relative errors of norms: far below the noise over seeds, and of what is not judged, below what a
picture shows.
"""


class WeightSizes(NamedTuple):
    """Norms of one matrix; of a stack (experts), the root mean square over it."""

    spectral: float
    frobenius: float


@dataclass
class WarmNorms:
    """Norms of matrices that change little from one step to the next. Keep one for each series.

    Matrix by matrix: to stack those of the same shape took longer than all their norms, while each
    is still in cache.
    """

    rtol: float = JUDGED
    method: Method = "auto"
    starts: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def of(self, key: int, matrix: Tensor) -> WeightSizes:
        """Of the matrix that has this number at every step."""
        answer = spectral_norm(matrix, self.method, rtol=self.rtol, start=self.starts.get(key))
        self.starts[key] = answer.start
        count = math.prod(matrix.shape[:-2])
        spectral = (
            float(torch.linalg.vector_norm(answer.value))
            if count > 1
            else float(answer.value.sum())
        )
        return WeightSizes(
            spectral / math.sqrt(count), float(torch.linalg.vector_norm(matrix)) / math.sqrt(count)
        )
