"""The paper's claim on mis-scaled decay: λ ∝ n^(1+δ) swamps learning, λ ∝ n^(1−δ) vanishes.

PyTorch's AdamW moves a matrix by W ← (1 − ηλ)W − ηr̂. The balance of decay and learning is
b = λ‖W‖/‖r̂‖, in spectral norms; the learning rate cancels. Under μP ‖W‖ stays and ‖r̂‖ ∝ n, so that
b ∝ n^δ: a slope of δ over the width. It is measured while the reference model trains under
`complete-p`, whose λ ∝ n is multiplied by (n/n_base)^δ.

After T steps W_T = D·W_0 + learned, exactly, with D = Π(1 − ηλ). For δ > 0 the paper also lowers
the learning rate, η ∝ n^(−1−δ), so that ηλ stays the same: "learning vanishes" is about that case.
Both are run.

Ours: the base's learning rate and decay, chosen so that a few steps show an effect, the number of
steps, the data (Python's standard library as bytes), no warmup.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from mupscale import norms, reports
from mupscale.analysis import Slope, fit_slope, judge_flatness
from mupscale.checks.probe import cross_entropy_of
from mupscale.checks.statistics import geometric_mean
from mupscale.data import Batch
from mupscale.engines import Local, run_jobs
from mupscale.errors import NonFiniteError
from mupscale.paper.claims import Claim, Verdict, decided
from mupscale.paper.experiment import QUIETLY, Cost, Execution, Experiment, Findings, Scale
from mupscale.paper.few_steps import (
    HIDDEN,
    PAPER_WIDTHS,
    SLOPE_HEAD,
    STD,
    TOLERANCE,
    OverWidth,
    Start,
    as_theory,
    geometric,
    panel_line,
    quotients,
    recorded,
    signed,
    slope_cells,
)
from mupscale.planning import Plan
from mupscale.reports.panels import Line, Panel, draw_panels
from mupscale.targets import Family
from mupscale.text import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DELTAS = (-1.0, -0.5, 0.0, 0.5, 1.0)
RATE, DECAY = 2**-8, 1.0


@dataclass(frozen=True)
class Error:
    """How decay is mis-scaled: by n^δ. `matched`: the learning rate is lowered by as much, as the
    paper does for δ > 0.
    """

    delta: float
    matched: bool = False

    @property
    def label(self) -> str:
        delta = f"{self.delta:+g}".replace("-", "−") if self.delta else "0"
        return f"δ = {delta}" + (", η lowered" if self.matched else "")

    def decay(self, ratio: float) -> float:
        """Factor on the decay that the rule prescribes, at this ratio of width to base width."""
        return ratio**self.delta

    def rate(self, ratio: float) -> float:
        return ratio**-self.delta if self.matched else 1.0


NONE = Error(0.0)
ERRORS = (
    *(Error(delta) for delta in DELTAS),
    *(Error(delta, matched=True) for delta in DELTAS if delta > 0),
)


class BalanceSize(OverWidth):
    """With every way to mis-scale decay."""

    @property
    def runs(self) -> int:
        """At the base there is nothing to mis-scale."""
        return len(self.seeds) * (1 + (len(self.widths) - 1) * len(ERRORS))


SIZES: Mapping[Scale, BalanceSize] = {
    "cpu": BalanceSize(
        Family("gpt:cpu_32_r1,depth=2"), (32, 64, 128, 256), (1, 2, 3, 4, 5), 8, 4, 64
    ),
    "paper": BalanceSize(*PAPER_WIDTHS, steps=20, batch=8, sequence=1024),
}


@dataclass(frozen=True)
class BalanceJob:
    """One short training."""

    start: Start
    error: Error
    steps: int


def train_a_little(job: BalanceJob) -> dict[str, Any]:
    """The balance at every step, and the parts of W_T, by role."""
    model, made = job.start.made()
    training = _BalanceTraining(model, made, job)
    for step in range(job.steps):
        training.step(step)
    return {
        "width": job.start.width, "seed": job.start.seed, "delta": job.error.delta,
        "matched": job.error.matched, "losses": [_short(loss) for loss in training.losses],
        "roles": training.roles(),
    }  # fmt: skip


class _Matrix:
    """A hidden matrix in training: its learning rate and decay, its start, its balance so far."""

    def __init__(self, role: str, weight: Tensor, lr: float, weight_decay: float) -> None:
        self.role, self.weight, self.lr, self.weight_decay = role, weight, lr, weight_decay
        self.first = weight.detach().clone()
        self.before = self.first
        self.balances: list[float] = []

    def keep(self) -> None:
        self.before = self.weight.detach().clone()

    def note(self) -> None:
        """After a step: b = λ‖W‖/‖r̂‖, with r̂ = ((1 − ηλ)W_t − W_{t+1})/η."""
        decayed = (1 - self.lr * self.weight_decay) * self.before
        learned = _norm(decayed - self.weight.detach()) / self.lr
        self.balances.append(self.weight_decay * _norm(self.before) / learned)

    def ended(self) -> dict[str, Any]:
        """W_T = D·W_0 + learned: what decay took from W_0, what was learned, and both as shares."""
        left = (1 - self.lr * self.weight_decay) ** len(self.balances)
        whole, start = _norm(self.weight.detach()), _norm(self.first)
        learned = _norm(self.weight.detach() - left * self.first)
        return {
            "taken": 1 - left, "gained": learned / start, "initial_share": left * start / whole,
            "learned_share": learned / whole,
        }  # fmt: skip


class _BalanceTraining:
    def __init__(self, model: nn.Module, made: Plan, job: BalanceJob) -> None:
        self.model, self.batches = model, job.start.batches()
        self.device = next(model.parameters()).device
        self.optimizer = torch.optim.AdamW(groups(model, made, job))
        self.matrices = list(self._matrices(made))
        self.losses: list[float] = []

    def _matrices(self, made: Plan) -> Iterator[_Matrix]:
        for group in self.optimizer.param_groups:
            for name, weight in zip(group["param_names"], group["params"], strict=True):
                role = made.parameters[name].role
                if role in HIDDEN:
                    yield _Matrix(role, weight, group["lr"], group["weight_decay"])

    def step(self, step: int) -> None:
        batch = Batch(*(tokens.to(self.device) for tokens in self.batches.at(step)))
        loss = cross_entropy_of(self.model, batch)
        self.losses.append(float(loss.detach()))
        if not torch.isfinite(loss):
            raise NonFiniteError(
                f"The loss is {self.losses[-1]} at step {step}: lr = {RATE:g} is too large."
            )
        self.optimizer.zero_grad()
        loss.backward()
        for matrix in self.matrices:
            matrix.keep()
        self.optimizer.step()
        for matrix in self.matrices:
            matrix.note()

    def roles(self) -> dict[str, dict[str, Any]]:
        """Geometric means over layers."""
        found: dict[str, dict[str, Any]] = {}
        for role in HIDDEN:
            matrices = [matrix for matrix in self.matrices if matrix.role == role]
            ends = [matrix.ended() for matrix in matrices]
            steps = zip(*(matrix.balances for matrix in matrices), strict=True)
            found[role] = {
                name: _short(geometric_mean([end[name] for end in ends])) for name in ends[0]
            }
            found[role]["balance"] = [_short(geometric_mean(values)) for values in steps]
        return found


def groups(model: nn.Module, made: Plan, job: BalanceJob) -> list[dict[str, Any]]:
    """The plan's groups, with mis-scaled decay (and learning rate) of hidden matrices."""
    ratio = job.start.width / job.start.base
    rate, decay = job.error.rate(ratio), job.error.decay(ratio)
    return made.param_groups(
        model,
        lr={"default": RATE, **dict.fromkeys(HIDDEN, RATE * rate)},
        weight_decay={"default": DECAY, **dict.fromkeys(HIDDEN, DECAY * decay)},
        eps=1e-12,
        betas=(0.9, 0.95),
    )


