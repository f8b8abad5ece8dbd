"""The repeated matrix W⊕, as r query heads that share one key/value head use it."""

import torch
from torch import Tensor

from mupscale.errors import DimensionError


def repeat(W: Tensor, r: int, *, head_dim: int | None = None) -> Tensor:
    """Stack `W` (…, rows, columns) `r` times along its rows; with `head_dim`, repeat each head in
    turn.

    The paper stacks the whole matrix. Code for grouped-query attention repeats each head
    (`repeat_kv` of Hugging Face): the same rows in another order. Norms do not depend on the order:
    ‖W⊕‖ = √r ‖W‖.

    >>> W = torch.tensor([[1.0], [2.0]])
    >>> repeat(W, 2).flatten().tolist()
    [1.0, 2.0, 1.0, 2.0]
    >>> repeat(W, 2, head_dim=1).flatten().tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    if W.ndim < 2:
        raise DimensionError(
            f"W has shape {tuple(W.shape)}. Pass a matrix: W[None] if it is one row."
        )
    if not _is_count(r):
        raise DimensionError(
            f"r={r!r} is not a positive integer. Give query heads per key/value head."
        )
    rows, columns = W.shape[-2:]
    if head_dim is None:
        return torch.cat([W] * r, dim=-2)
    if not _is_count(head_dim) or rows % head_dim:
        raise DimensionError(
            f"W has {rows} rows, which is not a multiple of head_dim={head_dim!r}. "
            "Its rows are key/value heads × head_dim: pass the head_dim of the model."
        )
    heads = W.unflatten(-2, (rows // head_dim, head_dim))
    return heads.repeat_interleave(r, dim=-3).reshape(*W.shape[:-2], rows * r, columns)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
