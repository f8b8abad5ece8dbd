"""The paper's claim that Adam's updates decay with width unless ε does.

On its first step Adam moves a weight by η·g/(|g| + ε), and gradients shrink like 1/n. With a fixed
ε, a wide model therefore gets a smaller update; with ε = ε0/n it does not; and with ε = 1e-12,
which the paper advises, neither matters. Four coordinate checks over width: ε fixed or scaled,
large or tiny. The judged quantity is the share of the update that ε leaves: ‖ΔW‖ divided by ‖ΔW‖ of
the same model, seed and batch with the tiny ε. Everything else cancels: without ε, updates of keys
also shrink a little with width, for other reasons, and this is reported separately. Theory's curve
uses only the gradient of the *base*, the narrowest model: ‖g/(|g| + kε)‖/‖sign g‖, where k is the
width divided by the base's.

Ours: the large ε. At the base width the median |g| is 5e-4 for queries and keys and 2e-3 to 6e-3
for the other hidden matrices. 1e-3 lies between: ε dominates the former and begins to matter for
the latter. Also ours: the learning rate, the number of steps, the data (Python's standard library
as bytes), heads of one size at every width.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from mupscale import norms, reports
from mupscale.analysis import Flatness, curve_slope, fit_slope, judge_flatness
from mupscale.checks import CheckResult, Setup, coordinate_check
from mupscale.checks.probe import cross_entropy_of
from mupscale.checks.statistics import geometric_mean
from mupscale.data import Batch
from mupscale.engines import Local, run_jobs
from mupscale.paper.claims import Claim, Verdict, decided
from mupscale.paper.experiment import QUIETLY, Cost, Execution, Experiment, Findings, Scale
from mupscale.paper.few_steps import (
    HIDDEN,
    PAPER_WIDTHS,
    RULE,
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
    recorded_check,
    relative_updates,
    signed,
    slope_cells,
)
from mupscale.reports.panels import Line, Panel, draw_panels
from mupscale.targets import Family
from mupscale.text import text_table
from mupscale.theory import Rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RULES: Mapping[str, Rule] = {"scaled": RULE, "fixed": RULE.with_(eps="none")}
EPSILONS: Mapping[str, float] = {"large": 1e-3, "tiny": 1e-12}
Key = tuple[str, str]
CHECKS: Sequence[Key] = [(eps, rule) for eps in EPSILONS for rule in RULES]
WITHOUT: Key = ("tiny", "scaled")
"""As good as no ε at all: the reference for the others."""


class EpsilonSize(OverWidth):
    """With an ε that matters, or one that does not."""

    def setup(self, eps: str) -> Setup:
        return Setup(
            lr=2**-13, eps=EPSILONS[eps], std=STD, batch=self.batch, sequence=self.sequence
        )

    @property
    def starts(self) -> int:
        """Runs of one check: models times seeds."""
        return len(self.widths) * len(self.seeds)

    @property
    def runs(self) -> int:
        return self.starts * (len(CHECKS) + 1)


SIZES: Mapping[Scale, EpsilonSize] = {
    "cpu": EpsilonSize(
        Family("gpt:cpu_32_r1,depth=2"), (32, 64, 128, 256), tuple(range(1, 9)), 3, 4, 128
    ),
    "paper": EpsilonSize(*PAPER_WIDTHS, steps=5, batch=4, sequence=1024),
}


@dataclass(frozen=True)
class GradientJob:
    """A model whose gradient is measured before its first step."""

    start: Start
    eps: float
    ratios: tuple[float, ...]
    "By how much ε outgrows the gradient at each width, 1 at the base."


def look_at_gradients(job: GradientJob) -> dict[str, Any]:
    """By role: the gradient's root mean square, and the share of Adam's step that ε leaves."""
    model, made = job.start.made()
    device = next(model.parameters()).device
    batch = Batch(*(tokens.to(device) for tokens in job.start.batches().at(0)))
    cross_entropy_of(model, batch).backward()
    roles: dict[str, list[dict[str, Any]]] = {}
    for name, one in made.parameters.items():
        gradient = model.get_parameter(name).grad
        if one.role in HIDDEN and gradient is not None:
            layer = _of_layer(gradient, job.eps * one.eps, job.ratios)
            roles.setdefault(one.role, []).append(layer)
    found = {role: _over_layers(layers) for role, layers in roles.items()}
    return {"width": job.start.width, "seed": job.start.seed, "roles": found}


def _of_layer(gradient: Tensor, eps: float, ratios: Sequence[float]) -> dict[str, Any]:
    whole = _first_step(gradient, EPSILONS["tiny"])
    left = [_first_step(gradient, eps * ratio) / whole for ratio in ratios]
    return {"rms": float(gradient.square().mean().sqrt()), "left": left}


def _first_step(gradient: Tensor, eps: float) -> float:
    """‖g/(|g| + ε)‖: Adam's first step at a learning rate of 1, for any β."""
    return float(norms.spectral_norm(gradient / (gradient.abs() + eps), "gram").value.sum())


