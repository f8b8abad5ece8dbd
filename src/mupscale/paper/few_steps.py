"""What experiments of a few training steps share: their models, checks on disk, costs, slopes."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from mupscale.analysis import Estimate
from mupscale.checks import CheckResult, Criteria, Setup, coordinate_check
from mupscale.checks.check import QUANTITIES, judge
from mupscale.checks.judging import NormTable
from mupscale.checks.statistics import STATISTICS, by_step
from mupscale.data import Batches, open_corpus
from mupscale.engines import Local
from mupscale.engines.ledger import Ledger
from mupscale.errors import OptionError
from mupscale.models import GPT, GPTConfig
from mupscale.paper.claims import Verdict, decided
from mupscale.paper.costs import training_operations
from mupscale.paper.experiment import Cost, Execution, refuse_empty
from mupscale.planning import Plan, plan
from mupscale.reports.panels import Line
from mupscale.targets import Family
from mupscale.theory import Rule, rule_named
from mupscale.training.devices import device_named

HIDDEN = ("query", "key", "value", "attention_output", "mlp_in", "mlp_out")
"""The matrices whose both sides grow with the width, which the paper's claims are about."""

RULE, STD = rule_named("complete-p"), 0.1
"""Of models over width, unless an experiment varies just that."""

KV_HEADS = (12, 6, 4, 3, 2, 1)
"""The divisors of 12 query heads: r = 1, 2, 3, 4, 6, 12."""

TOLERANCE = 0.1
"""Of slopes, in log-log: how far one may be from theory's."""

_NORMS, _SECONDS = 1.5, 1.0
"""Computing the norms adds half to the time of a few training steps; building a model and its plan
takes one second per run.
"""


@dataclass(frozen=True)
class Start:
    """A model before its first step: its width, rule, seed and data."""

    family: Family
    width: int
    base: int
    seed: int
    rule: Rule
    std: float
    batch: int
    sequence: int

    def made(self) -> tuple[nn.Module, Plan]:
        """The initialized model, on the fastest device, and its plan."""
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

    def cost(self, passes: Mapping[int, int], runs: int, workers: int) -> Cost:
        """Of this number of passes over a batch at each width."""
        models = {shape_of(self.family, width=width): count for width, count in passes.items()}
        return few_steps_cost(models, self.batch * self.sequence, self.sequence, runs, workers)

    def described(self, more: str, runs: int) -> Iterator[str]:
        """Build each width on the meta device, plan it, and describe it; then the training."""
        for width in self.widths:
            model, made = planned(on_meta(self.family), width, min(self.widths), RULE)
            yield f"  {described(model)}; learning rate of a hidden matrix × {_rate(made):.4g}"
        yield (
            f"{len(self.seeds)} seeds, {self.steps} steps of {self.batch} × {self.sequence} "
            f"tokens, {more}: {runs} runs"
        )


# The widths of the paper's weight-decay table and one beyond, with its heads of 64, and ten seeds.
PAPER_WIDTHS = (
    Family("gpt:jwd-small,vocabulary=256,context=1024"),
    (384, 768, 1024, 2048),
    tuple(range(1, 11)),
)


@dataclass(frozen=True)
class OverHeads:
    """A model with 12 query heads over the number of key/value heads: one check per rule."""

    family: Family
    seeds: tuple[int, ...]
    steps: int
    sequence: int
    batch: int = 1
    std: float = 0.02
    kv_heads: tuple[int, ...] = KV_HEADS

    @property
    def setup(self) -> Setup:
        return Setup(lr=2**-13, eps=1e-12, std=self.std, batch=self.batch, sequence=self.sequence)

    @property
    def starts(self) -> int:
        """Runs of one check: models times seeds."""
        return len(self.kv_heads) * len(self.seeds)

    def cost(self, rules: int, workers: int) -> Cost:
        passes = rules * len(self.seeds) * (self.steps + 1)
        models = {shape_of(self.family, n_kv_heads=heads): passes for heads in self.kv_heads}
        tokens, runs = self.batch * self.sequence, rules * self.starts
        return few_steps_cost(models, tokens, self.sequence, runs, workers)

    def run(
        self, rules: Mapping[str, Rule], folder: Path, how: Execution, total: int | None = None
    ) -> dict[str, CheckResult]:
        """A check in `folder/NAME` for each rule; runs that are already there are not repeated."""
        total = len(rules) * self.starts if total is None else total
        return {
            name: coordinate_check(
                self.family,
                {"n_kv_heads": self.kv_heads},
                rule=rule,
                seeds=self.seeds,
                steps=self.steps,
                setup=self.setup,
                engine=how.on(Local()),
                folder=folder / name,
                report=how.after(number * self.starts, total),
                remark=how.remark,
            )
            for number, (name, rule) in enumerate(rules.items())
        }

    def described(self, rules: Mapping[str, Rule]) -> Iterator[str]:
        """Each model, with the factor on the learning rate of its keys under each rule."""
        build = on_meta(self.family)
        base = build(n_kv_heads=max(self.kv_heads))
        for heads in self.kv_heads:
            model = build(n_kv_heads=heads)
            rates = [
                _rate(plan(model, base=base, optimizer="adamw", rule=rule), "key")
                for rule in rules.values()
            ]
            factors = ", ".join(f"{rate:.4g}" for rate in rates)
            yield f"  {described(model)}; learning rate of keys × {factors}"


