"""The paper's claim that Adam's updates decay with width unless ε does.

On its first step Adam moves a weight by η·g/(|g| + ε), and gradients shrink like 1/n. With a fixed
ε the update of a wide model is therefore smaller; with ε = ε0/n it is not; and with ε = 1e-12,
which the paper advises, neither matters. Four coordinate checks over width: ε fixed or scaled,
large or tiny. What is judged is the share of the update that ε leaves: ‖ΔW‖ over that of the same
model, seed and batch with the tiny ε, so that all else cancels (without ε, updates of keys shrink a
little with width too, which is no matter of ε; it is reported beside). Next to it theory's own
curve, made from nothing but the gradient of the *base*: ‖g/(|g| + kε)‖/‖sign g‖, k being the width
over the base's.

Ours: the large ε. At the base width the median |g| is 5e-4 for queries and keys and 2e-3 to 6e-3
for the other hidden matrices; 1e-3 lies between, so that the former are deep in ε's grip and the
latter at its edge. Also ours: the rate, the number of steps, the data (Python's own library as
bytes), heads of one size at every width.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from mupscale import norms, reports
from mupscale.analysis import Flatness, curve_slope, fit_slope, judge_flatness
from mupscale.checks import CheckResult, Setup, coordinate_check
from mupscale.checks.judging import NormTable
from mupscale.checks.probe import cross_entropy_of
from mupscale.checks.statistics import STATISTICS, by_step, geometric_mean
from mupscale.data import Batch
from mupscale.engines import run_jobs
from mupscale.paper.experiment import (
    QUIETLY,
    Claim,
    Cost,
    Experiment,
    Findings,
    Running,
    Scale,
    Verdict,
)
from mupscale.paper.few_steps import (
    HIDDEN,
    RULE,
    STD,
    OverWidth,
    Start,
    estimated,
    geometric,
    recorded,
    recorded_check,
    shape_of,
    shapes,
)
from mupscale.reports.panels import Line, Panel, draw_panels
from mupscale.targets import Family
from mupscale.theory import Rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RULES: Mapping[str, Rule] = {
    "scaled": RULE,
    "fixed": RULE.with_(eps="none"),
}
EPSILONS: Mapping[str, float] = {"large": 1e-3, "tiny": 1e-12}
TOLERANCE, CONFIDENCE = 0.1, 0.95
Key = tuple[str, str]
CHECKS: Sequence[Key] = [(eps, rule) for eps in EPSILONS for rule in RULES]
WITHOUT: Key = ("tiny", "scaled")
"""As good as no ε at all: what the others are measured against."""


class EpsilonSize(OverWidth):
    """With an ε that matters, or one that does not."""

    def setup(self, eps: str) -> Setup:
        return Setup(
            lr=2**-13, eps=EPSILONS[eps], std=STD, batch=self.batch, sequence=self.sequence
        )

    @property
    def starts(self) -> int:
        """Models, each with a seed: what one check has runs of."""
        return len(self.widths) * len(self.seeds)

    @property
    def runs(self) -> int:
        return self.starts * (len(CHECKS) + 1)


SIZES: Mapping[Scale, EpsilonSize] = {
    "cpu": EpsilonSize(
        Family("gpt:cpu_32_r1,depth=2"), (32, 64, 128, 256), tuple(range(1, 9)), 3, 4, 128
    ),
    # The widths of the paper's weight-decay table and one beyond, with its heads of 64.
    "paper": EpsilonSize(
        Family("gpt:jwd-small,vocabulary=256,context=1024"),
        (384, 768, 1024, 2048),
        tuple(range(1, 11)),
        5,
        4,
        1024,
    ),
}


@dataclass(frozen=True)
class GradientJob:
    """A model whose gradient is looked at before its first step."""

    start: Start
    eps: float
    ratios: tuple[float, ...]
    "By how much ε outgrows the gradient at each width, 1 at the base."


def look_at_gradients(job: GradientJob) -> dict[str, Any]:
    """By role: the root mean square of the gradient, and how much of Adam's step is left as ε
    outgrows it.
    """
    model, made = job.start.made()
    batch = Batch(
        *(tokens.to(next(model.parameters()).device) for tokens in job.start.batches().at(0))
    )
    cross_entropy_of(model, batch).backward()
    roles: dict[str, list[dict[str, Any]]] = {}
    for name, one in made.parameters.items():
        gradient = model.get_parameter(name).grad
        if one.role in HIDDEN and gradient is not None:
            roles.setdefault(one.role, []).append(_seen(gradient, job.eps * one.eps, job.ratios))
    found = {role: _over_layers(layers) for role, layers in roles.items()}
    return {"width": job.start.width, "seed": job.start.seed, "roles": found}


def _seen(gradient: Tensor, eps: float, ratios: Sequence[float]) -> dict[str, Any]:
    whole = _first_step(gradient, EPSILONS["tiny"])
    left = [_first_step(gradient, eps * ratio) / whole for ratio in ratios]
    return {"rms": float(gradient.square().mean().sqrt()), "left": left}


def _first_step(gradient: Tensor, eps: float) -> float:
    """‖g/(|g| + ε)‖: Adam's first step, whatever its β, at a rate of 1."""
    return float(norms.spectral_norm(gradient / (gradient.abs() + eps), "gram").value.sum())


