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
from typing import Any

import torch
from torch import Tensor, nn

from mupscale import reports
from mupscale.analysis import fit_slope
from mupscale.checks.probe import cross_entropy_of
from mupscale.checks.statistics import geometric_mean
from mupscale.errors import NonFiniteError
from mupscale.paper.claims import Claim
from mupscale.paper.experiment import Findings, Scale
from mupscale.paper.few_steps import (
    HIDDEN,
    PAPER_WIDTHS,
    TOLERANCE,
    FewSteps,
    FewStepsExperiment,
    Judged,
    Run,
    SlopeRow,
    Slopes,
    Start,
    Table,
    by_role,
    means,
    panel_line,
    quotients,
    save_panels,
    spectral,
)
from mupscale.planning import Plan
from mupscale.reports.panels import Line
from mupscale.targets import Family
from mupscale.text import text_table

RATE, DECAY = 2**-8, 1.0

SIZES: Mapping[Scale, FewSteps] = {
    "cpu": FewSteps(Family("gpt:cpu_32_r1,depth=2"), (32, 64, 128, 256), (1, 2, 3, 4, 5), 8, 4, 64),
    "paper": replace(PAPER_WIDTHS, steps=20, batch=8),
}


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

    @property
    def rate(self) -> float:
        """The power of n on the learning rate that the rule prescribes; on its decay it is δ."""
        return -self.delta if self.matched else 0.0


ERRORS = (
    *map(Error, (-1.0, -0.5, 0.0, 0.5, 1.0)),
    Error(0.5, matched=True),
    Error(1.0, matched=True),
)
NONE = Error(0.0)