def _over_layers(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns = zip(*(layer["left"] for layer in layers), strict=True)
    rms = geometric_mean([layer["rms"] for layer in layers])
    left = [float(f"{geometric_mean(column):.5g}") for column in columns]
    return {"rms": float(f"{rms:.5g}"), "left": left}


@dataclass(frozen=True)
class EpsilonRow:
    """A row of the table: the slope over width of a gradient, an update, or the share that ε
    leaves.
    """

    quantity: str
    eps: str
    rule: str
    role: str
    slope: float
    low: float
    high: float
    theory: float
    "The slope that theory's curve has on the same widths."
    rest: float
    "The slope of the measured values divided by that curve."
    rest_low: float
    rest_high: float
    verdict: str
    "On the rest: pass where it is flat."


class AdamEpsilon(Experiment):
    """Coordinate checks over width with an ε that matters and one that does not, scaled and
    fixed.
    """

    name: ClassVar[str] = "adam-epsilon"

    def cost(self, scale: Scale, workers: int) -> Cost:
        size = SIZES[scale]
        passes = len(size.seeds) * (len(CHECKS) * (size.steps + 1) + 1)
        return size.cost(dict.fromkeys(size.widths, passes), size.runs, workers)

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        """A check for each ε and rule, then the gradients; runs in the folder are not repeated."""
        size = SIZES[scale]
        for number, (eps, rule) in enumerate(CHECKS):
            coordinate_check(
                size.family,
                {"width": size.widths},
                rule=RULES[rule],
                seeds=size.seeds,
                steps=size.steps,
                setup=size.setup(eps),
                engine=how.on(Local()),
                folder=folder / f"{eps}-{rule}",
                report=how.after(number * size.starts, size.runs),
                remark=how.remark,
            )
        tokens = size.batch * size.sequence
        run_jobs(
            look_at_gradients,
            _gradient_jobs(size),
            ledger=folder / "gradients.jsonl",
            about={"family": repr(size.family), "eps": EPSILONS["large"], "tokens": tokens},
            engine=how.on(Local()),
            report=how.after(size.runs - size.starts, size.runs),
            remark=how.remark,
        )

    def findings(self, scale: Scale, folder: Path) -> Findings:
        size = SIZES[scale]
        checks, gradients = _recorded_runs(folder, size)
        rows = list(_rows(checks, gradients))
        figure = _figure(checks, gradients, size)
        paths = [
            reports.save_csv([vars(row) for row in rows], folder / "slopes.csv"),
            *reports.save_figure(figure, folder / self.name, ("png", "svg")),
        ]
        cells = [(_NAMES[row.quantity], row.eps, row.rule, *slope_cells(row)) for row in rows]
        head = ("slope over width of", "ε0", "ε", *SLOPE_HEAD)
        table = text_table(head, cells, right=("slope", "theory"))
        return Findings((table,), tuple(_claims(rows, size)), tuple(paths))

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        rows = list(_rows(*_recorded_runs(folder, SIZES[scale])))
        return tuple(_claims(rows, SIZES[scale]))

    def dry_run(self, scale: Scale) -> Iterator[str]:
        size = SIZES[scale]
        values = " and ".join(f"{eps:g}" for eps in EPSILONS.values())
        yield f"{self.name}: 4 checks (ε0 = {values}, ε ∝ 1/n and fixed) over"
        setup = size.setup("large")
        more = f"base learning rate {setup.lr:.3g}, std {setup.std:g}"
        yield from size.described(more, size.runs)


EXPERIMENT = AdamEpsilon()


def _gradient_jobs(size: EpsilonSize) -> dict[str, GradientJob]:
    eps, ratios = EPSILONS["large"], tuple(width / min(size.widths) for width in size.widths)
    return {
        f"width={width} seed={seed}": GradientJob(size.start(width, seed), eps, ratios)
        for width in size.widths
        for seed in size.seeds
    }


class _Gradients:
    """What was measured of gradients, by seed and width."""

    def __init__(self, results: Mapping[str, Any], size: EpsilonSize) -> None:
        self.widths, self.seeds = size.widths, size.seeds
        self._of = {(one["seed"], one["width"]): one["roles"] for one in results.values()}

    def rms(self, role: str) -> list[list[float]]:
        """By seed, over the widths."""
        return [
            [self._of[seed, width][role]["rms"] for width in self.widths] for seed in self.seeds
        ]

    def left(self, role: str) -> list[list[float]]:
        """By seed, theory's share for a fixed ε over the widths, from the base's gradient alone."""
        return [self._of[seed, min(self.widths)][role]["left"] for seed in self.seeds]


def _recorded_runs(folder: Path, size: EpsilonSize) -> tuple[Mapping[Key, CheckResult], _Gradients]:
    checks = {
        (eps, rule): recorded_check(folder / f"{eps}-{rule}", size.starts) for eps, rule in CHECKS
    }
    return checks, _Gradients(recorded(folder / "gradients.jsonl", size.starts), size)


def _rows(checks: Mapping[Key, CheckResult], gradients: _Gradients) -> Iterator[EpsilonRow]:
    """The intervals of all hidden roles hold simultaneously."""
    widths = gradients.widths
    falling = [[min(widths) / width for width in widths]] * len(gradients.seeds)
    for role in HIDDEN:
        yield _row("gradient", ("", ""), role, widths, gradients.rms(role), falling)
    for key in CHECKS:
        for role in HIDDEN:
            updates, theory = relative_updates(checks[key], role), _predicted(key, role, gradients)
            yield _row("update", key, role, widths, updates, theory)
    for key in (key for key in CHECKS if key != WITHOUT):
        for role in HIDDEN:
            shares, theory = _shares(checks, key, role), _predicted(key, role, gradients)
            yield _row("share", key, role, widths, shares, theory)


def _shares(checks: Mapping[Key, CheckResult], key: Key, role: str) -> list[list[float]]:
    """The share of the update that ε leaves, by seed over the widths."""
    own, without = (relative_updates(checks[one], role) for one in (key, WITHOUT))
    return quotients(own, without)


def _predicted(key: Key, role: str, gradients: _Gradients) -> list[list[float]]:
    """Theory's curve of that share for each seed."""
    left, widths = gradients.left(role), gradients.widths
    if key[0] == "tiny":
        return [[1.0] * len(widths) for _ in left]
    return left if key[1] == "fixed" else [[row[0]] * len(widths) for row in left]


def _row(
    quantity: str, key: Key, role: str, widths: Sequence[int], measured: Sequence[Sequence[float]],
    theory: Sequence[Sequence[float]],
) -> EpsilonRow:  # fmt: skip
    own, rest = _judged(widths, measured), _judged(widths, quotients(measured, theory))
    predicted = sum(curve_slope(widths, curve) for curve in theory) / len(theory)
    ends = own.slope.value, own.low, own.high, predicted, rest.slope.value, rest.low, rest.high
    return EpsilonRow(quantity, *key, role, *ends, rest.verdict)


def _judged(widths: Sequence[int], values: Sequence[Sequence[float]]) -> Flatness:
    slope = fit_slope(widths, values)
    return judge_flatness(slope, tolerance=TOLERANCE, confidence=0.95, comparisons=len(HIDDEN))


_NAMES = {"gradient": "gradient (RMS)", "update": "‖ΔW‖/‖W0‖", "share": "share that ε leaves"}


def _claims(rows: Sequence[EpsilonRow], size: EpsilonSize) -> Iterator[Claim]:
    def chosen(quantity: str, eps: str, rule: str) -> list[EpsilonRow]:
        return [row for row in rows if (row.quantity, row.eps, row.rule) == (quantity, eps, rule)]

    fixed, scaled = chosen("share", "large", "fixed"), chosen("share", "large", "scaled")
    tiny, gradient = chosen("share", "tiny", "fixed"), chosen("gradient", "", "")
    bare = chosen("update", *WITHOUT)
    ends = " to ".join(f"{end(row.theory for row in fixed):+.2f}" for end in (min, max))
    pair = 2 * size.starts
    found: list[tuple[str, str, int, Verdict | Literal["ours"]]] = [
        ("Adam's updates decay with width if ε is fixed",
         f"ε0 = {EPSILONS['large']:g}: slope over width of the share of the update that ε leaves: "
         f"{_range(fixed)}", pair, _falls(fixed)),
        ("They decay as g/(|g| + nε) does, with g of size 1",
         f"that slope minus theory's ({ends}, from the base's gradient): "
         f"{_range(fixed, rest=True)}", pair + size.starts, as_theory(fixed)),
        ("They do not decay if ε ∝ 1/n",
         f"the same share with ε ∝ 1/n: {_range(scaled)}", pair, as_theory(scaled)),
        ("In practice, ε = 1e-12 avoids the decay",
         f"the same share with ε = 1e-12, fixed: {_range(tiny)}", pair, as_theory(tiny)),
        ("Gradients shrink like 1/n",
         f"slope of the gradient's root mean square: {_range(gradient)}",
         size.starts, as_theory(gradient)),
        ("With a negligible ε, is the update ‖ΔW‖/‖W0‖ the same at every width?",
         f"its slope with ε = 1e-12: {_range(bare)}", size.starts, "ours"),
    ]  # fmt: skip
    return (Claim("adam-epsilon", *one) for one in found)


def _range(rows: Sequence[EpsilonRow], *, rest: bool = False) -> str:
    """The extreme roles, each with its interval."""
    found = sorted(
        (row.rest, row.rest_low, row.rest_high, row.role)
        if rest
        else (row.slope, row.low, row.high, row.role)
        for row in rows
    )
    return " to ".join(
        f"{signed(*(round(number, 2) + 0.0 for number in numbers))} ({role})"  # no -0.00
        for *numbers, role in (found[0], found[-1])
    )


def _falls(rows: Sequence[EpsilonRow]) -> Verdict:
    """Agrees if all slopes are below the tolerance, disagrees if one is above."""
    return decided(
        all(row.high < -TOLERANCE for row in rows), any(row.low > -TOLERANCE for row in rows)
    )


_LABELS: Mapping[Key, str] = {
    ("large", "fixed"): f"ε fixed at {EPSILONS['large']:g}",
    ("large", "scaled"): "ε ∝ 1/n from there",
    ("tiny", "fixed"): f"ε fixed at {EPSILONS['tiny']:g}",
}


def _figure(
    checks: Mapping[Key, CheckResult], gradients: _Gradients, size: EpsilonSize
) -> "Figure":
    def curve(key: Key, role: str) -> Line:
        found, theory = (
            [geometric(column) for column in zip(*values, strict=True)]
            for values in (_shares(checks, key, role), _predicted(key, role, gradients))
        )
        return panel_line(_LABELS[key], size.widths, found, [one.value for one in theory])

    panels = {role.replace("_", " "): [curve(key, role) for key in _LABELS] for role in HIDDEN}
    return draw_panels(
        [Panel(title, curves) for title, curves in panels.items()],
        x_label="width n",
        log_x=True,
        y_label="‖ΔW‖ over that without ε",
        title=f"What ε leaves of Adam's updates ({len(size.seeds)} seeds, bands: 95 % intervals)",
        theory="theory, from the gradient\nat the base alone",
    )
