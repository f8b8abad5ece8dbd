"""Training speed of the reference GPT on one core, in tokens per second, compared with
transformers' GPT-2 of the same shape.

    python benchmarks/throughput.py

A step is forward, backward and AdamW (fused), in float32 on one thread, on 8 sequences of 128
tokens, with 4 blocks, a vocabulary of 256 and an untied readout. GPT-2 has the same loop and loss,
sdpa attention, no dropout and no cache. By default its tanh GELU is written out in Python ("as it
comes"); "with GELU" it computes the same activation as ours, in one kernel. In each round every
model takes a step, in random order. Times are processor time, because on a shared machine the clock
also counts other programs. A ratio is the median over rounds, with a bootstrapped 95 % interval.

Share of the peak: 6 operations per matrix entry and token, and 6 · T · inner per block and token
(causal attention, forward and backward), divided by the speed of float32 products of 1024 × 1024,
measured between the rounds.
"""

import os

# Some virtual machines announce Intel's AMX and trap on it, which kills the process in bfloat16
# products.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.profiler import ProfilerActivity, profile

from mupscale.models import GPT, GPTConfig

BATCH, LENGTH, DEPTH, VOCABULARY = 8, 128, 4, 256
TOKENS = BATCH * LENGTH
HEAD_DIMS = {64: 16, 128: 16, 256: 32, 768: 64}
ROUNDS = {64: 80, 128: 40, 256: 20, 768: 5}
WARM_UP_ROUNDS = 3
AIMS = {64: 1.4, 128: 1.25, 256: 1.2}

Step = Callable[[], Any]


def ours(width: int) -> GPT:
    return GPT(
        GPTConfig(
            width=width, depth=DEPTH, n_heads=width // HEAD_DIMS[width], vocabulary=VOCABULARY,
            context=LENGTH,
        )
    )  # fmt: skip


def gpt2(width: int, activation: str) -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=width, n_layer=DEPTH, n_head=width // HEAD_DIMS[width], vocab_size=VOCABULARY,
        n_positions=LENGTH, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        activation_function=activation, tie_word_embeddings=False, use_cache=False,
        attn_implementation="sdpa", bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def training_step(
    model: nn.Module,
    loss_of: Callable[[Tensor, Tensor], Tensor] | None = None,
    *,
    fused: bool = True,
) -> Step:
    """One step on random tokens; `loss_of` computes the loss where the model does not take
    targets.
    """
    optimizer = AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=fused, foreach=not fused)
    tokens = torch.randint(
        VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(0)
    )
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    loss_of = model if loss_of is None else loss_of

    def step() -> None:
        loss_of(inputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gpt2_step(width: int, activation: str) -> Step:
    model = gpt2(width, activation)

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten())

    return training_step(model, loss_of)


def matmul_step() -> Step:
    a, b, out = torch.randn(1024, 1024), torch.randn(1024, 1024), torch.empty(1024, 1024)
    return lambda: torch.mm(a, b, out=out)


def seconds(step: Step) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def rounds(steps: Mapping[str, Step], count: int) -> dict[str, list[float]]:
    """Seconds of each model, round by round."""
    order, generator = list(steps), random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(WARM_UP_ROUNDS + count):
        generator.shuffle(order)
        for name in order:
            spent = seconds(steps[name])
            if number >= WARM_UP_ROUNDS:
                times[name].append(spent)
    return times


@dataclass(frozen=True)
class Ratio:
    middle: float
    low: float
    high: float

    @staticmethod
    def of(upper: list[float], lower: list[float]) -> "Ratio":
        values = [a / b for a, b in zip(upper, lower, strict=True)]
        resampled = np.random.default_rng(0).choice(values, size=(10_000, len(values)))
        low, high = np.quantile(np.median(resampled, axis=1), [0.025, 0.975])
        return Ratio(statistics.median(values), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.middle:.2f} [{self.low:.2f}, {self.high:.2f}]"


def operations(model: GPT) -> int:
    """Floating-point operations of one step, the products alone."""
    config = model.config
    entries = sum(
        p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "proj" in name
    )
    entries += model.readout.weight.numel()
    attention = 6 * config.depth * LENGTH * config.n_heads * config.head_size
    return TOKENS * (6 * entries + attention)