@dataclass(frozen=True)
class BalanceJob(Start):
    """A short training with mis-scaled decay."""

    error: Error

    def result(self) -> dict[str, Any]:
        """The balance at every step, and the parts of W_T, by role."""
        model, made = self.made()
        optimizer = torch.optim.AdamW(self.groups(model, made))
        matrices = [
            Matrix(role, weight, group["lr"], group["weight_decay"])
            for group in optimizer.param_groups
            for name, weight in zip(group["param_names"], group["params"], strict=True)
            if (role := made.parameters[name].role) in HIDDEN
        ]
        losses: list[float] = []
        for step, batch in enumerate(self.batches()):
            loss = cross_entropy_of(model, batch)
            losses.append(float(f"{loss.detach():.5g}"))
            if not torch.isfinite(loss):
                raise NonFiniteError(
                    f"The loss is {losses[-1]} at step {step}: lr = {RATE:g} is too large."
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for matrix in matrices:
                matrix.note()
        return {
            "width": self.width, "seed": self.seed, "delta": self.error.delta,
            "matched": self.error.matched, "losses": losses,
            "roles": by_role((matrix.role, matrix.ended()) for matrix in matrices),
        }  # fmt: skip

    def groups(self, model: nn.Module, made: Plan) -> list[dict[str, Any]]:
        """The plan's groups, with mis-scaled decay (and learning rate) of hidden matrices."""
        ratio = self.width / self.size.base
        rate, decay = RATE * ratio**self.error.rate, DECAY * ratio**self.error.delta
        return made.param_groups(
            model,
            lr={"default": RATE, **dict.fromkeys(HIDDEN, rate)},
            weight_decay={"default": DECAY, **dict.fromkeys(HIDDEN, decay)},
            eps=1e-12,
            betas=(0.9, 0.95),
        )


class Matrix:
    """A hidden matrix in training: its learning rate and decay, its start, its balance so far."""

    def __init__(self, role: str, weight: Tensor, lr: float, weight_decay: float) -> None:
        self.role, self.weight, self.lr, self.weight_decay = role, weight, lr, weight_decay
        self.first = self.before = weight.detach().clone()
        self.balances: list[float] = []

    def note(self) -> None:
        """After a step: b = λ‖W‖/‖r̂‖, with r̂ = ((1 − ηλ)W_t − W_{t+1})/η."""
        now, decayed = self.weight.detach(), (1 - self.lr * self.weight_decay) * self.before
        learned = spectral(decayed - now) / self.lr
        self.balances.append(self.weight_decay * spectral(self.before) / learned)
        self.before = now.clone()

    def ended(self) -> dict[str, Any]:
        """W_T = D·W_0 + learned: what decay took from W_0, what was learned, and both as shares."""
        left = (1 - self.lr * self.weight_decay) ** len(self.balances)
        whole, start = spectral(self.before), spectral(self.first)
        learned = spectral(self.before - left * self.first)
        return {
            "taken": 1 - left, "gained": learned / start, "initial_share": left * start / whole,
            "learned_share": learned / whole, "balance": self.balances,
        }  # fmt: skip


class DecayBalance(FewStepsExperiment):
    """Decay against learning over the width, with correct and mis-scaled decay."""

    name, sizes = "decay-balance", SIZES

    def jobs(self, size: FewSteps) -> dict[str, BalanceJob]:
        """At the base there is nothing to mis-scale."""
        return {
            f"{error.label} width={width} seed={seed}": BalanceJob(size, width, seed, error)
            for width in size.values
            for error in (ERRORS if width > size.base else [NONE])
            for seed in size.seeds
        }

    def about(self, size: FewSteps) -> dict[str, Any]:
        return {
            "family": repr(size.family), "base": size.base, "steps": size.steps,
            "batch": size.batch, "sequence": size.sequence, "lr": RATE, "weight_decay": DECAY,
            "std": size.std,
        }  # fmt: skip

    def findings(self, scale: Scale, folder: Path) -> Findings:
        size = self.sizes[scale]
        seen = BalanceRuns(size, self.recorded(size, folder))
        rows = Slopes(_rows(seen))
        paths = [
            reports.save_csv([row.columns() for row in rows], folder / "slopes.csv"),
            *_figures(seen, folder),
        ]
        lines = (rows.text("slope over width of", "decay"), "", *_parts_lines(seen))
        return Findings(lines, tuple(_claims(rows, size)), tuple(paths))

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        size = self.sizes[scale]
        seen = BalanceRuns(size, self.recorded(size, folder))
        return tuple(_claims(Slopes(_rows(seen)), size))

    def dry_run(self, scale: Scale) -> Iterator[str]:
        what = f"{', '.join(error.label for error in ERRORS)}, each"
        more = f"base learning rate {RATE:g}, base decay {DECAY:g}"
        return self.described(scale, what, more)


EXPERIMENT = DecayBalance()


@dataclass(frozen=True)
class BalanceRuns:
    """What the records hold, by seed over the widths."""

    size: FewSteps
    runs: Sequence[Run]

    def table(self, error: Error, of: Callable[[Run], float]) -> Table:
        """The base's runs belong to every error."""
        own = (
            run
            for run in self.runs
            if run["width"] == self.size.base or Error(run["delta"], run["matched"]) == error
        )
        return self.size.table(own, of)

    def balance(self, error: Error, role: str) -> Table:
        """The mean over steps."""
        return self.table(error, lambda run: geometric_mean(run["roles"][role]["balance"]))

    def part(self, error: Error, name: str) -> Table:
        """A part of W_T, the mean over roles."""
        return self.table(
            error, lambda run: geometric_mean([run["roles"][role][name] for role in HIDDEN])
        )

    def line(self, error: Error, values: Table, power: float) -> Line:
        """Means over seeds, with a power of the width from the first one on as theory."""
        points, widths = means(values), self.size.values
        theory = [points[0].value * (width / widths[0]) ** power for width in widths]
        return panel_line(error.label, widths, points, theory)


def _rows(seen: BalanceRuns) -> Iterator[SlopeRow]:
    def row(
        quantity: str, error: Error, values: Table, theory: float, role: str = "all hidden"
    ) -> SlopeRow:
        of = {"quantity": quantity, "delta": error.delta, "rate_lowered": error.matched}
        slope = fit_slope(seen.size.values, values)
        rest = replace(slope, value=slope.value - theory)
        return SlopeRow.judged(of, (_NAMES[quantity], error.label), role, slope, theory, rest)

    for error in ERRORS:
        for role in HIDDEN:
            yield row("balance", error, seen.balance(error, role), error.delta, role)
    for error in ERRORS:
        for role in HIDDEN if error.delta else ():
            # Seed by seed, other effects of the width cancel.
            values = quotients(seen.balance(error, role), seen.balance(NONE, role))
            yield row("relative", error, values, error.delta, role)
    for error in ERRORS:
        yield row("learned", error, seen.part(error, "gained"), error.rate)


_NAMES = {"balance": "b = λ‖W‖/‖r̂‖", "relative": "b over b at δ = 0", "learned": "‖learned‖/‖W_0‖"}


def _claims(rows: Slopes, size: FewSteps) -> list[Claim]:
    def claim(says: str, seen: str, errors: int, verdict: Judged) -> Claim:
        """Uses the base's runs, and those of its errors at the other widths."""
        runs = len(size.seeds) * (1 + errors * (len(size.values) - 1))
        text = f"slope over width of {seen}"
        return Claim(EXPERIMENT.name, "first steps", says, text, runs, verdict)

    right = rows.where(quantity="balance", delta=0.0)
    above = rows.where(lambda of: of["delta"] > 0, quantity="balance")
    below = rows.where(lambda of: of["delta"] < 0, quantity="balance")
    lowered = rows.where(quantity="learned", rate_lowered=True)
    law, slower = (rows.where(quantity="relative", rate_lowered=one) for one in (False, True))
    flat = ", ".join(row.role for row in right if row.verdict == "pass") or "no role"
    return [
        claim("λ ∝ n keeps decay and learning in balance at every width",
              f"b = λ‖W‖/‖r̂‖: {_by_delta(right)}; within ±{TOLERANCE} for {flat}", 1,
              right.as_theory()),
        claim("λ ∝ n^(1+δ): decay outgrows learning", f"b: {_by_delta(above)}", 4,
              above.beyond(1)),
        claim("λ ∝ n^(1−δ): decay vanishes next to learning", f"b: {_by_delta(below)}", 2,
              below.beyond(-1)),
        claim("With η ∝ n^(−1−δ) as well, what is learned becomes negligible",
              f"‖learned‖/‖W_0‖: {_by_delta(lowered)}", 2, lowered.beyond(-1)),
        claim("How does the balance depend on the width? By theory as n^δ",
              f"b over b at δ = 0, at the rule's own learning rate: {_by_delta(law)}; with η "
              f"lowered: {_by_delta(slower)}", 7, "ours"),
    ]  # fmt: skip


def _by_delta(rows: Slopes) -> str:
    deltas = dict.fromkeys(row.of["delta"] for row in rows)
    return "; ".join(
        f"{rows.where(delta=delta).extremes()} at {Error(delta).label}" for delta in deltas
    )


_PARTS = {
    "taken": "1 − D",
    "gained": "‖learned‖/‖W_0‖",
    "initial_share": "‖D·W_0‖/‖W_T‖",
    "learned_share": "‖learned‖/‖W_T‖",
}


def _parts_lines(seen: BalanceRuns) -> Iterator[str]:
    """W_T = D·W_0 + learned at both ends of the widths, and the loss."""
    size, rows = seen.size, list[list[str]]()
    for error in ERRORS:
        for place in (0, -1):
            parts = [means(seen.part(error, name))[place].value for name in _PARTS]
            falls = seen.table(error, lambda run: run["losses"][0] - run["losses"][-1])
            fall = sum(row[place] for row in falls) / len(size.seeds)
            numbers = [*(f"{part:.3f}" for part in parts), f"{fall:.2f}"]
            rows.append([error.label, str(size.values[place]), *numbers])
    yield f"W_T = D·W_0 + learned after {size.steps} steps, mean over seeds and hidden matrices"
    head = ["decay", "width", *_PARTS.values(), "fall of the loss"]
    yield text_table(head, rows, right=head[1:])


def _figures(seen: BalanceRuns, folder: Path) -> list[Path]:
    seeds = len(seen.size.seeds)
    balance = {
        role: [
            seen.line(error, seen.balance(error, role), error.delta)
            for error in ERRORS
            if not error.matched
        ]
        for role in HIDDEN
    }
    # To first order decay takes a share ∝ ηλ of W_0, and learning gives one ∝ η.
    parts = {
        "taken by decay, 1 − D": [
            seen.line(error, seen.part(error, "taken"), error.delta + error.rate)
            for error in ERRORS
        ],
        "learned, ‖learned‖/‖W_0‖": [
            seen.line(error, seen.part(error, "gained"), error.rate) for error in ERRORS
        ],
    }
    return [
        *save_panels(
            folder / "balance",
            balance,
            y_label="b = λ‖W‖/‖r̂‖",
            title=f"Decay beside learning, λ ∝ n$^{{1+δ}}$ ({seeds} seeds, bands: 95 % intervals)",
            theory="theory: b ∝ n$^δ$",
        ),
        *save_panels(
            folder / "parts",
            parts,
            y_label="share of ‖W_0‖",
            title=f"W_T = D·W_0 + learned after {seen.size.steps} steps, λ ∝ n$^{{1+δ}}$ "
            f"({seeds} seeds)",
            theory="theory: ∝ ηλ, ∝ η",
        ),
    ]
