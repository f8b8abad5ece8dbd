"""What experiments of a few training steps share: a model at its start, checks on disk, what it all
costs.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mupscale.analysis import Estimate
from mupscale.checks import CheckResult, Criteria
from mupscale.checks.check import QUANTITIES, judge
from mupscale.data import Batches, open_corpus
from mupscale.engines.ledger import Ledger
from mupscale.errors import OptionError
from mupscale.models import GPT, GPTConfig
from mupscale.paper.costs import training_operations
from mupscale.paper.experiment import Cost, refuse_empty
from mupscale.planning import Plan, plan
from mupscale.targets import Family
from mupscale.theory import Rule, rule_named
from mupscale.training.devices import device_named

HIDDEN = ("query", "key", "value", "attention_output", "mlp_in", "mlp_out")
"""The matrices whose both sides grow with the width, which the paper's claims are about."""

RULE, STD = rule_named("complete-p"), 0.1
"""Of models over width, unless an experiment changes just that."""

_NORMS, _SECONDS = 1.5, 1.0
"""Norms take about half as long again as the training of a few steps; a model and its plan take a
second a run.
"""


@dataclass(frozen=True)
class Start:
    """A model before its first step: how wide, under which rule, from which seed, on which text."""

    family: Family
    width: int
    base: int
    seed: int
    rule: Rule
    std: float
    batch: int
    sequence: int

    def made(self) -> tuple[nn.Module, Plan]:
        """The model with its weights drawn, where torch computes fastest, and its plan."""
        model, made = planned(self.family, self.width, self.base, self.rule)
        made.initialize_(model, std=self.std, seed=self.seed)
        return model.to(device_named()), made

    def batches(self) -> Batches:
        corpus = open_corpus("python-stdlib")
        return Batches(corpus, batch=self.batch, sequence=self.sequence, seed=self.seed)


@dataclass(frozen=True)
class OverWidth:
    """A family over width, and how its members are trained for a few steps."""

    family: Family
    widths: tuple[int, ...]
    seeds: tuple[int, ...]
    steps: int
    batch: int
    sequence: int

    def start(self, width: int, seed: int) -> Start:
        return Start(
            self.family, width, min(self.widths), seed, RULE, STD, self.batch, self.sequence
        )


def planned(family: Family, width: int, base: int, rule: Rule) -> tuple[nn.Module, Plan]:
    """A width of the family with its plan from the base."""
    model = family(width=width)
    return model, plan(model, base=family(width=base), optimizer="adamw", rule=rule)


def shapes(family: Family, widths: Sequence[int], rule: Rule) -> Iterator[str]:
    """Build each width on the meta device, plan it, and say it."""
    for width in widths:
        model, made = planned(on_meta(family), width, min(widths), rule)
        yield f"  {described(model)}; rate of a hidden matrix × {_hidden_rate(made):.4g}"


def on_meta(family: Family) -> Family:
    """The same without memory for weights."""
    return Family(family.name, device="meta")


def shape_of(family: Family, **dimension: int) -> GPTConfig:
    model = on_meta(family)(**dimension)
    assert isinstance(model, GPT)
    return model.config


def described(model: nn.Module) -> str:
    assert isinstance(model, GPT)
    shape, count = model.config, model.parameter_counts().non_embedding
    return (
        f"width {shape.width}, depth {shape.depth}, {shape.n_heads} heads of {shape.head_size}, r "
        "= "
        f"{shape.repetitions}, {count / 1e6:.2f} M non-embedding parameters"
    )


def _hidden_rate(made: Plan) -> float:
    return next(one.lr for one in made.parameters.values() if one.role == "mlp_in")


def recorded_check(folder: Path, runs: int) -> CheckResult:
    """The verdict on a coordinate check whose runs are all in the folder."""
    results = recorded(folder / "runs.jsonl", runs)
    about, _ = Ledger.read(folder / "runs.jsonl")
    name, found = about["vary"], list(results.values())
    values = sorted({run["value"] for run in found})
    about |= {"vary": {name: values}, "seeds": sorted({run["seed"] for run in found})}
    return judge(found, QUANTITIES[name], about, Criteria())


def recorded(ledger: Path, jobs: int) -> dict[str, Any]:
    """The results of a ledger in which nothing is missing."""
    refuse_empty(ledger.parent, ledger.name)
    _, results = Ledger.read(ledger)
    if len(results) < jobs:
        raise OptionError(
            f"{ledger} holds {len(results)} of {jobs} runs. Run the same command again to complete "
            "it."
        )
    return results


def geometric(values: Sequence[float]) -> Estimate:
    """The geometric mean with its interval over seeds, of values that are above zero.

    >>> one = geometric([1.0, 2.0, 4.0])
    >>> round(one.value, 3), round(one.low, 2), round(one.high, 2)
    (2.0, 0.36, 11.19)
    """
    logs = [math.log(value) for value in values]
    mean, count = sum(logs) / len(logs), len(logs)
    variance = sum((one - mean) ** 2 for one in logs) / (count - 1) if count > 1 else math.inf
    found = Estimate.student(mean, math.sqrt(variance / count), count - 1)
    return Estimate(
        math.exp(found.value), math.exp(found.low), math.exp(found.high), found.degrees_of_freedom
    )


def estimated(
    passes: Mapping[GPTConfig, int], *, batch: int, sequence: int, runs: int, workers: int
) -> Cost:
    """Of so many forward and backward passes over a batch by each model, on this machine as fast as
    it is now.
    """
    tokens = float(batch * sequence)
    operations = sum(
        count * training_operations(model, sequence, tokens) for model, count in passes.items()
    )
    seconds = _NORMS * operations / _operations_a_second() + _SECONDS * runs
    return Cost(
        runs=runs,
        tokens=tokens * sum(passes.values()),
        hours=seconds / max(1, min(workers, runs)) / 3600,
    )


def _operations_a_second() -> float:
    """Of one worker: products of matrices that are neither small nor large, timed for a moment."""
    square = torch.ones(256, 256, device=device_named())
    product = torch.mm(square, square)
    began = time.perf_counter()
    for _ in range(20):
        product = torch.mm(square, square)
    float(product.sum())  # waits for a device that works on its own
    return 20 * 2 * 256**3 / (time.perf_counter() - began)
