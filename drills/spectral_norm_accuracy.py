"""Is `spectral_norm` as accurate as promised? Thousands of matrices of several kinds, compared with
their true norms at rtol 1e-3.

Matrices are float32. Where the singular values are chosen, the truth is the largest of them;
elsewhere it is a float64 SVD. Every matrix has its own generator, so that the random test of the
power method is drawn anew each time. Exits with 1 if any error exceeds the tolerance.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mupscale.norms import Method, spectral_norm

RTOL = 1e-3
METHODS: tuple[Method, ...] = ("auto", "power", "gram")
COUNTS = {(64, 576): 200, (288, 320): 200, (768, 576): 30}


@dataclass(frozen=True)
class Case:
    W: Tensor
    norm: float
    start: Tensor | None = None


@dataclass
class Maker:
    """Matrices of one shape; orthonormal bases are made once and shuffled for each."""

    shape: tuple[int, int]
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def __post_init__(self) -> None:
        rank = min(self.shape)
        self.left, self.right = (
            torch.linalg.qr(self.normal(size, rank).double()).Q for size in self.shape
        )

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def uniform(self, low: float, high: float, count: int) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=self.generator, dtype=torch.float64)

    def shuffled(self, basis: Tensor) -> Tensor:
        order = torch.randperm(basis.shape[1], generator=self.generator)
        rows = torch.randperm(basis.shape[0], generator=self.generator)
        return basis[rows][:, order]

    def with_values(self, values: Tensor) -> tuple[Case, Tensor]:
        """A matrix with these singular values, the largest first, and its right singular vectors as
        rows.
        """
        left, right = self.shuffled(self.left), self.shuffled(self.right)
        s = torch.zeros(min(self.shape), dtype=torch.float64)
        s[: len(values)] = values[: len(s)]
        return Case(((left * s) @ right.mT).float(), float(values[0])), right.mT.float()

    def bulk(self, *top: float, below: float = 0.5) -> Tensor:
        return torch.cat(
            [torch.tensor(top, dtype=torch.float64), self.uniform(0, below, min(self.shape))]
        )


def measured(W: Tensor) -> Case:
    return Case(W, float(torch.linalg.matrix_norm(W.double(), 2)))


def gaussian(make: Maker) -> Case:
    return measured(make.normal(*make.shape))


def update_like(make: Maker) -> Case:
    rank = 12
    decay = 0.8 ** torch.arange(rank)
    low = (make.normal(make.shape[0], rank) * decay) @ make.normal(rank, make.shape[1])
    return measured(1e-3 * (low + make.normal(*make.shape)))


def gapped(make: Maker) -> Case:
    return make.with_values(make.bulk(1.0))[0]


def clustered(make: Maker) -> Case:
    """Between 1 and 60 values within 0.2 % of the largest."""
    count = int(torch.randint(1, 60, (), generator=make.generator))
    return make.with_values(make.bulk(1.0, *make.uniform(0.998, 1.0, count).tolist()))[0]


def equal_top(make: Maker) -> Case:
    count = int(torch.randint(2, 30, (), generator=make.generator))
    return make.with_values(make.bulk(*[1.0] * count))[0]


def rank_one(make: Maker) -> Case:
    return make.with_values(torch.ones(1, dtype=torch.float64))[0]


def fooling_start(make: Maker) -> Case:
    """A start that is exactly the next 1 to 20 singular vectors, whose values are 0.3 % to 30 %
    smaller.
    """
    count = int(torch.randint(1, 20, (), generator=make.generator))
    smaller = make.uniform(0.7, 0.997, count).tolist()
    case, right = make.with_values(make.bulk(1.0, *smaller))
    return Case(case.W, case.norm, right[1 : count + 1])


def bad_start(make: Maker) -> Case:
    """Zero, NaN, infinite, huge, random, or the directions that matter least."""
    case, right = make.with_values(make.bulk(1.0, 0.8, 0.7))
    kinds = [
        0 * right[:4],
        math.nan * right[:4],
        math.inf * right[:4],
        1e30 * right[5:9],
        make.normal(*right.shape),
        right[-16:],
    ]
    return Case(
        case.W, case.norm, kinds[int(torch.randint(len(kinds), (), generator=make.generator))]
    )


FAMILIES: tuple[Callable[[Maker], Case], ...] = (
    gaussian,
    update_like,
    gapped,
    clustered,
    equal_top,
    rank_one,
    fooling_start,
    bad_start,
)


def lines() -> Iterator[tuple[str, int, int]]:
    """A line of the table, its number of norms, and its number of violations."""
    for shape, count in COUNTS.items():
        make = Maker(shape)
        for family in FAMILIES:
            errors: dict[Method, list[float]] = {method: [] for method in METHODS}
            for seed in range(count):
                case = family(make)
                for method in METHODS:
                    generator = torch.Generator().manual_seed(seed)
                    result = spectral_norm(
                        case.W, method, rtol=RTOL, start=case.start, generator=generator
                    )
                    errors[method].append(abs(float(result) / case.norm - 1))
            for method, found in errors.items():
                broken = sum(not error <= RTOL for error in found)
                name = family.__name__.replace("_", " ")
                label = f"{name:<14} {shape[0]:>5}x{shape[1]:<5} {method:<6}"
                yield f"{label} {count:>9} {max(found):>14.1e} {broken:>11}", count, broken


def main() -> int:
    torch.set_num_threads(1)
    began, total, violations = time.perf_counter(), 0, 0
    print(
        f"{'family':<14} {'shape':>11} {'method':<6} {'matrices':>9} {'worst error':>14} "
        f"{'violations':>11}"
    )
    for line, count, broken in lines():
        print(line, flush=True)
        total, violations = total + count, violations + broken
    print(
        f"\n{total} norms at rtol {RTOL:g}: {violations} violations "
        f"({time.perf_counter() - began:.0f} s)"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