def against_gpt2(width: int) -> list[Ratio]:
    """Print the row of one width; return the ratios to GPT-2 as it comes and with GELU."""
    torch.manual_seed(0)
    model = ours(width)
    steps = {
        "ours": training_step(model),
        "as it comes": gpt2_step(width, "gelu_new"),
        "with GELU": gpt2_step(width, "gelu"),
        "peak": matmul_step(),
    }
    times = rounds(steps, ROUNDS[width])
    peak = 2 * 1024**3 / min(times["peak"])
    middle = {name: statistics.median(t) for name, t in times.items()}
    fraction = operations(model) / middle["ours"] / peak
    ratios = [Ratio.of(times[name], times["ours"]) for name in ("as it comes", "with GELU")]
    per_second = [
        f"{TOKENS / middle[name]:>10,.0f}" for name in ("ours", "as it comes", "with GELU")
    ]
    print(
        f"{width:>5}{per_second[0]}{per_second[1]:>14}  {ratios[0]!s:<20}{per_second[2]:>10}  "
        f"{ratios[1]!s:<20}"
        f"{peak / 1e9:>7.0f}{fraction:>8.2f}",
        flush=True,
    )
    return ratios


KINDS = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "attention": ("scaled_dot_product", "ScaledDotProduct"),
    "norms": ("layer_norm", "NativeLayerNorm"),
    "activation": ("gelu", "tanh", "pow", "Gelu", "Tanh", "Pow", "aten::mul"),
    "loss": ("log_softmax", "nll_loss", "cross_entropy", "LogSoftmax", "NllLoss"),
}
"""How the operations of a profile are sorted, by parts of their names."""


def shares(step: Step, repeats: int) -> dict[str, float]:
    """Time by kind of operation. Python, autograd's bookkeeping, sums and copies are "the rest"."""
    for _ in range(WARM_UP_ROUNDS):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(repeats):
            step()
    found = dict.fromkeys([*KINDS, "optimizer", "the rest"], 0.0)
    for event in recorded.events() or ():
        parent = event
        while parent is not None and "Optimizer.step" not in parent.name:
            parent = parent.cpu_parent
        in_optimizer = parent is not None
        kind = next(
            (kind for kind, parts in KINDS.items() if any(part in event.name for part in parts)),
            "the rest",
        )
        found["optimizer" if in_optimizer else kind] += event.self_cpu_time_total
    return {kind: spent / sum(found.values()) for kind, spent in found.items()}


def profiles() -> None:
    print(
        f"\n{'where the time goes':<30}"
        + "".join(f"{kind:>12}" for kind in [*KINDS, "optimizer", "the rest"])
    )
    for width in (64, 128, 256):
        for name, step in [
            ("ours", training_step(ours(width))),
            ("GPT-2 as it comes", gpt2_step(width, "gelu_new")),
            ("GPT-2 with GELU", gpt2_step(width, "gelu")),
        ]:
            found = shares(step, repeats=5)
            print(
                f"{width:>5}  {name:<23}" + "".join(f"{share:>12.0%}" for share in found.values()),
                flush=True,
            )


def variants(width: int, count: int) -> None:
    """What torch.compile, bfloat16 autocast and AdamW with foreach change, as gains over the plain
    step.
    """
    model = ours(width)
    compiled, narrow = torch.compile(model), training_step(ours(width))

    def in_bfloat16() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            narrow()

    steps = {
        "plain": training_step(model),
        "compiled": training_step(model, compiled),
        "bfloat16": in_bfloat16,
        "foreach": training_step(ours(width), fused=False),
    }
    start = time.perf_counter()
    steps["compiled"]()
    compiling = time.perf_counter() - start
    times = rounds(steps, count)
    gains = {name: Ratio.of(times["plain"], times[name]) for name in steps}
    print(f"\ngains at width {width} (above 1 is faster)")
    print(f"  torch.compile          {gains['compiled']}, after {compiling:.0f} s of compiling")
    print(
        f"  bfloat16 autocast      {gains['bfloat16']}, "
        f"ONEDNN_MAX_CPU_ISA={os.environ['ONEDNN_MAX_CPU_ISA']}"
    )
    print(f"  AdamW foreach          {gains['foreach']}, instead of fused", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}"
    )
    print(
        f"1 thread, float32, {BATCH} × {LENGTH} tokens, {DEPTH} blocks; tokens per second, and "
        "ours over GPT-2\n"
    )
    print(f"{'width':>5}{'ours':>10}{'as it comes':>14}  {'ours is faster':<20}{'with GELU':>10}  "
          f"{'ours is faster':<20}{'peak':>7}{'of it':>8}")  # fmt: skip
    found = {width: against_gpt2(width) for width in HEAD_DIMS}
    profiles()
    variants(128, 20)
    print()
    for width, aim in AIMS.items():
        as_it_comes, with_gelu = ("yes" if ratio.low >= aim else "NO" for ratio in found[width])
        print(
            f"width {width}: {aim} times GPT-2 as it comes: {as_it_comes}; with the same GELU: "
            f"{with_gelu}"
        )


if __name__ == "__main__":
    main()
