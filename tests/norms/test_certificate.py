"""A warm start can mislead about the largest singular value, and must not; it can help, and
must.
"""

import pytest
import torch
from torch import Tensor

from mupscale.norms import block_power, spectral, spectral_norm

SHAPE = (300, 280)


def naive_power_iteration(W: Tensor, v: Tensor, rtol: float = 1e-3) -> float:
    """What many do: iterate from the warm start until the residual is small."""
    for _ in range(100):
        w = W.mT @ (W @ v)
        theta = float(v @ w)
        if float((w - theta * v).norm()) <= rtol * theta:
            break
        v = w / w.norm()
    return theta**0.5


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows in each application of WᵀW from now on."""
    rows: list[int] = []
    apply = block_power.times_gram

    def count(X: Tensor, W: Tensor) -> Tensor:
        rows.append(len(X))
        return apply(X, W)

    monkeypatch.setattr(block_power, "times_gram", count)
    return rows


@pytest.mark.parametrize("second", [0.5, 0.9, 0.99, 0.997])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_singular_vector_of_a_smaller_value_fools_a_residual_but_not_us(
    matrix_with, second, dtype
):
    W, V = matrix_with(*SHAPE, [1.0, second, *[0.3] * 300])
    W, V = W.to(dtype), V.to(dtype)
    assert naive_power_iteration(W, V[1]) == pytest.approx(second, rel=1e-3)
    for method in ("power", "auto"):
        assert float(spectral_norm(W, method, start=V[1:2])) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_a_start_that_spans_all_large_singular_vectors_but_the_largest_is_found_out(
    matrix_with, seed
):
    W, V = matrix_with(*SHAPE, [1.0, *[0.99] * 20, *[0.3] * 300], seed)
    generator = torch.Generator().manual_seed(seed)
    result = spectral_norm(W.float(), "power", start=V[1:17], generator=generator)
    assert float(result) == pytest.approx(1.0, rel=1e-3)


def test_a_start_in_the_null_space_is_no_sign_of_a_zero_matrix(matrix_with):
    W, _ = matrix_with(*SHAPE, [1.0, 0.5])
    padded = torch.nn.functional.pad(W.float(), (0, 40))
    null = torch.eye(padded.shape[1])[-40:]
    assert not bool((padded @ null.mT).any())
    assert float(spectral_norm(padded, "power", start=null)) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_rows_of_a_start_without_a_direction_are_replaced(matrix_with, value):
    W, V = matrix_with(*SHAPE, [1.0, *[0.3] * 300])
    start = torch.stack([torch.full_like(V[0], value), V[1]])
    assert float(spectral_norm(W, "power", start=start)) == pytest.approx(1.0, rel=1e-3)


def test_the_bound_contains_the_true_norm_and_the_value_is_below_it(matrix_with):
    for seed in range(30):
        W, _ = matrix_with(*SHAPE, [0.7**i for i in range(280)], seed)
        result = spectral_norm(W, "power", rtol=1e-2, generator=torch.Generator().manual_seed(seed))
        assert float(result) <= 1.0 + 1e-12
        assert float(result) * (1 + float(result.relative_error)) >= 1.0 - 1e-12


def test_a_warm_start_saves_applications(matrix_with, monkeypatch):
    W, _ = matrix_with(*SHAPE, [0.97**i for i in range(280)])
    similar = W + 1e-3 * torch.randn(
        SHAPE, generator=torch.Generator().manual_seed(1), dtype=W.dtype
    )
    before = spectral_norm(W, "power")
    rows = counted(monkeypatch)
    cold = spectral_norm(similar, "power")
    applied_cold = len(rows)
    warm = spectral_norm(similar, "power", start=before.start)
    assert len(rows) - applied_cold < applied_cold
    assert cold.method == warm.method == "power"


def test_a_flat_spectrum_is_left_to_the_gram_matrix_after_three_rounds(monkeypatch):
    W = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    rows = counted(monkeypatch)
    assert spectral_norm(W, "power").method == "gram"
    assert len(rows) <= 3 + sum(block_power.DEPTHS)


def test_same_seed_gives_the_same_bits_and_inputs_and_global_randomness_are_left_alone(matrix_with):
    W, V = (M.float() for M in matrix_with(*SHAPE, [0.8**i for i in range(280)]))
    before_W, before_V, state = W.clone(), V.clone(), torch.get_rng_state()
    results = [
        spectral_norm(W, "power", start=V[2:4], generator=torch.Generator().manual_seed(7))
        for _ in range(2)
    ]
    plain = [spectral_norm(W, "power") for _ in range(2)]
    for one, two in (results, plain):
        assert float(one) == float(two)
        assert torch.equal(one.start, two.start)
    assert not torch.equal(results[0].start, plain[0].start)
    assert torch.equal(W, before_W)
    assert torch.equal(V, before_V)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_result_does_not_share_memory_with_the_input(matrix_with):
    for shape in [(300, 280), (60, 50), (50, 60), (4, 4)]:
        W, _ = matrix_with(*shape, [0.8**i for i in range(280)])
        for method in ("exact", "gram", "power"):
            result = spectral_norm(W, method)
            before = W.clone()
            result.start.fill_(3.0)
            assert torch.equal(W, before)


def test_without_a_generator_the_directions_are_those_of_the_matrix_and_of_no_other(
    matrix_with, monkeypatch
):
    """A start holds what the last call's directions found: were they drawn again, they could not
    contradict it.
    """
    seeds: list[int] = []
    honest = spectral.block_power

    def noting(W: Tensor, start: Tensor, rtol: float, generator: torch.Generator):
        seeds.append(generator.initial_seed())
        return honest(W, start, rtol, generator)

    monkeypatch.setattr(spectral, "block_power", noting)
    first, second = (matrix_with(*SHAPE, [1.0, 0.5], seed=seed)[0] for seed in (0, 1))
    for W in (first, second, first.clone()):
        spectral_norm(W, "power")
    assert seeds[0] == seeds[2] != seeds[1]
