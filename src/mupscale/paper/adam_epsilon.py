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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from mupscale import reports
from mupscale.analysis import curve_slope, fit_slope
from mupscale.checks import CheckResult, Setup
from mupscale.checks.probe import cross_entropy_of
from mupscale.paper.claims import Claim
from mupscale.paper.experiment import Findings, Scale
from mupscale.paper.few_steps import (
    HIDDEN,
    PAPER_WIDTHS,
    RULE,
    FewSteps,
    FewStepsExperiment,
    Run,
    SlopeRow,
    Slopes,
    Start,
    Table,
    by_role,
    means,
    panel_line,
    quotients,
    relative_updates,
    save_panels,
    spectral,
)
from mupscale.reports.panels import Line
from mupscale.targets import Family

EPSILONS = {"large": 1e-3, "tiny": 1e-12}
RULES = {"scaled": RULE, "fixed": RULE.with_(eps="none")}
CHECKS = {f"{eps}-{name}": rule for eps in EPSILONS for name, rule in RULES.items()}
WITHOUT = "tiny-scaled"
"""As good as no ε at all: the reference for the others."""

SIZES: Mapping[Scale, FewSteps] = {
    "cpu": FewSteps(
        Family("gpt:cpu_32_r1,depth=2"), (32, 64, 128, 256), tuple(range(1, 9)), 3, 4, 128
    ),
    "paper": PAPER_WIDTHS,
}


@dataclass(frozen=True)
class GradientJob(Start):
    """Measures the gradient before the first step."""

    def result(self) -> dict[str, Any]:
        """By role: the gradient's root mean square, and the share of Adam's step that ε leaves."""
        model, made = self.made()
        cross_entropy_of(model, next(self.batches())).backward()
        layers = (
            (one.role, self._of_layer(gradient, EPSILONS["large"] * one.eps))
            for name, one in made.parameters.items()
            if one.role in HIDDEN and (gradient := model.get_parameter(name).grad) is not None
        )
        return {"width": self.width, "seed": self.seed, "roles": by_role(layers)}

    def _of_layer(self, gradient: Tensor, eps: float) -> dict[str, Any]:
        """At each width, ε outgrows the gradient by the ratio to the base."""
        whole = first_step(gradient, EPSILONS["tiny"])
        ratios = [width / self.size.base for width in self.size.values]
        left = [first_step(gradient, eps * ratio) / whole for ratio in ratios]
        return {"rms": float(gradient.square().mean().sqrt()), "left": left}


def first_step(gradient: Tensor, eps: float) -> float:
    """‖g/(|g| + ε)‖: Adam's first step at a learning rate of 1, for any β."""
    return spectral(gradient / (gradient.abs() + eps))


class AdamEpsilon(FewStepsExperiment):
    """Coordinate checks over width with an ε that matters or not, scaled or fixed."""

    name, sizes, checks = "adam-epsilon", SIZES, CHECKS
    ledger = "gradients.jsonl"

    def setup(self, check: str, size: FewSteps) -> Setup:
        return size.setup(EPSILONS[check.partition("-")[0]])

    def jobs(self, size: FewSteps) -> dict[str, GradientJob]:
        return {
            f"width={width} seed={seed}": GradientJob(replace(size, steps=1), width, seed)
            for width in size.values
            for seed in size.seeds
        }

    def about(self, size: FewSteps) -> dict[str, Any]:
        tokens = size.batch * size.sequence
        return {"family": repr(size.family), "eps": EPSILONS["large"], "tokens": tokens}

    def findings(self, scale: Scale, folder: Path) -> Findings:
        size = self.sizes[scale]
        seen = self._seen(size, folder)
        rows = Slopes(_rows(seen))
        paths = [
            reports.save_csv([row.columns(rest=True) for row in rows], folder / "slopes.csv"),
            *save_panels(
                folder / self.name,
                {role: [seen.line(key, role) for key in _LABELS] for role in HIDDEN},
                y_label="‖ΔW‖ over that without ε",
                title=f"What ε leaves of Adam's updates ({len(size.seeds)} seeds, bands: 95 % "
                "intervals)",
                theory="theory, from the gradient\nat the base alone",
            ),
        ]
        table = rows.text("slope over width of", "ε0", "ε")
        return Findings((table,), tuple(_claims(rows, size)), tuple(paths))

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        size = self.sizes[scale]
        return tuple(_claims(Slopes(_rows(self._seen(size, folder))), size))

    def _seen(self, size: FewSteps, folder: Path) -> "Shares":
        return Shares(size, self.checked(size, folder), self.recorded(size, folder))

    def dry_run(self, scale: Scale) -> Iterator[str]:
        values = " and ".join(f"{eps:g}" for eps in EPSILONS.values())
        what = f"4 checks (ε0 = {values}, ε ∝ 1/n and fixed)"
        return self.described(scale, what, f"base learning rate {self.sizes[scale].setup().lr:.3g}")


