"""Every method agrees with an SVD, whatever the shape, type, spectrum, scale and start."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mupscale.errors import DimensionError
from mupscale.norms import spectral_norm
from mupscale.norms.gram import root_of_top

METHODS = ("auto", "exact", "power", "gram")
SPECTRA = {
    "gapped": [1.0, *[0.3] * 400],
    "flat": [1.0] * 400,
    "two equal": [1.0, 1.0, *[0.6] * 400],
    "rank one": [1.0],
    "clustered": [1.0, 0.9985, 0.998, *[0.997] * 30, *[0.5] * 400],
    "linear": [1 - i / 400 for i in range(400)],
    "geometric": [0.8**i for i in range(400)],
}


def exact(W: torch.Tensor) -> torch.Tensor:
    return torch.linalg.matrix_norm(W.detach().double(), 2)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("shape", [(300, 280), (280, 400), (96, 40), (40, 300)], ids=str)
def test_agrees_with_the_svd_for_every_spectrum(matrix_with, shape, spectrum, method):
    W, _ = matrix_with(*shape, SPECTRA[spectrum])
    for rtol in (1e-2, 1e-3, 1e-4):
        result = spectral_norm(W.float(), method, rtol=rtol)
        assert float(result) == pytest.approx(1.0, rel=rtol)
        assert float(result.relative_error) <= rtol


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    seed=st.integers(0, 2**32),
    decay=st.floats(0.5, 1.0),
    method=st.sampled_from(METHODS),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    log_rtol=st.floats(-4, -1),
)
def test_agrees_with_the_svd_for_any_matrix(rows, columns, seed, decay, method, dtype, log_rtol):
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(rows, columns, generator=generator) * decay ** torch.arange(columns)
    W = W.to(dtype)
    rtol = 10**log_rtol
    result = spectral_norm(W, method, rtol=rtol)
    assert float(result) == pytest.approx(float(exact(W)), rel=rtol + 1e-6)
    assert result.value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-12, 1e12, 1e30, 1e37])
@pytest.mark.parametrize("shape", [(300, 280), (40, 60)], ids=str)
def test_entries_that_cannot_be_squared_in_float32_neither_overflow_nor_vanish(
    matrix_with, shape, scale, method
):
    W = (matrix_with(*shape, SPECTRA["geometric"])[0] * scale).float()
    assert float(spectral_norm(W, method)) == pytest.approx(float(exact(W)), rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_a_norm_beyond_the_largest_number_is_infinite(method):
    assert float(spectral_norm(torch.full((300, 280), 3e38), method)) == math.inf
    assert float(spectral_norm(torch.full((300, 280), 3e38).double(), method)) == pytest.approx(
        3e38 * 84000**0.5
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(300, 280), (40, 60), (2, 2)], ids=str)
def test_zero_matrix_has_norm_zero(shape, method):
    assert float(spectral_norm(torch.zeros(shape), method)) == 0.0


@pytest.mark.parametrize("method", METHODS)
def test_single_precision_start_and_float64_matrix_give_float64_accuracy(matrix_with, method):
    W, V = matrix_with(290, 270, SPECTRA["gapped"])
    result = spectral_norm(W, method, rtol=1e-9, start=V[:1].to(torch.bfloat16))
    assert float(result) == pytest.approx(1.0, rel=1e-9)
    assert result.start.dtype == torch.float64


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stack", [(1,), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("shape", [(300, 270), (40, 60)], ids=str)
def test_a_stack_gives_the_norm_of_each_matrix(stack, shape, method):
    generator = torch.Generator().manual_seed(1)
    W = torch.randn(*stack, shape[0], 4, generator=generator) @ torch.randn(
        *stack, 4, shape[1], generator=generator
    )
    W[(0,) * len(stack)] = 0.0
    first = spectral_norm(W, method)
    again = spectral_norm(W, method, start=first.start)
    for result in (first, again):
        assert result.value.shape == result.relative_error.shape == torch.Size(stack)
        assert result.start.shape == (*stack, 16, shape[1])
        torch.testing.assert_close(result.value.double(), exact(W), rtol=1e-3, atol=0.0)


def test_a_stack_names_every_method_that_was_needed(matrix_with):
    easy = matrix_with(300, 270, SPECTRA["gapped"])[0]
    hard = matrix_with(300, 270, SPECTRA["clustered"])[0]
    result = spectral_norm(torch.stack([easy, hard]).float())
    assert result.method == "gram+power"
    torch.testing.assert_close(result.value, torch.ones(2), rtol=1e-3, atol=0.0)


def test_views_and_parameters_are_taken_as_they_are():
    W = torch.nn.Parameter(torch.randn(300, 600, generator=torch.Generator().manual_seed(0)))
    view = W.mT[::2]
    result = spectral_norm(view)
    assert float(result) == pytest.approx(float(exact(view)), rel=1e-3)
    assert not result.value.requires_grad
    assert not result.start.requires_grad


def test_float_of_a_stack_says_where_the_norms_are():
    with pytest.raises(DimensionError, match=r"not a stack of \(2,\)\. Use \.value"):
        float(spectral_norm(torch.eye(3).expand(2, 3, 3)))


def test_first_row_of_start_is_the_top_right_singular_vector(matrix_with):
    W, V = matrix_with(300, 280, SPECTRA["gapped"])
    v = spectral_norm(W, "power").start[0]
    assert abs(float(v @ V[0])) == pytest.approx(1.0, abs=1e-3)


def test_the_least_rtol_is_met_by_svd(matrix_with):
    W, _ = matrix_with(60, 50, SPECTRA["linear"])
    result = spectral_norm(W.float(), "gram", rtol=1e-7)
    assert result.method == "exact"


@settings(deadline=None, max_examples=50)
@given(size=st.integers(2, 256), top=st.integers(1, 256), log_rtol=st.floats(-4, -1))
def test_the_bracket_from_squaring_holds_whatever_the_number_of_equal_values(size, top, log_rtol):
    values = torch.where(torch.arange(size) < top, 2.0, 0.5)
    norm, error, _ = root_of_top(values.diag(), float(values.sum()), rtol=10**log_rtol)
    assert norm == pytest.approx(math.sqrt(2), rel=error + 1e-6)
    assert error <= 10**log_rtol
