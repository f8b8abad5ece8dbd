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
    raised, log_root, before = G, 0.0, 1
    for exponent in (16, 256, 4096):
        scale = trace / kept_trace
        log_root += math.log(scale) / (2 * before)
        raised = torch.addmm(raised, raised, raised, beta=0, alpha=scale**-2)
        for _ in range(3):
            raised = raised @ raised
        trace, before = float(raised.trace()), exponent
        frobenius = float(torch.linalg.vector_norm(raised, dtype=torch.float64))  # whose squares need not fit
        error = max(math.expm1(math.log(trace / frobenius) / (4 * exponent)), 0.0)
        if error <= rtol:
            middle = 1.5 * math.log(frobenius) - 0.5 * math.log(trace)
            return math.exp(log_root + middle / (2 * exponent)), error, raised
    return None