def _norm(matrix: Tensor) -> float:
    return float(norms.spectral_norm(matrix, "gram").value.sum())


def _short(value: float) -> float:
    return float(f"{value:.5g}")


@dataclass(frozen=True)
class BalanceRow:
    """A row of the table: the slope over width of the balance, or of a part of W_T."""

    quantity: str
    delta: float
    rate_lowered: bool
    role: str
    slope: float
    low: float
    high: float
    theory: float
    verdict: str
    "Whether the slope is theory's, ± 0.1."


class DecayBalance(Experiment):
    """Decay against learning over the width, with correct and mis-scaled decay."""

    name: ClassVar[str] = "decay-balance"

    def cost(self, scale: Scale, workers: int) -> Cost:
        size = SIZES[scale]
        each = len(size.seeds) * size.steps
        passes = {
            width: each * (1 if width == min(size.widths) else len(ERRORS)) for width in size.widths
        }
        return size.cost(passes, size.runs, workers)

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        size = SIZES[scale]
        about = {
            "family": repr(size.family), "base": min(size.widths), "steps": size.steps,
            "batch": size.batch, "sequence": size.sequence, "lr": RATE, "weight_decay": DECAY,
            "std": STD,
        }  # fmt: skip
        run_jobs(
            train_a_little,
            jobs(size),
            ledger=folder / "runs.jsonl",
            about=about,
            engine=how.on(Local()),
            report=how.report,
            remark=how.remark,
        )

    def findings(self, scale: Scale, folder: Path) -> Findings:
        seen = _recorded_runs(folder, SIZES[scale])
        rows = _rows(seen)
        paths = [reports.save_csv([vars(row) for row in rows], folder / "slopes.csv")]
        paths += reports.save_figure(_balance_figure(seen), folder / "balance", ("png", "svg"))
        paths += reports.save_figure(_parts_figure(seen), folder / "parts", ("png", "svg"))
        cells = [
            (_NAMES[row.quantity], Error(row.delta, row.rate_lowered).label, *slope_cells(row))
            for row in rows
        ]
        head = ("slope over width of", "decay", *SLOPE_HEAD)
        lines = (text_table(head, cells, right=("slope", "theory")), "", *_parts_lines(seen))
        return Findings(lines, tuple(_claims(rows, seen)), tuple(paths))

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        seen = _recorded_runs(folder, SIZES[scale])
        return tuple(_claims(_rows(seen), seen))

    def dry_run(self, scale: Scale) -> Iterator[str]:
        size = SIZES[scale]
        yield f"{self.name}: {', '.join(error.label for error in ERRORS)}, each over"
        more = f"base learning rate {RATE:g}, base decay {DECAY:g}, std {STD:g}"
        yield from size.described(more, size.runs)


