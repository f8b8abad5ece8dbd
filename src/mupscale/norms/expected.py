"""How much a matrix stretches a *typical* vector: E ‖Ax‖/‖x‖ instead of the maximum."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.norms.matrices import as_matrices, check_finite

Named = Literal["gaussian", "rademacher", "uniform", "one-hot"]
Sampler = Callable[[int, int, torch.Generator], Tensor]
# A named distribution, a function (samples, n_in, generator) -> inputs, or the inputs themselves
# (samples, n_in).
Distribution = Named | Sampler | Tensor


@dataclass(frozen=True)
class NormEstimate:
    """A mean over random inputs; `standard_error` is 0 where it is known in closed form."""

    value: float
    standard_error: float
    samples: int

    def __float__(self) -> float:
        return self.value


def expected_operator_norm(
    A: Tensor,
    *,
    distribution: Distribution = "gaussian",
    p: float = 2,
    samples: int = 1024,
    generator: torch.Generator | None = None,
) -> NormEstimate:
    """‖A‖_E = E_x ‖Ax‖_p / ‖x‖_p over random inputs x, by Monte Carlo.

    It replaces the spectral norm if a matrix is rank-degenerate, like the repeated K/V matrix. A
    Gaussian A with standard deviation σ and n_out rows has σ√n_out.

    >>> expected_operator_norm(3 * torch.eye(4))
    NormEstimate(value=3.0, standard_error=0.0, samples=1024)
    """
    ratios = _ratios(A, distribution, p, samples, generator)
    value, standard_error = _mean(ratios)
    return NormEstimate(value, standard_error, len(ratios))


def rms_operator_norm(
    A: Tensor,
    *,
    distribution: Distribution = "gaussian",
    p: float = 2,
    samples: int = 1024,
    generator: torch.Generator | None = None,
) -> NormEstimate:
    """√(E_x ‖Ax‖_p² / ‖x‖_p²), which for Gaussian inputs and p = 2 is ‖A‖_F/√n_in exactly.

    The direction of a Gaussian x is uniform and independent of its length, so E xxᵀ/‖x‖² = I/n_in.
    Other cases use Monte Carlo; the standard error is that of the mean square over twice the root
    (delta method).

    >>> rms_operator_norm(torch.ones(3, 4)).value == math.sqrt(12 / 4)
    True
    """
    if not isinstance(distribution, Tensor) and distribution == "gaussian" and p == 2:
        _check_samples(samples)
        # In float64: the sum of a million squares in half precision would lose most of its digits.
        frobenius = float(torch.linalg.vector_norm(_checked_matrix(A), dtype=torch.float64))
        return NormEstimate(frobenius / math.sqrt(A.shape[1]), 0.0, samples)
    ratios = _ratios(A, distribution, p, samples, generator)
    mean_square, standard_error = _mean(ratios.square())
    value = math.sqrt(mean_square)
    return NormEstimate(value, standard_error / (2 * value) if value else 0.0, len(ratios))


def _mean(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))


def _ratios(
    A: Tensor, distribution: Distribution, p: float, samples: int, generator: torch.Generator | None
) -> Tensor:
    """‖Ax‖_p/‖x‖_p for each input, in float64."""
    matrix = _checked_matrix(A)
    _check_samples(samples)
    if not p >= 1:
        raise OptionError(f"p={p} is not a norm. Choose p ≥ 1; math.inf is the largest entry.")
    X = _inputs(distribution, samples, matrix, generator or torch.Generator(matrix.device))
    # With a largest entry of 1, the products overflow for no scale of A.
    size = float(matrix.abs().amax()) or 1.0
    return _lengths(X @ (matrix / size).mT, p) / _lengths(X, p) * size


def _lengths(X: Tensor, p: float) -> Tensor:
    """‖x‖_p of each row."""
    # Rows with a largest entry of 1 have p-th powers that fit in float64 for every p.
    rows = X.double()
    largest = rows.abs().amax(dim=1)
    scale = largest.where(largest > 0, 1.0)
    return torch.linalg.vector_norm(rows / scale[:, None], ord=p, dim=1) * scale


def _checked_matrix(A: Tensor) -> Tensor:
    matrix = as_matrices(A, "A")
    if matrix.ndim != 2:
        raise DimensionError(f"A has shape {tuple(matrix.shape)}. Pass one matrix at a time.")
    check_finite(matrix, "A")
    return matrix


def _check_samples(samples: int) -> None:
    if samples < 2:
        raise OptionError(
            f"samples={samples} has no standard error. Choose at least 2; 1024 is the default."
        )


def _inputs(
    distribution: Distribution, samples: int, A: Tensor, generator: torch.Generator
) -> Tensor:
    if isinstance(distribution, str):
        return _draw(distribution, samples, A, generator)
    if isinstance(distribution, Tensor):
        return _checked_inputs(distribution, A)
    return _checked_inputs(distribution(samples, A.shape[1], generator), A)


def _draw(name: str, samples: int, A: Tensor, generator: torch.Generator) -> Tensor:
    if name not in get_args(Named):
        raise UnknownNameError("distribution", name, get_args(Named))
    X = torch.empty(samples, A.shape[1], dtype=A.dtype, device=A.device)
    if name == "gaussian":
        return X.normal_(generator=generator)
    if name == "uniform":
        return X.uniform_(-1, 1, generator=generator)
    if name == "rademacher":
        return X.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
    # One-hot inputs pick columns of A, as tokens pick rows of an embedding.
    columns = torch.randint(A.shape[1], (samples, 1), generator=generator, device=A.device)
    return X.zero_().scatter_(1, columns, 1.0)


def _checked_inputs(inputs: Tensor, A: Tensor) -> Tensor:
    X = as_matrices(inputs, "distribution").to(A)
    if X.ndim != 2 or X.shape[1] != A.shape[1]:
        raise DimensionError(
            f"the inputs have shape {tuple(X.shape)}, but A {tuple(A.shape)} takes (samples, "
            f"{A.shape[1]}). Flatten batch and positions into samples."
        )
    _check_samples(X.shape[0])
    check_finite(X, "distribution")
    zeros = int((X == 0).all(dim=1).sum())
    if zeros:
        raise OptionError(
            f"{zeros} of {X.shape[0]} inputs are zero, so ‖Ax‖/‖x‖ is undefined. Drop these rows."
        )
    return X
