"""What the theory of grouped-query attention predicts about norms, at σ = 1."""

import math

import pytest
import torch
from torch import Tensor

from mupscale.norms import expected_operator_norm, repeat, spectral_norm

WIDTH = 768
HEAD_DIM = 64
REPETITIONS = (1, 2, 3, 4, 6, 12)


def key_value_matrix(r: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """W_p: (n/r × n), standard Gaussian."""
    generator = torch.Generator().manual_seed(r)
    return torch.randn(WIDTH // r, WIDTH, generator=generator, dtype=dtype)


@pytest.mark.parametrize("r", REPETITIONS)
@pytest.mark.parametrize("head_dim", [None, HEAD_DIM])
def test_repetition_multiplies_the_spectral_norm_by_its_root(r, head_dim):
    W = key_value_matrix(r, torch.float64)[:, :128]
    repeated = repeat(W, r, head_dim=head_dim)
    expected = math.sqrt(r) * float(spectral_norm(W, "exact"))
    assert float(spectral_norm(repeated, "exact")) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("r", REPETITIONS)
def test_the_expected_norm_of_the_repeated_matrix_does_not_depend_on_repetitions(r):
    found = expected_operator_norm(repeat(key_value_matrix(r), r, head_dim=HEAD_DIM), samples=4096)
    assert found.value / math.sqrt(WIDTH) == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("r", REPETITIONS)
def test_the_spectral_norm_of_the_repeated_matrix_grows_as_one_plus_root_r(r):
    W = key_value_matrix(r)
    assert float(spectral_norm(repeat(W, r))) / math.sqrt(WIDTH) == pytest.approx(
        1 + math.sqrt(r), rel=0.04
    )
    assert float(spectral_norm(W)) / math.sqrt(WIDTH) == pytest.approx(
        1 + 1 / math.sqrt(r), rel=0.04
    )


@pytest.mark.parametrize("r", [1, 4, 12])
def test_the_spread_over_draws_grows_as_root_r_over_2n(r):
    n, draws = 192, 6000
    generator = torch.Generator().manual_seed(r)
    stretches: list[Tensor] = []
    for _ in range(
        draws // 500
    ):  # one x for each draw of the matrix: averaging over x would remove the effect
        W = repeat(torch.randn(500, n // r, n, generator=generator), r)
        x = torch.randn(500, n, 1, generator=generator)
        stretches.append((W @ x).norm(dim=(1, 2)) / x.norm(dim=(1, 2)))
    ratio = torch.cat(stretches)
    assert float(ratio.std() / ratio.mean()) == pytest.approx(math.sqrt(r / (2 * n)), rel=0.05)


def test_a_square_gaussian_stretches_its_worst_input_twice_as_much_as_a_typical_one():
    W = key_value_matrix(1)
    assert float(spectral_norm(W)) / expected_operator_norm(W).value == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("shape", [(768, 576), (64, 576), (1, 9)], ids=str)
@pytest.mark.parametrize("method", ["auto", "power", "gram", "exact"])
def test_the_sign_of_a_rank_one_matrix_is_coherent(shape, method):
    generator = torch.Generator().manual_seed(0)
    rank_one = torch.outer(
        torch.randn(shape[0], generator=generator), torch.randn(shape[1], generator=generator)
    )
    norm = float(spectral_norm(rank_one.sign().double(), method))
    assert norm == pytest.approx(math.sqrt(shape[0] * shape[1]), rel=1e-12)
