"""Monte Carlo agrees with closed forms, within its own standard error."""

import math

import pytest
import torch

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.norms import NormEstimate, expected_operator_norm, rms_operator_norm

NORMS = (expected_operator_norm, rms_operator_norm)
NAMED = ("gaussian", "rademacher", "uniform", "one-hot")


def matrix(rows: int = 7, columns: int = 5) -> torch.Tensor:
    return torch.randn(
        rows, columns, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )


def expected_coordinate(n: int) -> float:
    """E |x₁|/‖x‖ of a Gaussian x in n dimensions."""
    return math.exp(math.lgamma(n / 2) - math.lgamma((n + 1) / 2)) / math.sqrt(math.pi)


@pytest.mark.parametrize("n", [2, 10, 100])
def test_one_row_stretches_a_gaussian_by_the_mean_of_a_coordinate(n):
    row = torch.zeros(1, n)
    row[0, 0] = 3.0
    found = expected_operator_norm(row, samples=20_000)
    assert abs(found.value - 3 * expected_coordinate(n)) < 4 * found.standard_error
    assert found.standard_error < 0.01 * found.value


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, math.inf])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_one_hot_inputs_average_the_columns(p, scale):
    A = matrix() * scale
    columns = torch.linalg.vector_norm(matrix(), ord=p, dim=0) * scale
    mean = expected_operator_norm(A, distribution="one-hot", p=p, samples=20_000)
    root = rms_operator_norm(A, distribution="one-hot", p=p, samples=20_000)
    assert abs(mean.value - float(columns.mean())) < 4 * mean.standard_error
    assert (
        abs(root.value - scale * float((columns / scale).square().mean().sqrt()))
        < 4 * root.standard_error
    )


@pytest.mark.parametrize("p", [1, 2, 7.5, 1000, math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_given_inputs_are_averaged_exactly(p, dtype):
    A, X = matrix(), torch.randn(9, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    lengths = [
        torch.linalg.vector_norm(Y.double() / 64, ord=p, dim=1) for Y in (X.double() @ A.mT, X)
    ]
    largest = [Y.double().abs().amax(dim=1) for Y in (X.double() @ A.mT, X)]
    ratios = largest[0] / largest[1] if p == 1000 else lengths[0] / lengths[1]
    found = expected_operator_norm(A, distribution=X, p=p, samples=2)
    root = rms_operator_norm(A, distribution=X, p=p)
    tolerance = 3e-3 if p == 1000 else 1e-12
    assert found.value == pytest.approx(float(ratios.mean()), rel=tolerance)
    assert found.standard_error == pytest.approx(float(ratios.std() / 3), rel=10 * tolerance)
    assert root.value == pytest.approx(float(ratios.square().mean().sqrt()), rel=tolerance)
    assert found.samples == root.samples == 9


def test_a_function_gets_samples_width_and_generator():
    def ones(samples: int, n_in: int, generator: torch.Generator) -> torch.Tensor:
        assert isinstance(generator, torch.Generator)
        return torch.ones(samples, n_in)

    found = expected_operator_norm(matrix(), distribution=ones, samples=11)
    assert found.value == pytest.approx(float(matrix().sum(1).norm()) / math.sqrt(5))
    assert found.standard_error == pytest.approx(0.0, abs=1e-12)
    assert found.samples == 11


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("norm", NORMS)
def test_an_isometry_has_norm_one_for_every_distribution(norm, name):
    Q = torch.linalg.qr(matrix(9, 6)).Q
    found = norm(Q, distribution=name)
    assert found.value == pytest.approx(1.0, abs=1e-12)
    assert found.standard_error == pytest.approx(0.0, abs=1e-12)


def test_rms_of_gaussian_inputs_is_the_frobenius_norm_which_sampling_confirms():
    A = matrix()
    closed = rms_operator_norm(A)
    assert closed == NormEstimate(float(torch.linalg.matrix_norm(A)) / math.sqrt(5), 0.0, 1024)

    def gaussian(samples: int, n_in: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(samples, n_in, generator=generator)

    sampled = rms_operator_norm(A, distribution=gaussian, samples=50_000)
    assert 0 < abs(sampled.value - closed.value) < 4 * sampled.standard_error


@pytest.mark.parametrize("norm", NORMS)
def test_the_standard_error_is_the_spread_over_seeds(norm):
    A = matrix()
    runs = [
        norm(A, distribution="uniform", samples=64, generator=torch.Generator().manual_seed(seed))
        for seed in range(600)
    ]
    spread = float(torch.tensor([run.value for run in runs]).std())
    stated = float(torch.tensor([run.standard_error for run in runs]).mean())
    assert stated == pytest.approx(spread, rel=0.12)


@pytest.mark.parametrize("norm", NORMS)
def test_a_zero_matrix_has_norm_zero(norm):
    assert norm(torch.zeros(3, 4), p=3) == NormEstimate(0.0, 0.0, 1024)


def test_same_seed_gives_the_same_bits_and_global_randomness_is_left_alone():
    state = torch.get_rng_state()
    one, two = (
        expected_operator_norm(matrix(), generator=torch.Generator().manual_seed(5))
        for _ in range(2)
    )
    other = expected_operator_norm(matrix(), generator=torch.Generator().manual_seed(6))
    assert one == two
    assert one != other
    assert float(one) == one.value
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"distribution": "gausian"}, UnknownNameError, "Did you mean 'gaussian'"),
        ({"samples": 1}, OptionError, "samples=1.*at least 2"),
        ({"p": 0.5}, OptionError, "p=0.5.*p ≥ 1"),
        ({"p": math.nan}, OptionError, "p=nan"),
        ({"distribution": torch.ones(4, 3)}, DimensionError, r"\(4, 3\).*\(samples, 5\)"),
        ({"distribution": torch.ones(2, 4, 5)}, DimensionError, "Flatten batch and positions"),
        ({"distribution": torch.ones(1, 5)}, OptionError, "samples=1"),
        (
            {"distribution": torch.tensor([[1.0] * 5, [0.0] * 5])},
            OptionError,
            "1 of 2 inputs are zero.*Drop",
        ),
        ({"distribution": torch.full((2, 5), math.nan)}, ValueError, "distribution: 10 NaN"),
        (
            {"distribution": lambda samples, n_in, generator: torch.ones(3, n_in + 1)},
            DimensionError,
            r"\(3, 6\)",
        ),
    ],
)
def test_wrong_options_are_named_with_the_fix(norm, options, error, message):
    with pytest.raises(error, match=message):
        norm(matrix(), **options)
