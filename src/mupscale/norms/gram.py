"""The spectral norm from the Gram matrix, WᵀW or WWᵀ, whichever is smaller."""

import math

import torch
from torch import Tensor

# Up to this size, squaring the Gram matrix a few times costs no more than its eigenvalues.
SQUARED_UP_TO = 256


def gram_matrix(W: Tensor) -> Tensor:
    return W @ W.mT if W.shape[0] < W.shape[1] else W.mT @ W


def root_of_top(G: Tensor, trace: float, rtol: float) -> tuple[float, float, Tensor]:
    """√λ₁(G), a bound on its relative error, and the power of `G` it was read from; `trace` is that
    of `G`.
    """
    if G.shape[0] <= SQUARED_UP_TO:
        found = _by_squaring(G, trace, rtol)
        if found is not None:
            return found
    return math.sqrt(max(float(torch.linalg.eigvalsh(G)[-1]), 0.0)), 0.0, G


def _by_squaring(G: Tensor, trace: float, rtol: float) -> tuple[float, float, Tensor] | None:
    """Raise `G` to powers P until its trace and Frobenius norm enclose its top eigenvalue tightly
    enough.

    With M ∝ G^P, the 2P-th root of what encloses λ₁(M) encloses √λ₁(G), and the middle is the
    answer. No spectrum is bad: k equal eigenvalues are enclosed within a factor of k^(1/4P).
    """
    kept_trace = G.shape[0] / 4  # then 1/4 ≤ λ₁ ≤ 64: the squares of its 8th power fit in float32
    raised, log_root, before = G, 0.0, 1
    for exponent in (8, 64, 512, 4096):
        scale = trace / kept_trace
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
    """The least that the top eigenvalue of a positive matrix can be, given its trace t and
    Frobenius norm f.

    f² = Σλ² ≤ λ₁Σλ gives f²/t; f² ≤ λ₁² + (t − λ₁)² gives more where f² > t²/2, and is exact for
    two eigenvalues. (At most it is f, since λ₁² ≤ f².)

    >>> round(least_top(trace=3 + 1, frobenius=math.hypot(3, 1)), 9), least_top(trace=4, frobenius=2)
    (3.0, 1.0)
    """
    apart = 2 * frobenius**2 - trace**2
    return (trace + math.sqrt(apart)) / 2 if apart > 0 else frobenius**2 / trace
