"""Spectral and Frobenius norms of many matrices at every step: batched by shape, each started from its last answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mupscale.norms import Method, spectral_norm

JUDGED, SHOWN = 5e-3, 2e-2
"""Relative errors of norms: far below the noise over seeds, and of what is not judged, below what a picture shows."""


class Sizes(NamedTuple):
    """Norms of one matrix; of a stack (experts), the root mean square over it."""

    spectral: float
    frobenius: float


@dataclass
class WarmNorms:
    """Norms of matrices that change little from one call to the next. Keep one for each series."""

    rtol: float = JUDGED
    method: Method = "auto"
    starts: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def of(self, matrices: Sequence[Tensor]) -> list[Sizes]:
        """In the order of `matrices`, which must be the same at every call."""
        found: dict[int, Sizes] = {}
        for number, indices in enumerate(_by_shape(matrices)):
            stack = matrices[indices[0]][None] if len(indices) == 1 else torch.stack([matrices[k] for k in indices])
            flat = stack.flatten(0, -3)
            answer = spectral_norm(flat, self.method, rtol=self.rtol, start=self.starts.get(number))
            self.starts[number] = answer.start
            frobenius = torch.linalg.vector_norm(flat, dim=(1, 2)).reshape(len(indices), -1)
            spectral = answer.value.reshape(len(indices), -1)
            for k, index in enumerate(indices):
                found[index] = Sizes(_mean(spectral[k]), _mean(frobenius[k]))
        return [found[k] for k in range(len(matrices))]


def _by_shape(matrices: Sequence[Tensor]) -> list[list[int]]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, matrix in enumerate(matrices):
        groups.setdefault(tuple(matrix.shape), []).append(index)
    return list(groups.values())


def _mean(values: Tensor) -> float:
    return math.sqrt(float(values.double().square().mean()))
