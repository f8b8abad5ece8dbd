"""The spectral norm from the Gram matrix, WᵀW or WWᵀ, whichever is smaller."""

import math

import torch
from torch import Tensor

# Up to this size, squaring the Gram matrix a few times costs no more than its eigenvalues.
SQUARED_UP_TO = 256


def gram_matrix(W: Tensor) -> Tensor:
    return W @ W.mT if W.shape[0] < W.shape[1] else W.mT @ W


def root_of_top(G: Tensor, trace: float, rtol: float) -> tuple[float, float, Tensor]:
    """√λ₁(G), a bound on its relative error, and the power of `G` it was read from; `trace` is that of `G`."""
    if G.shape[0] <= SQUARED_UP_TO:
        found = _by_squaring(G, trace, rtol)
        if found is not None:
            return found
    return math.sqrt(max(float(torch.linalg.eigvalsh(G)[-1]), 0.0)), 0.0, G


def _by_squaring(G: Tensor, trace: float, rtol: float) -> tuple[float, float, Tensor] | None:
    """Raise `G` to powers P until its trace and Frobenius norm enclose its top eigenvalue tightly enough.

    A positive M has ‖M‖_F²/tr M ≤ λ₁(M) ≤ ‖M‖_F, because Σλ² ≤ λ₁Σλ and λ₁² ≤ Σλ². With M ∝ G^P, the 2P-th root
    of that encloses √λ₁(G), and the middle is the answer. No spectrum is bad: k equal eigenvalues are enclosed
    within a factor of k^(1/4P).
    """
    kept_trace = G.shape[0] / 4  # then λ₁ is at least 1/4: its 16th power, and that of the trace, fit in float32
    M, log_root = G, 0.0
    for power in (1, 16, 256, 4096):
        scale = trace / kept_trace
        M = M / scale
        log_root += math.log(scale) / (2 * power)
        if power > 1:
            log_frobenius = math.log(float(torch.linalg.vector_norm(M)) / kept_trace)
            error = max(math.expm1(-log_frobenius / (4 * power)), 0.0)
            if error <= rtol:
                middle = math.log(kept_trace) + 1.5 * log_frobenius
                return math.exp(log_root + middle / (2 * power)), error, M
        for _ in range(4):
            M = M @ M
        trace = float(M.trace())
    return None
