"""How fast `mupscale.norms.spectral_norm` is compared with `torch.linalg.matrix_norm`, at rtol 1e-3
on one thread.

Inputs are random matrices, which have no gap in their spectrum, and real weight updates W_t −
W_{t−1} of AdamW: from a one-block transformer on the bytes of Python's standard library, and from a
wide linear layer on the same bytes. "Warm" means started from the result of the previous matrix:
the previous step's update, or a random matrix changed by 1 %.

Each repeat runs one function over all matrices of a cell and then the other over the same ones.
Times are for one matrix (or one stack of 8), the median over repeats; the ratio is the median of
the repeats' ratios. So each function has its code in the caches. A single call right after an SVD
does not, and gains less, most of all at 64 × 576.
"""

import platform
import statistics
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from mupscale.norms import SpectralNorm, spectral_norm

SHAPES = {"q": (768, 576), "k": (64, 576), "up": (2304, 576), "wide": (4096, 4096)}
MATRICES = {"q": 12, "k": 24, "up": 12, "wide": 2}
REPEATS = {"q": 7, "k": 25, "up": 7, "wide": 3}
WARM_UP_STEPS = 20
STACK = 8


class Block(nn.Module):
    """One pre-norm transformer block with an embedding and a head: 12 query heads, 1 key/value
    head.
    """

    def __init__(self, width: int = 576, heads: int = 12, head_dim: int = 64) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.embed = nn.Embedding(256, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(3))
        self.q = nn.Linear(width, heads * head_dim, bias=False)
        self.k = nn.Linear(width, head_dim, bias=False)
        self.v = nn.Linear(width, head_dim, bias=False)
        self.o = nn.Linear(heads * head_dim, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        y = self.norms[0](x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        k, v = (part.expand(-1, self.heads, -1, -1) for part in (k, v))
        x = x + self.o(
            functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )
        x = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return self.head(self.norms[2](x))


class Wide(nn.Module):
    """A 4096 × 4096 linear layer between an embedding and a head."""

    def __init__(self, width: int = 4096) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.wide = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(functional.gelu(self.wide(self.embed(tokens))) / 64)


def batches(size: int, length: int) -> Iterator[Tensor]:
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    data = torch.frombuffer(
        bytearray(b"".join(path.read_bytes() for path in sources)), dtype=torch.uint8
    ).long()
    generator = torch.Generator().manual_seed(0)
    while True:
        yield data[
            torch.randint(len(data) - length, (size, 1), generator=generator) + torch.arange(length)
        ]


def updates(
    model: nn.Module, names: list[str], steps: int, keep: int, tokens: tuple[int, int]
) -> dict[str, list[Tensor]]:
    """The last `keep` updates of the named layers over `steps` steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    kept: dict[str, list[Tensor]] = {name: [] for name in names}
    weights = {name: model.get_submodule(name).weight for name in names}
    for step, batch in zip(range(steps), batches(*tokens), strict=False):
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        optimizer.step()
        if step >= steps - keep:
            for name, weight in weights.items():
                kept[name].append(weight.detach() - before[name])
    return kept


def random_walk(shape: tuple[int, int], count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    matrices = [torch.randn(shape, generator=generator)]
    while len(matrices) < count:
        matrices.append(matrices[-1] + 0.01 * torch.randn(shape, generator=generator))
    return matrices


@dataclass(frozen=True)
class Row:
    shape: str
    inputs: str
    exact_ms: float
    ours_ms: float
    ratio: float
    error: float
    method: str

    def __str__(self) -> str:
        return (
            f"{self.shape:>13}  {self.inputs:<13} {self.exact_ms:12.3f} {self.ours_ms:10.3f} "
            f"{self.ratio:8.1f}x "
            f"{self.error:12.1e}  {self.method}"
        )


def exact_in_turn(matrices: list[Tensor]) -> float:
    began = time.perf_counter()
    for W in matrices:
        torch.linalg.matrix_norm(W, 2)
    return time.perf_counter() - began


def ours_in_turn(matrices: list[Tensor], start: Tensor | None) -> tuple[float, list[SpectralNorm]]:
    """Seconds and results; from a start, each result starts the next."""
    results: list[SpectralNorm] = []
    began = time.perf_counter()
    for W in matrices:
        results.append(spectral_norm(W, start=start))
        start = None if start is None else results[-1].start
    return time.perf_counter() - began, results


def measure(
    label: str, inputs: str, matrices: list[Tensor], repeats: int, truth: list[Tensor]
) -> Row:
    """Times over all matrices but the first, which is there to start the second from."""
    start = spectral_norm(matrices[0]).start if inputs.endswith("warm") else None
    exact_in_turn(matrices[1:2])
    exact_times, our_times, results = [], [], []
    for _ in range(repeats):
        exact_times.append(exact_in_turn(matrices[1:]))
        took, results = ours_in_turn(matrices[1:], start)
        our_times.append(took)
    errors = [
        float((one.value / true - 1).abs().max())
        for one, true in zip(results, truth[1:], strict=True)
    ]
    milliseconds = 1000 / len(results)
    return Row(
        shape=label,
        inputs=inputs,
        exact_ms=statistics.median(exact_times) * milliseconds,
        ours_ms=statistics.median(our_times) * milliseconds,
        ratio=statistics.median(a / b for a, b in zip(exact_times, our_times, strict=True)),
        error=max(errors),
        method=" ".join(sorted({one.method for one in results})),
    )


def stacked(matrices: list[Tensor]) -> list[Tensor]:
    """Two stacks: eight matrices, and each one's successor."""
    return [torch.stack(matrices[:STACK]), torch.stack(matrices[1 : STACK + 1])]


def rows(name: str, kind: str, matrices: list[Tensor]) -> Iterator[Row]:
    truth = [torch.linalg.matrix_norm(W.double(), 2) for W in matrices]
    label = "{}x{}".format(*SHAPES[name])
    for start in ("cold", "warm"):
        yield measure(label, f"{kind}, {start}", matrices, REPEATS[name], truth)
    if len(matrices) > STACK:
        for start in ("cold", "warm"):
            yield measure(f"8x{label}", f"{kind}, {start}", stacked(matrices), 5, stacked(truth))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        f"machine: {processor()}; Python {platform.python_version()}; torch {torch.__version__}; 1 "
        "thread"
    )
    print(
        f"matrices in a cell: {MATRICES}; repeats: {REPEATS}, stacks of 8: 5; float32, rtol 1e-3\n"
    )
    print(
        f"{'shape':>13}  {'inputs':<13} {'matrix_norm':>12} {'ours (ms)':>10} {'ratio':>9} "
        f"{'worst error':>12}  method"
    )
    real = updates(
        Block(), ["q", "k", "up"], WARM_UP_STEPS + MATRICES["k"], MATRICES["k"], (8, 129)
    )
    real |= updates(Wide(), ["wide"], 4 + MATRICES["wide"], MATRICES["wide"], (2, 65))
    table: list[Row] = []
    for name, shape in SHAPES.items():
        for kind, matrices in (
            ("random", random_walk(shape, MATRICES[name])),
            ("update", real[name][-MATRICES[name] :]),
        ):
            for row in rows(name, kind, matrices):
                table.append(row)
                print(row, flush=True)
    warm = [row.ratio for row in table if row.inputs == "update, warm"]
    slowest = min(table, key=lambda row: row.ratio)
    print(f"\n≥10× on warm updates: {'yes' if min(warm) >= 10 else 'no'} (least {min(warm):.1f}×)")
    print(
        f"never slower than exact: {'yes' if slowest.ratio >= 1 else 'no'} (least "
        f"{slowest.ratio:.2f}×)"
    )


def processor() -> str:
    """The name of the processor, if Linux provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


if __name__ == "__main__":
    main()