EXPERIMENT = DecayBalance()


def jobs(size: BalanceSize) -> dict[str, BalanceJob]:
    return {
        f"{error.label} width={width} seed={seed}": BalanceJob(
            size.start(width, seed), error, size.steps
        )
        for width in size.widths
        for error in (ERRORS if width > min(size.widths) else [NONE])
        for seed in size.seeds
    }


class _BalanceRuns:
    """Results by error, seed and width."""

    def __init__(self, results: Mapping[str, Any], size: BalanceSize) -> None:
        self.size, self._of = size, dict[tuple[Error, int, int], Mapping[str, Any]]()
        for one in results.values():
            of_base = one["width"] == min(size.widths)
            for error in ERRORS if of_base else [Error(one["delta"], one["matched"])]:
                self._of[error, one["seed"], one["width"]] = one

    def table(self, error: Error, of: Callable[[Mapping[str, Any]], float]) -> list[list[float]]:
        """By seed, over the widths."""
        return [
            [of(self._of[error, seed, width]) for width in self.size.widths]
            for seed in self.size.seeds
        ]

    def balance(self, error: Error, role: str) -> list[list[float]]:
        """The mean over steps."""
        return self.table(error, lambda run: geometric_mean(run["roles"][role]["balance"]))

    def part(self, error: Error, name: str) -> list[list[float]]:
        """A part of W_T, the mean over roles."""
        return self.table(
            error, lambda run: geometric_mean([run["roles"][role][name] for role in HIDDEN])
        )

    def fall(self, error: Error) -> list[list[float]]:
        """How far the loss came down, in nats."""
        return self.table(error, lambda run: run["losses"][0] - run["losses"][-1])


def _recorded_runs(folder: Path, size: BalanceSize) -> _BalanceRuns:
    return _BalanceRuns(recorded(folder / "runs.jsonl", size.runs), size)


