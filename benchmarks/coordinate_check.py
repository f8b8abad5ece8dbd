"""What a coordinate check costs, and which share of it is spent on norms: ours and
torch.linalg.matrix_norm.

    python benchmarks/coordinate_check.py

Two tables. The first is the quick check (width 192, 2 blocks, every r of 12 heads, 2 seeds) with
either method, alternating: total time, and the share spent on norms. The second is the cost per
step at the paper's size, as the difference between a long and a short run, so that set-up and the
first, cold norms cancel.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mupscale.checks import Setup, norming
from mupscale.checks.norming import WarmNorms, WeightSizes
from mupscale.checks.probe import Probe, run_probe
from mupscale.targets import Family
from mupscale.theory import rule_named

Way = Callable[[WarmNorms, int, Tensor], WeightSizes]
OURS: Way = WarmNorms.of


def by_svd(_: WarmNorms, __: int, matrix: Tensor) -> WeightSizes:
    """Every norm by torch's SVD."""
    return WeightSizes(
        float(torch.linalg.matrix_norm(matrix, 2)), float(torch.linalg.matrix_norm(matrix))
    )


@dataclass
class Spent:
    whole: float = 0.0
    norms: float = 0.0

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(self.whole - other.whole, self.norms - other.norms)

    def __iadd__(self, other: "Spent") -> "Spent":
        return Spent(self.whole + other.whole, self.norms + other.norms)


@contextmanager
def timed_norms(way: Way, spent: Spent) -> Generator[None]:
    def of(self: WarmNorms, key: int, matrix: Tensor) -> WeightSizes:
        begin = time.process_time()
        try:
            return way(self, key, matrix)
        finally:
            spent.norms += time.process_time() - begin

    norming.WarmNorms.of = of
    try:
        yield
    finally:
        norming.WarmNorms.of = OURS


def probe(name: str, value: int, seed: int, steps: int, sequence: int) -> Probe:
    setup = Setup(batch=1, sequence=sequence, base=12, steps=steps)
    return Probe(Family(name), "n_kv_heads", value, seed, rule_named("gqa-mup"), setup)


def cost(one: Probe, way: Way) -> Spent:
    """Processor time, which other programs do not change."""
    spent = Spent()
    begin = time.process_time()
    with timed_norms(way, spent):
        run_probe(one)
    spent.whole = time.process_time() - begin
    return spent


def quick() -> None:
    totals = {"mupscale": Spent(), "torch.linalg.matrix_norm": Spent()}
    for value in (12, 6, 4, 3, 2, 1):
        for seed in (1, 2):
            one = probe("gpt:check", value, seed, steps=4, sequence=256)
            totals["mupscale"] += cost(one, OURS)
            totals["torch.linalg.matrix_norm"] += cost(one, by_svd)
    print("the quick check: 12 runs of 4 steps, one thread, seconds of processor time")
    print(f"{'norms by':<28}{'whole':>8}{'norms':>8}{'share':>8}")
    for name, spent in totals.items():
        print(f"{name:<28}{spent.whole:>8.1f}{spent.norms:>8.1f}{spent.norms / spent.whole:>8.1%}")
    ours, svd = totals.values()
    print(
        f"norms {svd.norms / ours.norms:.1f} times as fast, the check {svd.whole / ours.whole:.2f} "
        "times\n"
    )


def step() -> None:
    print("one step at width 576, 8 blocks, 12 heads of 64, batch 1 × 1024: ‖ΔW‖ of every matrix")
    print(f"{'key/value heads':<16}{'norms by':<28}{'step s':>8}{'norms s':>9}{'norms/step':>12}")
    for value in (12, 4, 1):
        for name, way in (("mupscale", OURS), ("torch.linalg.matrix_norm", by_svd)):
            long, short = (
                cost(probe("gpt:coordinate_12,vocabulary=256", value, 1, n, 1024), way)
                for n in (6, 2)
            )
            per = long - short
            training = (per.whole - per.norms) / 4
            norms = per.norms / 4
            print(
                f"{value:<16}{name:<28}{training:>8.2f}{norms:>9.3f}{norms / training:>12.1%}",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_probe(probe("gpt:check", 12, 1, 1, 64))  # imports, the corpus
    quick()
    step()
