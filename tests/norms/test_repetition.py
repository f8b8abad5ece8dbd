"""W⊕ has the rows of W, r times each, in the order of the paper or of real code."""

import pytest
import torch

from mupscale.errors import DimensionError
from mupscale.norms import repeat


def repeat_kv(states: torch.Tensor, repetitions: int) -> torch.Tensor:
    """Hugging Face's, on (batch, heads, tokens, head_dim)."""
    batch, heads, tokens, head_dim = states.shape
    states = states[:, :, None].expand(batch, heads, repetitions, tokens, head_dim)
    return states.reshape(batch, heads * repetitions, tokens, head_dim)


def test_stacked_is_the_papers_matrix():
    W = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(repeat(W, 3), torch.vstack([W, W, W]))


@pytest.mark.parametrize("r", [1, 2, 6])
def test_with_head_dim_it_produces_the_keys_that_repeat_kv_produces(r):
    generator = torch.Generator().manual_seed(0)
    W, x = torch.randn(2 * 4, 5, generator=generator), torch.randn(1, 7, 5, generator=generator)
    keys = repeat_kv((x @ W.mT).unflatten(-1, (2, 4)).transpose(1, 2), r)
    repeated = (x @ repeat(W, r, head_dim=4).mT).unflatten(-1, (2 * r, 4)).transpose(1, 2)
    torch.testing.assert_close(repeated, keys)


@pytest.mark.parametrize("head_dim", [None, 2])
def test_a_stack_is_repeated_matrix_by_matrix(head_dim):
    W = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        repeat(W, 2, head_dim=head_dim),
        torch.stack([repeat(one, 2, head_dim=head_dim) for one in W]),
    )


@pytest.mark.parametrize("r", [0, -1, 1.5, 2.0, True, "2"])
def test_repetitions_are_a_positive_integer(r):
    with pytest.raises(DimensionError, match="is not a positive integer"):
        repeat(torch.ones(2, 2), r)


@pytest.mark.parametrize("head_dim", [0, 3, 8, -2, 2.0])
def test_rows_are_heads_times_head_dim(head_dim):
    with pytest.raises(
        DimensionError, match=f"4 rows, which is not a multiple of head_dim={head_dim}"
    ):
        repeat(torch.ones(4, 2), 2, head_dim=head_dim)


def test_a_vector_is_no_matrix():
    with pytest.raises(DimensionError, match=r"\(4,\)"):
        repeat(torch.ones(4), 2)
