"""What a study will cost: runs, tokens, and hours on this machine.

Small models are timed: a few real steps (forward, backward and optimizer) on one thread, like a
worker. Large ones are estimated from their operations and the measured speed of a matrix product.
Nothing here takes longer than seconds. On a CPU the clock is processor time, so that other programs
do not count, and everything is float32: bfloat16 is slower on most CPUs, and on some a bfloat16
product kills the process. So Muon, which needs it, is timed in a process of its own.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from mupscale.engines import Local, run_jobs
from mupscale.errors import OptionError
from mupscale.models import GPTConfig, parameter_counts
from mupscale.paper.catalogue import middle_run
from mupscale.paper.experiment import Cost
from mupscale.studies import StudyConfig
from mupscale.studies.config import Cell
from mupscale.studies.searching import ADAPTIVE_TRIALS, IN_FLIGHT, grid
from mupscale.training import RunConfig, lengths
from mupscale.training.devices import device_named, one_thread
from mupscale.training.preparation import Lengths, on_meta, optimizers, plan_for

TIMED_PARAMETERS = 5_000_000
"""Models up to this size are timed."""

_SHAPES = 4
"""Number of shapes to time; the others are interpolated by their operations."""

_SECONDS = 0.5
"""Time for the steps of one shape."""

_OPERATIONS = 1e10
"""Of a timed step, about a tenth of a second on one core. Of a larger batch, only a part runs."""

UTILISATION: Mapping[str, float] = {"cpu": 0.8, "cuda": 0.4}
"""Share of a matrix product's speed that training large models reaches. CPU: measured at width 768
(results/benchmarks/throughput.txt). GPU: as large runs report, not measured here."""

_CLOCKS = {"cpu": time.process_time, "cuda": time.perf_counter}

_ADAPTIVE_RUNS, _ADAPTIVE_FURTHER, _BRACKET = 9.8, 0.9, 3
"""Full runs of an adaptive search to ± 0.25 with one proposal at a time, the extra runs for each
further simultaneous proposal (results/benchmarks/search_cost.txt), and how many of them only find
the neighbourhood of the optimum."""


@dataclass(frozen=True)
class Work:
    """The runs of a cell, which differ only in learning rate and seed."""

    runs: int
    config: RunConfig
    lengths: Lengths
    operations: float
    "Per step."
    is_small: bool

    @property
    def run_operations(self) -> float:
        """Of the training of one run, without evaluations."""
        return self.lengths.steps * self.operations

    @property
    def steps(self) -> float:
        """Steps, with evaluations counted as shares of a step (they are forward passes)."""
        every, rows = self.config.record.eval_every, min(self.lengths.batch, 16)
        evaluations = 1 + (0 if every is None else self.lengths.steps // every)
        share = self.config.record.eval_batches * rows / self.lengths.batch / 3
        return self.lengths.steps + evaluations * share


def study_cost(config: StudyConfig, workers: int) -> Cost:
    """Of a study of the reference model, with this number of workers of one thread each."""
    work = study_work(config)
    runs = sum(one.runs for one in work)
    seconds = sum(
        one.runs * one.steps * each for one, each in zip(work, step_seconds(work), strict=True)
    )
    tokens = sum(one.runs * one.lengths.tokens for one in work)
    return Cost(runs=runs, tokens=tokens, hours=seconds / 3600 / max(1, min(workers, runs)))


def study_work(config: StudyConfig) -> list[Work]:
    """Every cell with its runs."""
    if config.trainer is not None:
        raise OptionError(
            f"{config.name}: the cost of a custom trainer is unknown. Remove [trainer]."
        )
    return [_work(config, cell) for cell in config.cells()]


def _work(config: StudyConfig, cell: Cell) -> Work:
    run = middle_run(config, cell)
    found, sequence = lengths(run), run.data.sequence
    operations = training_operations(run.model, sequence, tokens=found.batch * sequence)
    is_small = parameter_counts(run.model).total <= TIMED_PARAMETERS
    return Work(_runs(config, cell, found.tokens), run, found, operations, is_small)


def _runs(config: StudyConfig, cell: Cell, tokens: int) -> int:
    """From the search and its budgets; estimated for an adaptive search, which stops by itself."""
    search, budgets = config.search, list[float]()
    if search.trials is not None:
        budgets.append(search.trials)
    if search.tokens is not None:
        budgets.append(math.ceil(search.tokens / tokens))
    if search.method == "grid":
        budgets.append(len(grid(cell.space, config.seeds, search.step)))
    if search.method == "adaptive":
        budgets += [ADAPTIVE_TRIALS, adaptive_runs(config)]
    return int(min(budgets))


def adaptive_runs(config: StudyConfig) -> int:
    """Full runs until a cell reaches its tolerance: as replayed at ± 0.25, and ∝ 1/tolerance² after
    the bracket.
    """
    at_once = config.search.at_once or max(1, round(IN_FLIGHT / len(config.cells())))
    measured = _ADAPTIVE_RUNS + _ADAPTIVE_FURTHER * (at_once - 1)
    return math.ceil(_BRACKET + (measured - _BRACKET) * (0.25 / config.search.tolerance) ** 2)


def training_operations(model: GPTConfig, sequence: int, tokens: float) -> float:
    """Forward and backward over these tokens: 6 per multiplying parameter, and causal attention.

    >>> model = GPTConfig(width=64, depth=1, n_heads=4, vocabulary=256, context=32)
    >>> parameters, attention = 12 * 64**2 + 64 * 256 + 3 * 64, 64 * 32
    >>> training_operations(model, sequence=32, tokens=1) == 6 * (parameters + attention)
    True
    """
    attention = 6 * model.depth * model.n_heads * model.head_size * sequence
    return tokens * (6 * parameter_counts(model).non_embedding + attention)


def step_seconds(work: Sequence[Work]) -> list[float]:
    """Seconds of a step for each, on one thread of this machine."""
    with one_thread():
        timed = _timed(_spread([one for one in work if one.is_small]))
        places = dict.fromkeys(_place(one.config) for one in work if not one.is_small)
        rates = {place: _product_rate(*place) * UTILISATION[place[0]] for place in places}
    return [
        interpolated(timed, one.operations)
        if one.is_small
        else one.operations / rates[_place(one.config)]
        for one in work
    ]


def _spread(work: Sequence[Work]) -> list[Work]:
    """At most _SHAPES of them, of different size, from the smallest to the largest."""
    by_size = sorted({one.operations: one for one in work}.items())
    chosen = np.linspace(0, len(by_size) - 1, min(_SHAPES, len(by_size))).round().astype(int)
    return [by_size[number][1] for number in chosen]


def interpolated(timed: Mapping[float, float], operations: float) -> float:
    """Between the timed sizes, on logarithmic scales.

    >>> round(interpolated({1e6: 0.001, 1e8: 0.01}, 1e7), 6)
    0.003162
    """
    xs = sorted(timed)
    return math.exp(
        np.interp(math.log(operations), [math.log(x) for x in xs], [math.log(timed[x]) for x in xs])
    )


def _timed(work: Sequence[Work]) -> dict[float, float]:
    """Seconds of a step by its operations."""
    # Muon's bfloat16 products kill the process on some virtual machines: a worker's death is an
    # error with a message, ours is not.
    jobs = {
        f"a step of Muon, {one.operations:g} operations": one
        for one in work
        if one.config.optimizer.name.startswith("muon")
    }
    seconds = run_jobs(timed_step, jobs, engine=Local(workers=1))
    ours = {one.operations: timed_step(one) for one in work if one not in jobs.values()}
    return ours | {one.operations: seconds[job] for job, one in jobs.items()}


def timed_step(work: Work) -> float:
    """Median seconds of a few real steps. Of a large batch a part runs, and is scaled up."""
    config, batch = work.config, work.lengths.batch
    part = max(1, min(batch, int(batch * _OPERATIONS / work.operations)))
    device, kind = _place(config)
    plan, model = plan_for(config), on_meta(config.model).to_empty(device=device)
    plan.initialize_(model, std=config.optimizer.std, seed=0)
    steppers = optimizers(plan, model, config.optimizer)
    tokens = torch.randint(config.model.vocabulary, (part, config.data.sequence), device=device)
    clock, taken, began = _CLOCKS[device], list[float](), time.perf_counter()
    while len(taken) < 3 or time.perf_counter() - began < _SECONDS:
        started = clock()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=kind == torch.bfloat16):
            loss = model(tokens, tokens)
        loss.backward()
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        loss.item()
        taken.append(clock() - started)
    # The first step allocates.
    return median(taken[1:]) * batch / part


def _place(config: RunConfig) -> tuple[str, torch.dtype]:
    """Device type and dtype."""
    device = device_named(config.machine.device).type
    halved = config.machine.precision == "bf16" and device != "cpu"
    return device, torch.bfloat16 if halved else torch.float32


def _product_rate(device: str, kind: torch.dtype) -> float:
    """Operations per second of a matrix product, the best of a few."""
    size = 1024 if device == "cpu" else 8192
    A = torch.randn(size, size, device=device, dtype=kind)
    clock, taken = _CLOCKS[device], list[float]()
    for _ in range(4):
        started = clock()
        (A @ A)[0, 0].item()
        taken.append(clock() - started)
    return 2 * size**3 / min(taken)
