"""What experiments of a few training steps share: models, runs on disk, cost, slopes, figures."""

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import methodcaller
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from mupscale import norms, reports
from mupscale.analysis import Estimate, Slope, judge_flatness
from mupscale.checks import CheckResult, Criteria, Setup, coordinate_check
from mupscale.checks.check import QUANTITIES, judge
from mupscale.checks.judging import NormTable
from mupscale.checks.statistics import STATISTICS, by_step, geometric_mean
from mupscale.data import Batch, Batches, open_corpus
from mupscale.engines import run_jobs
from mupscale.engines.ledger import Ledger
from mupscale.errors import OptionError
from mupscale.models import GPT
from mupscale.paper.claims import Verdict, decided
from mupscale.paper.costs import training_operations
from mupscale.paper.experiment import QUIETLY, Cost, Execution, Experiment, Scale, refuse_empty
from mupscale.planning import Plan, plan
from mupscale.reports.panels import Line, Panel, draw_panels
from mupscale.targets import Family
from mupscale.text import text_table
from mupscale.theory import Rule, rule_named
from mupscale.training.devices import device_named

HIDDEN = ("query", "key", "value", "attention_output", "mlp_in", "mlp_out")
"""The matrices whose both sides grow with the width, which the paper's claims are about."""

RULE = rule_named("complete-p")
"""Of models over width, unless an experiment varies just that."""

KV_HEADS = (12, 6, 4, 3, 2, 1)
"""The divisors of 12 query heads: r = 1, 2, 3, 4, 6, 12."""

TOLERANCE = 0.1
"""Of slopes, in log-log: how far one may be from theory's."""

_NORMS, _SECONDS = 1.5, 1.0
"""Computing the norms adds half to the time of a few training steps; building a model and its plan
takes one second per run.
"""

Judged = Verdict | Literal["ours"]
Run = Mapping[str, Any]
Table = Sequence[Sequence[float]]
"""By seed, over the sizes."""


@dataclass(frozen=True)
class FewSteps:
    """A family over one dimension, and how its members are trained for a few steps."""

    family: Family
    values: tuple[int, ...]
    "Of the dimension, the base's first."
    seeds: tuple[int, ...]
    steps: int
    batch: int
    sequence: int
    std: float = 0.1
    vary: str = "width"

    @property
    def base(self) -> int:
        return self.values[0]

    @property
    def starts(self) -> int:
        """Models times seeds."""
        return len(self.values) * len(self.seeds)

    def setup(self, eps: float = 1e-12) -> Setup:
        return Setup(
            lr=2**-13, eps=eps, std=self.std, batch=self.batch, sequence=self.sequence,
            seeds=self.seeds, steps=self.steps,
        )  # fmt: skip

    def model(self, value: int, device: str = "meta") -> GPT:
        model = Family(self.family.name, device)(**{self.vary: value})
        assert isinstance(model, GPT)
        return model

    def planned(self, value: int, rule: Rule = RULE, device: str = "meta") -> tuple[GPT, Plan]:
        model, base = self.model(value, device), self.model(self.base, device)
        return model, plan(model, base=base, optimizer="adamw", rule=rule)

    def described(self, rules: Iterable[Rule] = (RULE,)) -> Iterator[str]:
        """Each model, with the factor on a learning rate under each rule."""
        over_width = self.vary == "width"
        role, name = ("mlp_in", "a hidden matrix") if over_width else ("key", "keys")
        for value in self.values:
            model = self.model(value)
            shape, count = model.config, model.parameter_counts().non_embedding
            plans = [self.planned(value, rule)[1].parameters.values() for rule in rules]
            rates = [next(one.lr for one in every if one.role == role) for every in plans]
            yield (
                f"  width {shape.width}, depth {shape.depth}, {shape.n_heads} heads of "
                f"{shape.head_size}, r = {shape.repetitions}, {count / 1e6:.2f} M non-embedding "
                f"parameters; learning rate of {name} × {', '.join(f'{r:.4g}' for r in rates)}"
            )

    def training(self, runs: int, more: str = "") -> str:
        return (
            f"{len(self.seeds)} seeds, {self.steps} steps of {self.batch} × {self.sequence} "
            f"tokens{more}: {runs} runs"
        )

    def table(self, runs: Iterable[Run], of: Callable[[Run], Any]) -> list[list[Any]]:
        """Something of each run over the width, by seed."""
        found = {(run["seed"], run["width"]): of(run) for run in runs}
        return [[found[seed, value] for value in self.values] for seed in self.seeds]


