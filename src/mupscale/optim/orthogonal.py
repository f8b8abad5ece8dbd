"""The two formulas of Muon: the nearest orthogonal matrix, roughly, and how far to go along it."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

# Jordan 2024, Muon: largest slope at zero while five steps bring every singular value to 0.7 … 1.2.
NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalized(
    G: Tensor,
    coefficients: tuple[float, float, float] = NS_COEFFICIENTS,
    steps: int = 5,
    eps: float = 1e-7,
) -> Tensor:
    """U·S·Vᵀ → about U·Vᵀ for each matrix of `G` (…, rows, columns), by Newton–Schulz steps in
    bfloat16.

    The same operations as torch.optim.Muon's, which is private and takes one matrix. A stack is
    multiplied in one call, which adds products up in another order: its last bfloat16 digit can
    differ from that of its matrices alone.

    >>> G = torch.tensor([[3.0, 0.0], [0.0, -0.2]])
    >>> bool((orthogonalized(G).float().abs() - torch.eye(2)).abs().max() < 0.35)
    True
    """
    a, b, c = coefficients
    multiply_add = torch.addmm if G.ndim == 2 else torch.baddbmm
    tall = G.size(-2) > G.size(-1)
    x = G.to(torch.bfloat16).contiguous()
    x = x.mT if tall else x  # the smaller Gram matrix
    # Not in place: x is G itself if G is in bfloat16, and G may be the momentum.
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = multiply_add(gram, gram, gram, beta=b, alpha=c)
        x = multiply_add(x, polynomial, x, beta=a)
    return x.mT if tall else x


def original(n_out: int, n_in: int) -> float:
    """√max(1, n_out/n_in), Jordan 2024.

    >>> original(n_out=64, n_in=16), original(n_out=16, n_in=64)
    (2.0, 1.0)
    """
    return math.sqrt(max(1, n_out / n_in))


def match_rms_adamw(n_out: int, n_in: int) -> float:
    """0.2·√max(n_out, n_in): entries move as AdamW's do, Liu et al. 2025.

    >>> match_rms_adamw(n_out=100, n_in=16)
    2.0
    """
    return 0.2 * math.sqrt(max(n_out, n_in))


def spectral(n_out: int, n_in: int) -> float:
    """√(n_out/n_in): features move as far at any width, Yang, Simon & Bernstein 2023, condition 1.

    >>> spectral(n_out=64, n_in=16), spectral(n_out=16, n_in=64)
    (2.0, 0.5)
    """
    return math.sqrt(n_out / n_in)


LR_RATIOS: dict[str, Callable[[int, int], float]] = {
    "original": original,
    "match_rms_adamw": match_rms_adamw,
    "spectral": spectral,
}


def lr_ratio(adjust_lr_fn: str | None, n_out: int, n_in: int) -> float:
    """What the rate of an n_out × n_in matrix is multiplied by.

    >>> lr_ratio(None, n_out=64, n_in=16)
    2.0
    """
    return LR_RATIOS[adjust_lr_fn or "original"](n_out, n_in)