EXPERIMENT = AdamEpsilon()


@dataclass(frozen=True)
class Shares:
    """What the records hold, by seed over the widths."""

    size: FewSteps
    checks: Mapping[str, CheckResult]
    gradients: Sequence[Run]

    def measured(self, key: str, role: str) -> Table:
        """The share of the update that ε leaves."""
        own, without = (relative_updates(self.checks[one], role) for one in (key, WITHOUT))
        return quotients(own, without)

    def gradient(self, role: str, of: str) -> Sequence[Sequence[Any]]:
        return self.size.table(self.gradients, lambda run: run["roles"][role][of])

    def theory(self, key: str, role: str) -> Table:
        """Theory's curve of the share for each seed, from the base's gradient alone."""
        left: Table = [row[0] for row in self.gradient(role, "left")]
        if key.startswith("tiny"):
            return [[1.0] * len(row) for row in left]
        return left if key == "large-fixed" else [[row[0]] * len(row) for row in left]

    def line(self, key: str, role: str) -> Line:
        theory = [one.value for one in means(self.theory(key, role))]
        return panel_line(_LABELS[key], self.size.values, means(self.measured(key, role)), theory)


def _rows(seen: Shares) -> Iterator[SlopeRow]:
    size = seen.size
    falling = [[size.base / width for width in size.values]] * len(size.seeds)

    def row(quantity: str, key: str, role: str, measured: Table, theory: Table) -> SlopeRow:
        eps, rule = key.split("-")
        of = {"quantity": quantity, "eps": eps, "rule": rule}
        own, rest = (fit_slope(size.values, y) for y in (measured, quotients(measured, theory)))
        predicted = sum(curve_slope(size.values, curve) for curve in theory) / len(theory)
        return SlopeRow.judged(of, (_NAMES[quantity], eps, rule), role, own, predicted, rest)

    for role in HIDDEN:
        yield row("gradient", "-", role, seen.gradient(role, "rms"), falling)
    for key in CHECKS:
        for role in HIDDEN:
            updates = relative_updates(seen.checks[key], role)
            yield row("update", key, role, updates, seen.theory(key, role))
    for key in CHECKS:
        for role in HIDDEN if key != WITHOUT else ():
            yield row("share", key, role, seen.measured(key, role), seen.theory(key, role))


_NAMES = {"gradient": "gradient (RMS)", "update": "‖ΔW‖/‖W0‖", "share": "share that ε leaves"}
_LABELS = {
    "large-fixed": f"ε fixed at {EPSILONS['large']:g}",
    "large-scaled": "ε ∝ 1/n from there",
    "tiny-fixed": f"ε fixed at {EPSILONS['tiny']:g}",
}


def _claims(rows: Slopes, size: FewSteps) -> list[Claim]:
    fixed, scaled = (
        rows.where(quantity="share", eps="large", rule=rule) for rule in ("fixed", "scaled")
    )
    tiny, gradient = rows.where(quantity="share", eps="tiny"), rows.where(quantity="gradient")
    bare = rows.where(quantity="update", eps="tiny", rule="scaled")
    ends = " to ".join(f"{end(row.theory or 0 for row in fixed):+.2f}" for end in (min, max))
    claim, one, pair = partial(Claim, EXPERIMENT.name, "first steps"), size.starts, 2 * size.starts
    return [
        claim("Adam's updates decay with width if ε is fixed",
              f"ε0 = {EPSILONS['large']:g}: slope over width of the share of the update that ε "
              f"leaves: {fixed.extremes()}", pair, fixed.beyond(-1)),
        claim("They decay as g/(|g| + nε) does, with g of size 1",
              f"that slope minus theory's ({ends}, from the base's gradient): "
              f"{fixed.extremes(rest=True)}", pair + one, fixed.as_theory()),
        claim("They do not decay if ε ∝ 1/n",
              f"the same share with ε ∝ 1/n: {scaled.extremes()}", pair, scaled.as_theory()),
        claim("In practice, ε = 1e-12 avoids the decay",
              f"the same share with ε = 1e-12, fixed: {tiny.extremes()}", pair, tiny.as_theory()),
        claim("Gradients shrink like 1/n",
              f"slope of the gradient's root mean square: {gradient.extremes()}", one,
              gradient.as_theory()),
        claim("With a negligible ε, is the update ‖ΔW‖/‖W0‖ the same at every width?",
              f"its slope with ε = 1e-12: {bare.extremes()}", one, "ours"),
    ]  # fmt: skip
