"""What a plan's parameter groups cost per optimizer step, compared with one plain group and with
mup's MuAdamW.

    python benchmarks/optimizer_step.py

The model is a Llama with 124 million parameters and random gradients, in float32 on one thread,
with mup's readout as its last layer so that mup accepts it. All optimizers step the same tensors
and share one state: they differ only in their groups. In each round every variant steps once, in
random order. "plain again" is the plain group a second time, which shows the error of the
measurement. Times are processor time, because on a shared machine the clock also counts other
programs. A ratio is the median over rounds, with a bootstrapped 95 % interval.
"""

import platform
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

import mup
import numpy as np
import torch
from torch.optim import AdamW, Optimizer
from transformers import LlamaConfig, LlamaForCausalLM

import mupscale

ROUNDS = {"foreach": 30, "fused": 120}
WARM_UP_ROUNDS = 2
LIMIT = 1.03
LR, DECAY = 1e-6, 0.1
"""A tiny rate: the weights are to stay what they are."""


def llama(width: int, depth: int, kv_heads: int, *, for_mup: bool = False) -> LlamaForCausalLM:
    """Heads of 64, on the meta device."""
    config = LlamaConfig(
        hidden_size=width, num_hidden_layers=depth, num_attention_heads=width // 64,
        num_key_value_heads=kv_heads, intermediate_size=width * 8 // 3, vocab_size=32000,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
        if for_mup:
            model.lm_head = mup.MuReadout(width, 32000, bias=False)
    return model


def model_with_gradients() -> LlamaForCausalLM:
    model = llama(768, 12, 4, for_mup=True).to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
            parameter.grad = torch.randn_like(parameter)
    return mup.set_base_shapes(model, llama(384, 12, 2, for_mup=True), rescale_params=False)


def optimizers(model: LlamaForCausalLM, implementation: str) -> dict[str, Optimizer]:
    """The variants.

    A base with another r and depth gives as many groups as a plan for a Llama has. The plan is made
    for the unmodified Llama: MuReadout does not run where its tensors lack mup's attribute.
    """
    options = {implementation: True}
    plan = mupscale.plan(llama(768, 12, 4), base=llama(384, 4, 6))
    variants: dict[str, Optimizer] = {
        "plain": AdamW(model.parameters(), lr=LR, weight_decay=DECAY, **options),
        "plain again": AdamW(model.parameters(), lr=LR, weight_decay=DECAY, **options),
        "plan": AdamW(plan.param_groups(model, lr=LR, weight_decay=DECAY), **options),
        "mup.MuAdamW": mup.MuAdamW(model.parameters(), lr=LR, weight_decay=DECAY, **options),
    }
    for optimizer in variants.values():
        optimizer.state = variants["plain"].state
    return variants


@dataclass(frozen=True)
class Seconds:
    busy: float
    wall: float


def step(optimizer: Optimizer) -> Seconds:
    wall, busy = time.perf_counter(), time.process_time()
    optimizer.step()
    return Seconds(time.process_time() - busy, time.perf_counter() - wall)


def rounds(variants: dict[str, Optimizer], count: int) -> Iterator[dict[str, Seconds]]:
    order, generator = list(variants), random.Random(0)
    for number in range(WARM_UP_ROUNDS + count):
        generator.shuffle(order)
        times = {name: step(variants[name]) for name in order}
        if number >= WARM_UP_ROUNDS:
            yield times


@dataclass(frozen=True)
class Ratio:
    middle: float
    low: float
    high: float

    @staticmethod
    def of(values: list[float]) -> "Ratio":
        resampled = np.random.default_rng(0).choice(values, size=(10_000, len(values)))
        low, high = np.quantile(np.median(resampled, axis=1), [0.025, 0.975])
        return Ratio(statistics.median(values), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.middle:.3f} [{self.low:.3f}, {self.high:.3f}]"


def report(implementation: str, variants: dict[str, Optimizer]) -> Ratio:
    """Print a row for each variant; return the plan's ratio."""
    times = list(rounds(variants, ROUNDS[implementation]))
    ratios: dict[str, Ratio] = {}
    for name, optimizer in variants.items():
        ratios[name] = Ratio.of([t[name].busy / t["plain"].busy for t in times])
        by_clock = Ratio.of([t[name].wall / t["plain"].wall for t in times])
        shown = ("", "") if name == "plain" else (ratios[name], by_clock)
        milliseconds = 1000 * statistics.median(t[name].busy for t in times)
        print(
            f"{implementation:<10}{name:<14}{len(optimizer.param_groups):>6}{milliseconds:>10.1f}  "
            " "
            f"{shown[0]!s:<24}{shown[1]!s}",
            flush=True,
        )
    return ratios["plan"]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = model_with_gradients()
    count = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, mup {version('mup')}; 1 "
        "thread, float32"
    )
    print(
        f"Llama of {count / 1e6:.1f} M parameters in {len(list(model.parameters()))} tensors; "
        f"rounds: {ROUNDS}\n"
    )
    print(
        f"{'AdamW':<10}{'groups of':<14}{'groups':>6}{'CPU ms':>10}   "
        f"{'ratio to plain, 95 %':<24}by the clock"
    )
    found = {name: report(name, optimizers(model, name)) for name in ROUNDS}
    print()
    for name, ratio in found.items():
        kept = "yes" if ratio.high <= LIMIT else "NO"
        print(
            f"{name}: the plan's groups cost at most {ratio.high:.3f} of a plain step (limit "
            f"{LIMIT}): {kept}"
        )


if __name__ == "__main__":
    main()
