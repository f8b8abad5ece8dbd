from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

MatrixWith = Callable[..., tuple[Tensor, Tensor]]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def matrix_with() -> MatrixWith:
    """A float64 matrix with the given singular values, and its right singular vectors as rows."""

    def build(
        rows: int, columns: int, values: Sequence[float], seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        s = torch.tensor(values[: min(rows, columns)], dtype=torch.float64)
        U = torch.linalg.qr(torch.randn(rows, len(s), generator=generator, dtype=torch.float64)).Q
        V = torch.linalg.qr(
            torch.randn(columns, len(s), generator=generator, dtype=torch.float64)
        ).Q
        return (U * s) @ V.mT, V.mT

    return build