# The widths of the paper's weight-decay table and one beyond, with its heads of 64, and ten seeds.
PAPER_WIDTHS = FewSteps(
    Family("gpt:jwd-small,vocabulary=256,context=1024"), (384, 768, 1024, 2048),
    tuple(range(1, 11)), 5, 4, 1024,
)  # fmt: skip

# The paper's coordinate check, over bytes.
PAPER_HEADS = FewSteps(
    Family("gpt:coordinate_12,vocabulary=256"), KV_HEADS, tuple(range(1, 11)), 5, 1, 1024,
    vary="n_kv_heads",
)  # fmt: skip


@dataclass(frozen=True)
class Start(ABC):
    """A job: what is done with a model over width from its start on."""

    size: FewSteps
    width: int
    seed: int

    @abstractmethod
    def result(self) -> dict[str, Any]: ...

    def made(self) -> tuple[nn.Module, Plan]:
        """The initialized model, on the fastest device, and its plan."""
        model, made = self.size.planned(self.width, device="cpu")
        made.initialize_(model, std=self.size.std, seed=self.seed)
        return model.to(device_named()), made

    def batches(self) -> Iterator[Batch]:
        """Of all steps, on the model's device."""
        size, corpus = self.size, open_corpus("python-stdlib")
        batches = Batches(corpus, batch=size.batch, sequence=size.sequence, seed=self.seed)
        for step in range(size.steps):
            yield Batch(*(tokens.to(device_named()) for tokens in batches.at(step)))


class FewStepsExperiment(Experiment):
    """Coordinate checks, each in a folder of its name, and jobs in a ledger."""

    sizes: ClassVar[Mapping[Scale, FewSteps]]
    checks: ClassVar[Mapping[str, Rule]] = {}
    ledger: ClassVar[str] = "runs.jsonl"

    def setup(self, check: str, size: FewSteps) -> Setup:
        return size.setup()

    def jobs(self, size: FewSteps) -> Mapping[str, Start]:
        return {}

    def about(self, size: FewSteps) -> Mapping[str, Any]:
        """The settings of all jobs, which the ledger keeps."""
        return {}

    def described(self, scale: Scale, what: str, settings: str) -> Iterator[str]:
        """A dry run: what is trained, over which models, and how."""
        size = self.sizes[scale]
        yield f"{self.name}: {what} over"
        yield from size.described()
        yield size.training(self.runs(size), f", {settings}, std {size.std:g}")

    def runs(self, size: FewSteps) -> int:
        return len(self.checks) * size.starts + len(self.jobs(size))

    def cost(self, scale: Scale, workers: int) -> Cost:
        size = self.sizes[scale]
        runs, tokens = self.runs(size), size.batch * size.sequence
        of_checks = len(self.checks) * len(size.seeds) * (size.steps + 1)
        passes = Counter(dict.fromkeys(size.values, of_checks))
        for job in self.jobs(size).values():
            passes[job.width] += job.size.steps
        operations = sum(
            count * training_operations(size.model(value).config, size.sequence, tokens)
            for value, count in passes.items()
        )
        seconds = _NORMS * operations / _operations_per_second() + _SECONDS * runs
        return Cost(runs, tokens * passes.total(), seconds / max(1, min(workers, runs)) / 3600)

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        size = self.sizes[scale]
        jobs, runs = self.jobs(size), self.runs(size)
        for number, (name, rule) in enumerate(self.checks.items()):
            coordinate_check(
                size.family,
                {size.vary: size.values},
                rule=rule,
                setup=self.setup(name, size),
                folder=folder / name,
                **how.part(number * size.starts, runs),
            )
        if jobs:
            run_jobs(
                methodcaller("result"),
                jobs,
                ledger=folder / self.ledger,
                about=self.about(size),
                **how.part(runs - len(jobs), runs),
            )

    def checked(self, size: FewSteps, folder: Path) -> dict[str, CheckResult]:
        return {name: recorded_check(folder / name, size.starts) for name in self.checks}

    def recorded(self, size: FewSteps, folder: Path) -> Sequence[Run]:
        """The results of the jobs."""
        _, results = recorded(folder / self.ledger, len(self.jobs(size)))
        return list(results.values())


