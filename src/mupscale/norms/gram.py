"""The spectral norm from the Gram matrix, WᵀW or WWᵀ, whichever is smaller."""

import math

import torch
from torch import Tensor

# Up to this size, squaring the Gram matrix a few times is no slower than its eigenvalues.
SQUARED_UP_TO = 256


def gram_matrix(W: Tensor) -> Tensor:
    return W @ W.mT if W.shape[0] < W.shape[1] else W.mT @ W


def root_of_top(G: Tensor, trace: float, rtol: float) -> tuple[float, float, Tensor]:
    """√λ₁(G), a bound on its relative error, and the power of `G` that gave it."""
    if G.shape[0] <= SQUARED_UP_TO:
        found = _by_squaring(G, trace, rtol)
        if found is not None:
            return found
    return math.sqrt(max(float(torch.linalg.eigvalsh(G)[-1]), 0.0)), 0.0, G


def _by_squaring(G: Tensor, trace: float, rtol: float) -> tuple[float, float, Tensor] | None:
    """Raise `G` to powers P until trace and Frobenius norm of G^P enclose its top eigenvalue.

    With M ∝ G^P, the 2P-th roots of the bounds on λ₁(M) enclose √λ₁(G); the answer is the middle.
    There is no bad spectrum: k equal eigenvalues are enclosed within a factor of k^(1/4P).
    """
    # Then 1/4 ≤ λ₁ ≤ 64 for up to 256 rows: the squares of its 8th power fit in float32.
    kept_trace = G.shape[0] / 4
    raised, log_root, before = G, 0.0, 1
    for exponent in (8, 64, 512, 4096):
        scale = trace / kept_trace  # kept as a logarithm: λ₁^4096 itself would overflow
        log_root += math.log(scale) / (2 * before)
        raised = torch.addmm(raised, raised, raised, beta=0, alpha=scale**-2)
        for _ in range(2):
            raised = raised @ raised
        trace, before = float(raised.trace()), exponent
        frobenius = float(torch.linalg.vector_norm(raised))
        lower = least_top(trace, frobenius)
        error = max(math.expm1(math.log(frobenius / lower) / (4 * exponent)), 0.0)
        if error <= rtol:
            middle = (math.log(lower) + math.log(frobenius)) / 2
            return math.exp(log_root + middle / (2 * exponent)), error, raised
    return None


def least_top(trace: float, frobenius: float) -> float:
    """A lower bound on the top eigenvalue of a positive matrix with trace t and Frobenius norm f.

    f² = Σλ² ≤ λ₁Σλ gives f²/t; f² ≤ λ₁² + (t − λ₁)² gives more if f² > t²/2, and is exact for two
    eigenvalues. (The upper bound is f, since λ₁² ≤ f².)

    >>> round(least_top(trace=3 + 1, frobenius=math.hypot(3, 1)), 9)
    3.0
    """
    apart = 2 * frobenius**2 - trace**2
    return (trace + math.sqrt(apart)) / 2 if apart > 0 else frobenius**2 / trace
