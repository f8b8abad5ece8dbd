"""The largest singular value by block power iteration, with an error bound for the *largest* one.

A small residual proves that *a* singular value is near, not that none is larger. With B = WᵀW,
orthonormal rows V and P = I − VᵀV, what V misses is C = PBP. The bound needs an upper bound μ on
the top eigenvalue of C:

1. λ₁(C) ≤ tr C = ‖W‖_F² − tr VBVᵀ. This is free, and enough if a few directions hold most of the
   matrix, as in an optimizer's update.
2. Otherwise it is tested with new random directions, independent of the warm start. For a Gaussian
   row g, ‖gC^j‖ ≥ λ₁(C)^j |⟨u, g⟩| with u the top eigenvector of C, and |⟨u, g⟩| < t for all of b
   rows has a probability of at most (t√(2/π))^b. Unless that happens, λ₁(C) ≤ μ =
   (max_i ‖g_i C^j‖ / t)^(1/j): Dixon 1983; Kuczyński & Woźniakowski 1992.

With T = VBVᵀ, R = VB − TV and θ = λ₁(T) > μ, the Schur complement of λ − B then gives
θ ≤ λ₁(B) ≤ λ₁(T + RRᵀ/(θ − μ)).

Vectors are rows here: a block is (rows, columns of W).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Rows in V, in a test and in a start. An Adam update has a few large singular values: λ₂/λ₁ is
# about 0.8, but λ₁₇/λ₁ only 0.1, so two or three applications of B settle most updates. Of sizes
# from 6 to 24 this was the fastest.
ROWS = 16
DEPTHS = (3, 4, 5)  # for each round, how often its test may apply C
FAILURE = 1e-6  # probability that the bound of any round does not hold
OVERLAP = math.sqrt(math.pi / 2) * (FAILURE / len(DEPTHS)) ** (1 / ROWS)  # the t above
# Sums of squares in this range, and their squares, fit in float32; otherwise W is rescaled first.
SAFE_MIN, SAFE_MAX = 1e-18, 1e18
# Relative error of a float32 sum over a million entries. The trace bound adds it: a trace rounded
# down would prove too much.
ROUNDING = 1e-5

Found = tuple[float, float, Tensor]


def block_power(W: Tensor, start: Tensor, rtol: float, generator: torch.Generator) -> Found | None:
    """Norm of `W`, a bound on its relative error (infinite if none was found), and rows for the
    next start.

    None if the entries of `W` are too large or too small to square, or not finite.
    """
    total = float(torch.linalg.vector_norm(W)) ** 2
    if not SAFE_MIN < total < SAFE_MAX:
        return None
    norm, error, rows = 0.0, math.inf, start
    for depth in DEPTHS:
        best = two_projections(W, rows, total, rtol)
        if best.error <= rtol:
            return best.norm, best.error, best.ritz_rows()
        norm, error, rows = certified(W, best, rtol, depth, generator)
        if error <= rtol:
            break
    return norm, error, rows[:ROWS]


def by_trace(W: Tensor, start: Tensor, rtol: float) -> Found | None:
    """The norm if the start and the trace settle it, which is cheap; otherwise None."""
    total = float(torch.linalg.vector_norm(W)) ** 2
    if not SAFE_MIN < total < SAFE_MAX:
        return None
    best = two_projections(W, start, total, rtol)
    return (best.norm, best.error, best.ritz_rows()) if best.error <= rtol else None


def two_projections(W: Tensor, rows: Tensor, total: float, rtol: float) -> "Projection":
    """Project onto the rows, and if they are not good enough, onto their images under B."""
    first = Projection.of(W, orthonormal(rows), total)
    if first.error <= rtol:
        return first
    image = first.image
    # After a failed test there are the test's rows too: keep the best combinations (Rayleigh–Ritz).
    if len(image) > ROWS:
        image = first.vectors[:, -ROWS:].mT @ image
    return Projection.of(W, orthonormal(image), total)


@dataclass(frozen=True)
class Projection:
    """The projection of B = WᵀW onto orthonormal rows V, in units of θ = λ₁(VBVᵀ): T, RRᵀ and a
    bound on the norm's error.
    """

    rows: Tensor
    image: Tensor
    projected: Tensor
    residual: Tensor
    vectors: Tensor
    theta: float
    error: float
    """By the trace of what the rows miss; infinite if that gives no bound."""

    @staticmethod
    def of(W: Tensor, V: Tensor, total: float) -> "Projection":
        image = times_gram(V, W)
        projected = V @ image.mT
        values, vectors = torch.linalg.eigh(projected)
        theta = float(values[-1])
        missed = total * (1 + ROUNDING) - float(values.sum())
        projected = projected / theta
        R = image / theta - projected @ V
        residual = R @ R.mT
        return Projection(
            V,
            image,
            projected,
            residual,
            vectors,
            theta,
            _error(projected, residual, missed / theta),
        )

    @property
    def norm(self) -> float:
        return math.sqrt(self.theta)

    def ritz_rows(self) -> Tensor:
        """The best combinations of the rows, the top one first."""
        return (self.vectors.flip(1).mT @ self.rows)[:ROWS]


def certified(
    W: Tensor, known: Projection, rtol: float, depth: int, generator: torch.Generator
) -> Found:
    """‖W‖ by the projection and a random test; the new rows include the directions that the test
    found.

    Stops when the error is at most `rtol`, when that is out of reach, or after `depth` applications
    of C.
    """
    V, theta, projected, residual = known.rows, known.theta, known.projected, known.residual
    G = torch.randn(ROWS, W.shape[1], dtype=W.dtype, device=W.device, generator=generator)
    seen, j = _outside(V, times_gram(_outside(V, G), W) / theta), 1
    error = _error(projected, residual, _mu(seen, 1))
    if error > rtol and _error(projected, residual, 0.0) > rtol:
        depth = 1  # V itself is too rough: a better bound on what it misses would not help
    while error > rtol and j < depth:
        # ‖gC^jWᵀ‖² = gC^(2j+1)gᵀ, so half a step already gives a better bound.
        half = (W @ seen.mT).mT / math.sqrt(theta)
        error = _error(projected, residual, _mu(half, j + 0.5))
        if error > rtol:
            seen, j = _outside(V, half @ W / math.sqrt(theta)), j + 1
            error = _error(projected, residual, _mu(seen, j))
    return known.norm, error, torch.cat([known.ritz_rows(), seen])


def _mu(seen: Tensor, exponent: float) -> float:
    """The bound 2. above, from rows gC^exponent."""
    return (float(torch.linalg.vector_norm(seen, dim=1).max()) / OVERLAP) ** (1 / exponent)


def _error(projected: Tensor, residual: Tensor, mu: float) -> float:
    """Relative error of √θ as the norm, by the bound above, in units of θ."""
    if mu >= 1:
        return math.inf
    upper = float(torch.linalg.eigvalsh(projected + residual / (1 - mu))[-1])
    return math.sqrt(max(upper, 1.0)) - 1


def orthonormal(rows: Tensor) -> Tensor:
    return torch.linalg.qr(rows.mT).Q.mT


def times_gram(X: Tensor, W: Tensor) -> Tensor:
    """X·WᵀW."""
    # (W Xᵀ)ᵀ is up to 1.4 times as fast as X Wᵀ if W is in cache, and about equal otherwise.
    return (W @ X.mT).mT @ W


def _outside(V: Tensor, X: Tensor) -> Tensor:
    """X P: the part of the rows `X` that is orthogonal to the rows `V`."""
    return X - (X @ V.mT) @ V