def _over_layers(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    left = [
        geometric_mean(column) for column in zip(*(layer["left"] for layer in layers), strict=True)
    ]
    rms = geometric_mean([layer["rms"] for layer in layers])
    return {"rms": float(f"{rms:.5g}"), "left": [float(f"{value:.5g}") for value in left]}


@dataclass(frozen=True)
class EpsilonRow:
    """One line of the table: the slope over width of a gradient, of an update, or of the share that
    ε leaves.
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
    "The slope of the measured over that curve."
    rest_low: float
    rest_high: float
    verdict: str
    "On the rest: pass where it is flat."


class AdamEpsilon(Experiment):
    """Coordinate checks over width with an ε that matters and with one that does not, scaled and
    fixed.
    """

    name: ClassVar[str] = "adam-epsilon"

    def cost(self, scale: Scale, workers: int) -> Cost:
        size = SIZES[scale]
        passes = len(size.seeds) * (len(CHECKS) * (size.steps + 1) + 1)
        models = {shape_of(size.family, width=width): passes for width in size.widths}
        return estimated(
            models, batch=size.batch, sequence=size.sequence, runs=size.runs, workers=workers
        )

    def run(self, scale: Scale, folder: Path, how: Running = QUIETLY) -> None:
        """One check for each ε and rule, then the gradients; what is in the folder is not run
        again.
        """
        size = SIZES[scale]
        for number, (eps, rule) in enumerate(CHECKS):
            coordinate_check(
                size.family,
                {"width": size.widths},
                rule=RULES[rule],
                seeds=size.seeds,
                steps=size.steps,
                setup=size.setup(eps),
                engine=how.engine,
                folder=folder / f"{eps}-{rule}",
                report=lambda done, _, before=number * size.starts: how.report(
                    before + done, size.runs
                ),
                remark=how.remark,
            )
        run_jobs(
            look_at_gradients,
            _gradient_jobs(size),
            ledger=folder / "gradients.jsonl",
            about={
                "family": repr(size.family),
                "eps": EPSILONS["large"],
                "tokens": size.batch * size.sequence,
            },
            engine=how.engine,
            report=lambda done, _: how.report(size.runs - size.starts + done, size.runs),
            remark=how.remark,
        )

    def findings(self, scale: Scale, folder: Path) -> Findings:
        size = SIZES[scale]
        checks = {
            (eps, rule): recorded_check(folder / f"{eps}-{rule}", size.starts)
            for eps, rule in CHECKS
        }
        gradients = _Gradients(recorded(folder / "gradients.jsonl", size.starts), size)
        rows = list(_rows(checks, gradients))
        paths = [reports.save_csv([vars(row) for row in rows], folder / "slopes.csv")]
        paths += reports.save_figure(
            _figure(checks, gradients, size), folder / self.name, ("png", "svg")
        )
        return Findings(tuple(_table(rows)), tuple(_claims(rows, size)), tuple(paths))

    def dry_run(self, scale: Scale) -> Iterator[str]:
        size = SIZES[scale]
        yield f"{self.name}: 4 checks (ε0 = {EPSILONS['large']:g} and {EPSILONS['tiny']:g}, ε ∝ 1/n and fixed) over"
        yield from shapes(size.family, size.widths, RULES["scaled"])
        yield (
            f"{len(size.seeds)} seeds, {size.steps} steps of {size.batch} × {size.sequence} "
            "tokens, base rate "
            f"{size.setup('large').lr:.3g}, std {size.setup('large').std:g}: {size.runs} runs"
        )


EXPERIMENT = AdamEpsilon()


def _gradient_jobs(size: EpsilonSize) -> dict[str, GradientJob]:
    ratios = tuple(width / min(size.widths) for width in size.widths)
    return {
        f"width={width} seed={seed}": GradientJob(
            size.start(width, seed), EPSILONS["large"], ratios
        )
        for width in size.widths
        for seed in size.seeds
    }


class _Gradients:
    """What was seen of gradients, by seed and width."""

    def __init__(self, results: Mapping[str, Any], size: EpsilonSize) -> None:
        self.widths, self.seeds = size.widths, size.seeds
        self._of = {(one["seed"], one["width"]): one["roles"] for one in results.values()}

    def rms(self, role: str) -> list[list[float]]:
        """By seed, over the widths."""
        return [
            [self._of[seed, width][role]["rms"] for width in self.widths] for seed in self.seeds
        ]

    def left(self, role: str) -> list[list[float]]:
        """By seed, what theory says of a fixed ε over the widths, from the gradient at the base
        alone.
        """
        return [self._of[seed, min(self.widths)][role]["left"] for seed in self.seeds]


def _rows(checks: Mapping[Key, CheckResult], gradients: _Gradients) -> Iterator[EpsilonRow]:
    """Intervals of all hidden roles hold together."""
    widths = gradients.widths
    falling = [[min(widths) / width for width in widths]] * len(gradients.seeds)
    for role in HIDDEN:
        yield _row("gradient", ("", ""), role, widths, gradients.rms(role), falling)
    for key in CHECKS:
        for role in HIDDEN:
            yield _row(
                "update",
                key,
                role,
                widths,
                _updates(checks[key], role),
                _foretold(key, role, gradients),
            )
    for key in (key for key in CHECKS if key != WITHOUT):
        for role in HIDDEN:
            yield _row(
                "share",
                key,
                role,
                widths,
                _shares(checks, key, role),
                _foretold(key, role, gradients),
            )


def _updates(check: CheckResult, role: str) -> list[list[float]]:
    """‖ΔW‖/‖W0‖, the mean over layers and steps, by seed over the widths."""
    return NormTable(check.runs, "width").means(
        lambda run: by_step(run, STATISTICS["update"], role)
    )


def _shares(checks: Mapping[Key, CheckResult], key: Key, role: str) -> list[list[float]]:
    """What ε leaves of the update, by seed over the widths."""
    return _over(_updates(checks[key], role), _updates(checks[WITHOUT], role))


def _foretold(key: Key, role: str, gradients: _Gradients) -> list[list[float]]:
    """Theory's curve of that share for each seed."""
    left, widths = gradients.left(role), gradients.widths
    if key[0] == "tiny":
        return [[1.0] * len(widths) for _ in left]
    return left if key[1] == "fixed" else [[row[0]] * len(widths) for row in left]


def _over(top: Sequence[Sequence[float]], bottom: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[a / b for a, b in zip(*rows, strict=True)] for rows in zip(top, bottom, strict=True)]


def _row(
    quantity: str, key: Key, role: str, widths: Sequence[int], measured: Sequence[Sequence[float]],
    theory: Sequence[Sequence[float]],
) -> EpsilonRow:  # fmt: skip
    own, rest = _judged(widths, measured), _judged(widths, _over(measured, theory))
    predicted = sum(curve_slope(widths, curve) for curve in theory) / len(theory)
    ends = own.slope.value, own.low, own.high, predicted, rest.slope.value, rest.low, rest.high
    return EpsilonRow(quantity, *key, role, *ends, rest.verdict)


def _judged(widths: Sequence[int], values: Sequence[Sequence[float]]) -> Flatness:
    slope = fit_slope(widths, values)
    return judge_flatness(
        slope, tolerance=TOLERANCE, confidence=CONFIDENCE, comparisons=len(HIDDEN)
    )


_NAMES = {"gradient": "gradient (RMS)", "update": "‖ΔW‖/‖W0‖", "share": "share that ε leaves"}


def _table(rows: Sequence[EpsilonRow]) -> Iterator[str]:
    yield f"{'slope over width of':<21}{'ε0':<7}{'ε':<8}{'role':<18}{'slope':>7}  {'interval':<17}{'theory':>7}  agree?"
    for row in rows:
        numbers = (
            f"{row.slope:>+7.2f}  {f'[{row.low:+.2f}, {row.high:+.2f}]':<17}{row.theory:>+7.2f}"
        )
        yield f"{_NAMES[row.quantity]:<21}{row.eps:<7}{row.rule:<8}{row.role:<18}{numbers}  {row.verdict}"


def _claims(rows: Sequence[EpsilonRow], size: EpsilonSize) -> Iterator[Claim]:
    def chosen(quantity: str, eps: str, rule: str) -> list[EpsilonRow]:
        return [row for row in rows if (row.quantity, row.eps, row.rule) == (quantity, eps, rule)]

    fixed, scaled = chosen("share", "large", "fixed"), chosen("share", "large", "scaled")
    tiny, gradient = chosen("share", "tiny", "fixed"), chosen("gradient", "", "")
    bare = chosen("update", *WITHOUT)
    foretold = " to ".join(f"{end(row.theory for row in fixed):+.2f}" for end in (min, max))
    pair = 2 * size.starts
    found: list[tuple[str, str, int, Verdict | Literal["ours"]]] = [
        ("Adam's updates decay with width if ε is fixed",
         f"ε0 = {EPSILONS['large']:g}: the share of the update that ε leaves has a slope over "
         f"width of {_range(fixed)}",
         pair, _falls(fixed)),
        ("they decay as g/(|g| + nε) does, with g of size 1",
         f"that slope beyond theory's own ({foretold}, from the base's gradient): "
         f"{_range(fixed, rest=True)}",
         pair + size.starts, _flat(fixed)),
        ("they do not decay if ε ∝ 1/n", "the same share with ε ∝ 1/n: "
                                         f"{_range(scaled)}", pair, _flat(scaled)),
        ("in practice ε = 1e-12 avoids it", "the same share with ε = 1e-12, fixed: "
                                            f"{_range(tiny)}", pair, _flat(tiny)),
        ("gradients shrink like 1/n", "slope of the gradient's root mean square: "
                                      f"{_range(gradient)}",
         size.starts, _flat(gradient)),
        ("With no ε to speak of, does the update itself hold over width, ‖ΔW‖/‖W0‖?",
         f"its slope with ε = 1e-12: {_range(bare)}", size.starts, "ours"),
    ]  # fmt: skip
    return (Claim("adam-epsilon", *one) for one in found)


def _range(rows: Sequence[EpsilonRow], *, rest: bool = False) -> str:
    """The extreme roles, each with its interval."""
    found = [
        (row.rest, row.rest_low, row.rest_high) if rest else (row.slope, row.low, row.high)
        for row in rows
    ]
    named = sorted(zip(found, (row.role for row in rows), strict=True))
    return " to ".join(
        f"{v:+z.2f} [{low:+z.2f}, {high:+z.2f}] ({role})"
        for (v, low, high), role in (named[0], named[-1])
    )


def _falls(rows: Sequence[EpsilonRow]) -> Verdict:
    """All slopes below the tolerance, or one that is not."""
    if all(row.high < -TOLERANCE for row in rows):
        return "agrees"
    return (
        "disagrees"
        if any(row.low > -TOLERANCE for row in rows)
        else "cannot be decided at this scale"
    )


def _flat(rows: Sequence[EpsilonRow]) -> Verdict:
    """What is left of the slopes once theory's is taken out: all within the tolerance, or one that
    is not.
    """
    verdicts = {row.verdict for row in rows}
    if verdicts == {"pass"}:
        return "agrees"
    return "disagrees" if "fail" in verdicts else "cannot be decided at this scale"


_LABELS: Mapping[Key, str] = {
    ("large", "fixed"): f"ε fixed at {EPSILONS['large']:g}",
    ("large", "scaled"): "ε ∝ 1/n from there",
    ("tiny", "fixed"): f"ε fixed at {EPSILONS['tiny']:g}",
}


def _figure(
    checks: Mapping[Key, CheckResult], gradients: _Gradients, size: EpsilonSize
) -> "Figure":
    panels = [
        Panel(role.replace("_", " "), [_curve(key, checks, role, gradients) for key in _LABELS])
        for role in HIDDEN
    ]
    return draw_panels(
        panels,
        x_label="width n",
        y_label="‖ΔW‖ over that without ε",
        title=f"What ε leaves of Adam's updates ({len(size.seeds)} seeds, bands: 95 % intervals)",
        theory="theory, from the gradient\nat the base alone",
        log_x=True,
    )


def _curve(key: Key, checks: Mapping[Key, CheckResult], role: str, gradients: _Gradients) -> Line:
    found = [geometric(column) for column in zip(*_shares(checks, key, role), strict=True)]
    foretold = [
        geometric(column).value for column in zip(*_foretold(key, role, gradients), strict=True)
    ]
    return Line(
        _LABELS[key],
        gradients.widths,
        [one.value for one in found],
        [one.low for one in found],
        [one.high for one in found],
        foretold,
    )
