"""Inputs without a norm raise, and the message says what was wrong and what to do."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from mupscale.errors import DimensionError, NonFiniteError, OptionError, UnknownNameError
from mupscale.norms import expected_operator_norm, rms_operator_norm, spectral_norm

NORMS = (spectral_norm, expected_operator_norm, rms_operator_norm)
METHODS = ("auto", "exact", "power", "gram")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ([[1.0]], OptionError, r"is a list.*torch\.as_tensor"),
        (torch.ones(2, 2, dtype=torch.int64), OptionError, r"torch\.int64.*\.float\(\)"),
        (torch.ones(2, 2, dtype=torch.complex64), OptionError, r"torch\.complex64"),
        (torch.ones(2, 2, dtype=torch.bool), OptionError, r"torch\.bool"),
        (torch.ones(2, 2, device="meta"), OptionError, r"meta device.*to_empty"),
        (torch.ones(2, 2).to_sparse(), OptionError, r"sparse_coo.*to_dense"),
        (torch.ones(3), DimensionError, r"\(3,\).*\[None\]"),
        (torch.tensor(1.0), DimensionError, r"shape \(\)"),
        (torch.ones(0, 3), DimensionError, r"\(0, 3\) and no entries"),
        (torch.ones(2, 3, 0), DimensionError, r"\(2, 3, 0\) and no entries"),
    ],
)
def test_what_is_no_matrix_of_numbers_is_refused(norm, bad, error, message):
    with pytest.raises(error, match=message):
        norm(bad)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(300, 280), (40, 60), (3, 3)], ids=str)
def test_non_finite_entries_are_counted_in_the_matrix_that_has_them(shape, method):
    stack = torch.ones(2, 3, *shape)
    stack[1, 2, 0, :2] = float("nan")
    stack[1, 2, 1, 1] = float("-inf")
    entries = shape[0] * shape[1]
    with pytest.raises(
        NonFiniteError, match=rf"W\[1, 2\]: 2 NaN and 1 infinite of {entries} entries"
    ):
        spectral_norm(stack, method)
    with pytest.raises(NonFiniteError, match=rf"^W: 2 NaN and 1 infinite of {entries} entries"):
        spectral_norm(stack[1, 2], method)


@pytest.mark.parametrize("norm", NORMS[1:])
def test_the_other_norms_count_them_too(norm):
    A = torch.tensor([[1.0, float("inf")], [float("nan"), 2.0]])
    with pytest.raises(NonFiniteError, match="A: 1 NaN and 1 infinite of 4 entries"):
        norm(A)
    with pytest.raises(DimensionError, match=r"\(2, 2, 2\).*one matrix at a time"):
        norm(torch.ones(2, 2, 2))


@pytest.mark.parametrize("rtol", [0.0, 1.0, -1e-3, 2.0, float("nan")])
def test_rtol_is_between_0_and_1(rtol):
    with pytest.raises(OptionError, match=f"rtol={rtol}.*between 0 and 1"):
        spectral_norm(torch.eye(2), rtol=rtol)


def test_unknown_method_names_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown method 'powr'\. Did you mean 'power'"):
        spectral_norm(torch.eye(2), "powr")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(2, 4), (1, 2, 5), (5, 2)], ids=str)
def test_start_of_another_shape_is_refused(shape, method):
    with pytest.raises(DimensionError, match=r"start has shape .* needs \(any, 5\)"):
        spectral_norm(torch.ones(3, 5), method, start=torch.ones(shape))


def test_start_is_checked_like_a_matrix():
    with pytest.raises(
        DimensionError, match=r"start has shape \(5,\)\. Pass a matrix: start\[None\]"
    ):
        spectral_norm(torch.ones(3, 5), start=torch.ones(5))
    with pytest.raises(OptionError, match=r"start is a list"):
        spectral_norm(torch.ones(3, 5), start=[1.0])


DTENSOR = """
    import sys
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from mupscale.norms import rms_operator_norm, spectral_norm

    rank, path = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    W = torch.randn(301, 280, generator=torch.Generator().manual_seed(0))
    sharded = distribute_tensor(W, init_device_mesh("cpu", (2,)), [Shard(0)])
    assert sharded.to_local().shape[0] in (150, 151)
    for method in ("auto", "exact", "power", "gram"):
        whole, part = spectral_norm(W, method), spectral_norm(sharded, method)
        assert type(part.value) is torch.Tensor, type(part.value)
        assert float(whole) == float(part), method
    assert rms_operator_norm(W) == rms_operator_norm(sharded)
    dist.destroy_process_group()
    print("agreed")
"""


def test_a_sharded_dtensor_has_the_norm_of_the_whole_matrix(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(textwrap.dedent(DTENSOR))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            assert out.strip() == "agreed"
    finally:
        for process in ranks:
            process.kill()
