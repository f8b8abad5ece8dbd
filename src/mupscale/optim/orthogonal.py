"""The two formulas of Muon: approximately the nearest orthogonal matrix, and the step length."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

# Jordan 2024, Muon: the largest slope at zero with which five steps bring every singular value to
# 0.7 … 1.2.
NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalized(
    G: Tensor,
    coefficients: tuple[float, float, float] = NS_COEFFICIENTS,
    steps: int = 5,
    eps: float = 1e-7,
) -> Tensor:
    """U·S·Vᵀ → approximately U·Vᵀ for each matrix of `G` (…, rows, columns), by Newton–Schulz steps
    in bfloat16.

    The operations are those of torch.optim.Muon, whose function is private and takes one matrix. A
    stack is multiplied in one call, which sums in another order: its last bfloat16 digit can differ
    from that of its matrices alone.

    >>> G = torch.tensor([[3.0, 0.0], [0.0, -0.2]])
    >>> bool((orthogonalized(G).float().abs() - torch.eye(2)).abs().max() < 0.35)
    True
    """
    a, b, c = coefficients
    multiply_add = torch.addmm if G.ndim == 2 else torch.baddbmm
    tall = G.size(-2) > G.size(-1)
    x = G.to(torch.bfloat16).contiguous()
    x = x.mT if tall else x  # the smaller Gram matrix
    # Not in place: if G is in bfloat16 then x is G itself, which may be the momentum.
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = multiply_add(gram, gram, gram, beta=b, alpha=c)
        x = multiply_add(x, polynomial, x, beta=a)
    return x.mT if tall else x


def original(n_out: int, n_in: int) -> float:
    """√max(1, n_out/n_in), Jordan 2024."""
    return math.sqrt(max(1, n_out / n_in))


def match_rms_adamw(n_out: int, n_in: int) -> float:
    """0.2·√max(n_out, n_in): entries move as far as AdamW's, Liu et al. 2025."""
    return 0.2 * math.sqrt(max(n_out, n_in))


def spectral(n_out: int, n_in: int) -> float:
    """√(n_out/n_in): features move as far at any width, Yang, Simon & Bernstein 2023."""
    return math.sqrt(n_out / n_in)


LR_RATIOS: dict[str, Callable[[int, int], float]] = {
    "original": original,
    "match_rms_adamw": match_rms_adamw,
    "spectral": spectral,
}


def lr_ratio(adjust_lr_fn: str | None, n_out: int, n_in: int) -> float:
    """The factor on the rate of an n_out × n_in matrix.

    >>> lr_ratio(None, n_out=64, n_in=16)
    2.0
    """
    return LR_RATIOS[adjust_lr_fn or "original"](n_out, n_in)