def _rows(seen: _BalanceRuns) -> list[BalanceRow]:
    return [*_balance_rows(seen), *_relative_rows(seen), *_part_rows(seen)]


def _balance_rows(seen: _BalanceRuns) -> Iterator[BalanceRow]:
    """One for each error and role. The intervals of all hidden roles hold simultaneously."""
    for error in ERRORS:
        for role in HIDDEN:
            slope = fit_slope(seen.size.widths, seen.balance(error, role))
            yield _row("balance", error, role, slope, error.delta, len(HIDDEN))


def _relative_rows(seen: _BalanceRuns) -> Iterator[BalanceRow]:
    """The balance over that at δ = 0, seed by seed: other effects of the width cancel."""
    for error in ERRORS:
        for role in HIDDEN if error.delta else ():
            values = quotients(seen.balance(error, role), seen.balance(NONE, role))
            slope = fit_slope(seen.size.widths, values)
            yield _row("relative", error, role, slope, error.delta, len(HIDDEN))


def _part_rows(seen: _BalanceRuns) -> Iterator[BalanceRow]:
    """What was learned, over ‖W_0‖: by theory flat, or falling as the learning rate is lowered."""
    for error in ERRORS:
        slope = fit_slope(seen.size.widths, seen.part(error, "gained"))
        yield _row("learned", error, "all hidden", slope, -error.delta if error.matched else 0.0, 1)


def _row(
    quantity: str, error: Error, role: str, slope: Slope, theory: float, comparisons: int
) -> BalanceRow:
    low, high = slope.interval(comparisons=comparisons)
    beyond = replace(slope, value=slope.value - theory)
    verdict = judge_flatness(beyond, tolerance=TOLERANCE, comparisons=comparisons).verdict
    return BalanceRow(
        quantity, error.delta, error.matched, role, slope.value, low, high, theory, verdict
    )


_NAMES = {"balance": "b = λ‖W‖/‖r̂‖", "relative": "b over b at δ = 0", "learned": "‖learned‖/‖W_0‖"}


def _claims(rows: Sequence[BalanceRow], seen: _BalanceRuns) -> Iterator[Claim]:
    def chosen(quantity: str, wanted: Callable[[Error], bool]) -> list[BalanceRow]:
        return [
            row
            for row in rows
            if row.quantity == quantity and wanted(Error(row.delta, row.rate_lowered))
        ]

    right = chosen("balance", lambda error: error.delta == 0)
    above = chosen("balance", lambda error: error.delta > 0)
    below = chosen("balance", lambda error: error.delta < 0)
    lowered = chosen("learned", lambda error: error.matched)
    law = chosen("relative", lambda error: not error.matched)
    slower = chosen("relative", lambda error: error.matched)
    # Every claim uses the base's runs, and those of its errors at the other widths.
    seeds, beyond = len(seen.size.seeds), len(seen.size.seeds) * (len(seen.size.widths) - 1)
    flat = [row.role for row in right if row.verdict == "pass"]
    found: list[tuple[str, str, int, Verdict | Literal["ours"]]] = [
        ("λ ∝ n keeps decay and learning in balance at every width",
         f"b = λ‖W‖/‖r̂‖: {_range(right)}; within ±{TOLERANCE} for {', '.join(flat) or 'no role'}",
         1, as_theory(right)),
        ("λ ∝ n^(1+δ): decay outgrows learning", f"b: {_range(above)}", 4, _beyond(above, 1)),
        ("λ ∝ n^(1−δ): decay vanishes next to learning", f"b: {_range(below)}", 2,
         _beyond(below, -1)),
        ("With η ∝ n^(−1−δ) as well, what is learned becomes negligible",
         f"‖learned‖/‖W_0‖: {_range(lowered)}", 2, _beyond(lowered, -1)),
        ("How does the balance depend on the width? By theory as n^δ",
         f"b over b at δ = 0, at the rule's own learning rate: {_range(law)}; with η lowered: "
         f"{_range(slower)}", 7, "ours"),
    ]  # fmt: skip
    for says, text, errors, verdict in found:
        shown = f"slope over width of {text}"
        yield Claim("decay-balance", says, shown, seeds + errors * beyond, verdict)