def recorded_check(folder: Path, runs: int) -> CheckResult:
    """The verdict on a coordinate check whose runs are all in the folder."""
    about, results = recorded(folder / "runs.jsonl", runs)
    name, found = about["vary"], list(results.values())
    values = sorted({run["value"] for run in found})
    about |= {"vary": {name: values}, "seeds": sorted({run["seed"] for run in found})}
    return judge(found, QUANTITIES[name], about, Criteria())


def recorded(ledger: Path, jobs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings and the results of a complete ledger."""
    refuse_empty(ledger.parent, ledger.name)
    about, results = Ledger.read(ledger)
    if len(results) < jobs:
        raise OptionError(
            f"{ledger} holds {len(results)} of {jobs} runs. Run the same command again to complete "
            "it."
        )
    return about, results


def spectral(matrix: Tensor) -> float:
    return float(norms.spectral_norm(matrix, "gram").value.sum())


def by_role(layers: Iterable[tuple[str, Run]]) -> dict[str, dict[str, Any]]:
    """The means over layers, from the role and the numbers of each hidden matrix."""
    of: dict[str, list[Run]] = {}
    for role, numbers in layers:
        of.setdefault(role, []).append(numbers)
    return {role: _mean(found) for role, found in of.items()}


def _mean(values: Sequence[Any]) -> Any:
    """The geometric mean to five digits; of lists and dictionaries, element by element.

    >>> _mean([{"a": 1.0, "b": [1.0, 3.0]}, {"a": 2.0, "b": [4.0, 3.0]}])
    {'a': 1.4142, 'b': [2.0, 3.0]}
    """
    if isinstance(values[0], dict):
        return {name: _mean([one[name] for one in values]) for name in values[0]}
    if isinstance(values[0], list):
        return [_mean(column) for column in zip(*values, strict=True)]
    return float(f"{geometric_mean(values):.5g}")


def relative_updates(check: CheckResult, role: str) -> list[list[float]]:
    """‖ΔW‖/‖W0‖, the mean over layers and steps: by seed, over what the check varies."""
    table = NormTable(check.runs, check.quantity)
    return table.means(lambda run: by_step(run, STATISTICS["update"], role))


def quotients(top: Table, bottom: Table) -> list[list[float]]:
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
    return Estimate(*map(math.exp, astuple(found)[:3]), degrees_of_freedom=count - 1)


def means(values: Table) -> list[Estimate]:
    """Over seeds, at each size."""
    return [geometric(column) for column in zip(*values, strict=True)]


def panel_line(
    label: str, x: Sequence[int], points: Sequence[Estimate], theory: Sequence[float]
) -> Line:
    ends = ([getattr(one, end) for one in points] for end in ("value", "low", "high"))
    return Line(label, x, *ends, theory=theory)


def save_panels(
    stem: Path, panels: Mapping[str, Sequence[Line]], *, x_label: str = "width n", **texts: str
) -> list[Path]:
    """A figure with one panel per role, or per other title."""
    drawn = [
        Panel(title.replace("_", " ") if title in HIDDEN else title, lines)
        for title, lines in panels.items()
    ]
    figure = draw_panels(drawn, x_label=x_label, log_x=True, **texts)
    return reports.save_figure(figure, stem, ("png", "svg"))


@dataclass(frozen=True)
class SlopeRow:
    """A row of a table of slopes."""

    of: Run
    "What the slope is of, by column of a CSV file."
    shown: Sequence[str]
    "The same, as cells of a text."
    role: str
    slope: Estimate
    theory: float | None
    rest: Estimate
    "The slope that theory does not explain."
    verdict: str
    "On the rest: pass where it is flat, so that the slope is theory's."

    def columns(self, *, rest: bool = False) -> dict[str, Any]:
        own, left = self.slope, self.rest
        columns = {"slope": own.value, "low": own.low, "high": own.high, "theory": self.theory}
        if rest:
            columns |= {"rest": left.value, "rest_low": left.low, "rest_high": left.high}
        return {**self.of, "role": self.role, **columns, "verdict": self.verdict}

    @staticmethod
    def judged(
        of: Run, shown: Sequence[str], role: str, slope: Slope, theory: float, rest: Slope
    ) -> "SlopeRow":
        """Judged by the rest. The intervals of all hidden roles hold simultaneously."""
        comparisons = len(HIDDEN) if role in HIDDEN else 1
        own, left = (
            Estimate(one.value, *one.interval(comparisons=comparisons)) for one in (slope, rest)
        )
        flatness = judge_flatness(rest, tolerance=TOLERANCE, comparisons=comparisons)
        return SlopeRow(of, shown, role, own, theory, left, flatness.verdict)


class Slopes(tuple[SlopeRow, ...]):
    """Rows of a table."""

    def where(self, wanted: Callable[[Run], bool] = lambda of: True, **of: Any) -> "Slopes":
        """Those of which this holds."""
        return Slopes(row for row in self if of.items() <= row.of.items() and wanted(row.of))

    def text(self, *head: str, last: str = "agree?", style: str = "+.2f") -> str:
        """For each row what is shown, below `head`, then role, slope, theory and verdict."""
        cells: list[tuple[str, ...]] = []
        for row in self:
            slope, interval = signed(row.slope, style).split(" ", 1)
            theory = "" if row.theory is None else f"{row.theory:{style}}"
            cells.append((*row.shown, row.role, slope, interval, theory, row.verdict))
        head = (*head, "role", "slope", "interval", "theory", last)
        return text_table(head, cells, right=("slope", "theory"))

    def extremes(self, *, rest: bool = False) -> str:
        """The roles with the lowest and the highest slope, without -0.00."""
        found = [(row.rest if rest else row.slope, row.role) for row in self]
        ends = dict.fromkeys(end(found, key=lambda one: one[0].value) for end in (min, max))
        return " to ".join(f"{signed(one, '+z.2f')} ({role})" for one, role in ends)

    def as_theory(self) -> Verdict:
        """Agrees if all slopes are within the tolerance of theory's, disagrees if one is not."""
        verdicts = {row.verdict for row in self}
        return decided(verdicts == {"pass"}, "fail" in verdicts)

    def beyond(self, sign: int) -> Verdict:
        """Agrees if all slopes are beyond the tolerance on that side, disagrees if one is not."""
        ends = [sorted((sign * row.slope.low, sign * row.slope.high)) for row in self]
        nearest, farthest = zip(*ends, strict=True)
        return decided(min(nearest) > TOLERANCE, min(farthest) < TOLERANCE)


def signed(one: Estimate, style: str = "+.2f") -> str:
    """A number and its interval, with signs: an end of -0.00 shows that zero is excluded.

    >>> signed(Estimate(-0.01, -0.25, -0.001))
    '-0.01 [-0.25, -0.00]'
    """
    return f"{one.value:{style}} [{one.low:{style}}, {one.high:{style}}]"


def _operations_per_second() -> float:
    """Of one worker: matrix products of a medium size, timed for a moment."""
    square = torch.ones(256, 256, device=device_named())
    product = torch.mm(square, square)
    began = time.perf_counter()
    for _ in range(20):
        product = torch.mm(square, square)
    float(product.sum())  # waits for an asynchronous device
    return 20 * 2 * 256**3 / (time.perf_counter() - began)