def planned(family: Family, width: int, base: int, rule: Rule) -> tuple[nn.Module, Plan]:
    """A width of the family with its plan from the base."""
    model = family(width=width)
    return model, plan(model, base=family(width=base), optimizer="adamw", rule=rule)


def _rate(made: Plan, role: str = "mlp_in") -> float:
    return next(one.lr for one in made.parameters.values() if one.role == role)


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
        f"width {shape.width}, depth {shape.depth}, {shape.n_heads} heads of {shape.head_size}, "
        f"r = {shape.repetitions}, {count / 1e6:.2f} M non-embedding parameters"
    )


def recorded_check(folder: Path, runs: int) -> CheckResult:
    """The verdict on a coordinate check whose runs are all in the folder."""
    about, results = _complete(folder / "runs.jsonl", runs)
    name, found = about["vary"], list(results.values())
    values = sorted({run["value"] for run in found})
    about |= {"vary": {name: values}, "seeds": sorted({run["seed"] for run in found})}
    return judge(found, QUANTITIES[name], about, Criteria())


def recorded(ledger: Path, jobs: int) -> dict[str, Any]:
    """The results of a complete ledger."""
    return _complete(ledger, jobs)[1]


def _complete(ledger: Path, jobs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    refuse_empty(ledger.parent, ledger.name)
    about, results = Ledger.read(ledger)
    if len(results) < jobs:
        raise OptionError(
            f"{ledger} holds {len(results)} of {jobs} runs. Run the same command again to complete "
            "it."
        )
    return about, results


def relative_updates(check: CheckResult, role: str) -> list[list[float]]:
    """‖ΔW‖/‖W0‖, the mean over layers and steps: by seed, over what the check varies."""
    table = NormTable(check.runs, check.quantity)
    return table.means(lambda run: by_step(run, STATISTICS["update"], role))


def quotients(
    top: Sequence[Sequence[float]], bottom: Sequence[Sequence[float]]
) -> list[list[float]]:
    """Element by element."""
    return [[a / b for a, b in zip(*rows, strict=True)] for rows in zip(top, bottom, strict=True)]


def geometric(values: Sequence[float]) -> Estimate:
    """The geometric mean of positive values, with its interval over seeds.

    >>> mean = geometric([1.0, 2.0, 4.0])
    >>> round(mean.value, 3), round(mean.low, 2), round(mean.high, 2)
    (2.0, 0.36, 11.19)
    """
    logs = [math.log(value) for value in values]
    mean, count = sum(logs) / len(logs), len(logs)
    variance = sum((log - mean) ** 2 for log in logs) / (count - 1) if count > 1 else math.inf
    found = Estimate.student(mean, math.sqrt(variance / count), count - 1)
    return Estimate(
        math.exp(found.value), math.exp(found.low), math.exp(found.high), found.degrees_of_freedom
    )


def panel_line(
    label: str, x: Sequence[int], points: Sequence[Estimate], theory: Sequence[float]
) -> Line:
    values, lows, highs = (
        [getattr(one, end) for one in points] for end in ("value", "low", "high")
    )
    return Line(label, x, values, lows, highs, theory)


class SlopeRow(Protocol):
    """A row of a table of slopes over width. `verdict`: whether the slope is theory's."""

    @property
    def role(self) -> str: ...
    @property
    def slope(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def theory(self) -> float: ...
    @property
    def verdict(self) -> str: ...


SLOPE_HEAD = ("role", "slope", "interval", "theory", "agree?")


def slope_cells(row: SlopeRow) -> tuple[str, ...]:
    """The cells below SLOPE_HEAD."""
    slope, interval = signed(row.slope, row.low, row.high).split(" ", 1)
    return row.role, slope, interval, f"{row.theory:+.2f}", row.verdict


def signed(value: float, low: float, high: float) -> str:
    """A number and its interval, with signs: an end of -0.00 shows that zero is excluded.

    >>> signed(-0.01, -0.25, -0.001)
    '-0.01 [-0.25, -0.00]'
    """
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def as_theory(rows: Sequence[SlopeRow]) -> Verdict:
    """Agrees if all slopes are within the tolerance of theory's, disagrees if one is outside."""
    verdicts = {row.verdict for row in rows}
    return decided(verdicts == {"pass"}, "fail" in verdicts)


def few_steps_cost(
    passes: Mapping[GPTConfig, int], tokens: float, sequence: int, runs: int, workers: int
) -> Cost:
    """Of this many forward and backward passes over a batch by each model, on this machine."""
    operations = sum(
        count * training_operations(model, sequence, tokens) for model, count in passes.items()
    )
    seconds = _NORMS * operations / _operations_per_second() + _SECONDS * runs
    hours = seconds / max(1, min(workers, runs)) / 3600
    return Cost(runs, tokens * sum(passes.values()), hours)


def _operations_per_second() -> float:
    """Of one worker: matrix products of a medium size, timed for a moment."""
    square = torch.ones(256, 256, device=device_named())
    product = torch.mm(square, square)
    began = time.perf_counter()
    for _ in range(20):
        product = torch.mm(square, square)
    float(product.sum())  # waits for an asynchronous device
    return 20 * 2 * 256**3 / (time.perf_counter() - began)