def _range(rows: Sequence[BalanceRow]) -> str:
    """By δ the extreme roles, each with its interval."""
    texts: list[str] = []
    for delta in dict.fromkeys(row.delta for row in rows):
        some = sorted((row for row in rows if row.delta == delta), key=lambda row: row.slope)
        ends = [
            f"{signed(row.slope, row.low, row.high)} ({row.role})"
            for row in dict.fromkeys((some[0], some[-1]))
        ]
        texts.append(f"{' to '.join(ends)} at {Error(delta).label}")
    return "; ".join(texts)


def _beyond(rows: Sequence[BalanceRow], sign: int) -> Verdict:
    """Agrees if all slopes are beyond the tolerance on that side, disagrees if one is not."""
    nearest = [row.low if sign > 0 else -row.high for row in rows]
    farthest = [row.high if sign > 0 else -row.low for row in rows]
    return decided(min(nearest) > TOLERANCE, min(farthest) < TOLERANCE)


_PARTS = {
    "taken": "1 − D",
    "gained": "‖learned‖/‖W_0‖",
    "initial_share": "‖D·W_0‖/‖W_T‖",
    "learned_share": "‖learned‖/‖W_T‖",
}


def _parts_lines(seen: _BalanceRuns) -> Iterator[str]:
    """W_T = D·W_0 + learned at both ends of the widths, and the loss."""
    size, rows = seen.size, list[list[str]]()
    for error in ERRORS:
        for place in (0, -1):
            parts = [
                geometric([row[place] for row in seen.part(error, name)]).value for name in _PARTS
            ]
            fall = sum(row[place] for row in seen.fall(error)) / len(size.seeds)
            numbers = [*(f"{part:.3f}" for part in parts), f"{fall:.2f}"]
            rows.append([error.label, str(size.widths[place]), *numbers])
    yield f"W_T = D·W_0 + learned after {size.steps} steps, mean over seeds and hidden matrices"
    head = ["decay", "width", *_PARTS.values(), "fall of the loss"]
    yield text_table(head, rows, right=head[1:])


def _balance_figure(seen: _BalanceRuns) -> "Figure":
    errors = [error for error in ERRORS if not error.matched]
    panels = [
        Panel(
            role.replace("_", " "),
            [_curve(seen, error, seen.balance(error, role), error.delta) for error in errors],
        )
        for role in HIDDEN
    ]
    return draw_panels(
        panels,
        x_label="width n",
        log_x=True,
        y_label="b = λ‖W‖/‖r̂‖",
        title=f"Decay beside learning, λ ∝ n$^{{1+δ}}$ ({len(seen.size.seeds)} seeds, bands: 95 % "
        "intervals)",
        theory="theory: b ∝ n$^δ$",
    )


def _parts_figure(seen: _BalanceRuns) -> "Figure":
    """To first order decay takes a share ∝ ηλ of W_0, and learning gives one ∝ η."""
    taken, gained = (
        [_curve(seen, error, seen.part(error, name), slope(error)) for error in ERRORS]
        for name, slope in (
            ("taken", lambda error: 0.0 if error.matched else error.delta),
            ("gained", lambda error: -error.delta if error.matched else 0.0),
        )
    )
    return draw_panels(
        [
            Panel("taken by decay, 1 − D", taken),
            Panel("learned, ‖learned‖/‖W_0‖", gained),
        ],
        x_label="width n",
        log_x=True,
        y_label="share of ‖W_0‖",
        title=f"W_T = D·W_0 + learned after {seen.size.steps} steps, λ ∝ n$^{{1+δ}}$ "
        f"({len(seen.size.seeds)} seeds)",
        theory="theory: ∝ ηλ, ∝ η",
    )


def _curve(
    seen: _BalanceRuns, error: Error, values: Sequence[Sequence[float]], slope: float
) -> Line:
    """With a line of that slope from the first mean on."""
    found, widths = [geometric(column) for column in zip(*values, strict=True)], seen.size.widths
    line = [found[0].value * (width / widths[0]) ** slope for width in widths]
    return panel_line(error.label, widths, found, line)
