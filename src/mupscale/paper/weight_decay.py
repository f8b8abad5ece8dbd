"""The paper's sweep of learning rate and decay over three sizes: Voronoi maps by rule and size, and
the table of variances.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from mupscale.analysis import Estimate, analyse
from mupscale.analysis.contrasts import CellValue, contrast
from mupscale.analysis.families import drift_weights
from mupscale.analysis.measurements import Member
from mupscale.analysis.slopes import t_quantile
from mupscale.analysis.surfaces import Surface
from mupscale.paper.claims import UNDECIDED, Claim, by_one_fit, decided
from mupscale.paper.sweeps import Sweep, SweepFinding, drift_words, with_ends
from mupscale.text import text_table

RULES = ("sp", "mup", "complete-p")

PRINTED: Mapping[str, Mapping[str, float]] = {
    "sp": {"lr": 1.34, "weight_decay": 0.383, "tau_epoch": 2.78, "loss": 0.487},
    "mup": {"lr": 0.0475, "weight_decay": 1.38, "tau_epoch": 1.49, "loss": 0.487},
    "complete-p": {"lr": 0.00554, "weight_decay": 0.751, "tau_epoch": 0.656, "loss": 0.477},
}
"""The paper's table of variances over sizes, of the best trials. It does not state the units."""


class DecaySweep(Sweep):
    """What the two experiments on this study share: the drift of parameters over sizes."""

    study = "weight-decay"
    parameters: ClassVar[tuple[str, ...]]
    comparisons: ClassVar[tuple[tuple[str, str, str], ...]]
    "Parameter, the rule that complete-p is compared with, and the claim."

    def lines(self, finding: SweepFinding) -> Iterator[str]:
        yield from variance_lines(finding)
        yield ""
        yield "drift of the optimum, octaves (factors of two) per doubling of the parameters:"
        for rule in RULES:
            for name in self.parameters:
                drift = drift_over_sizes(finding, rule, name)
                sizes = f"{drift.sizes} of 3 sizes bounded"
                yield f"  {rule:<11} {name:<13} {with_ends(drift.estimate)}, {sizes}"

    def claims(self, finding: SweepFinding) -> Iterator[Claim]:
        for parameter, against, says in self.comparisons:
            yield compared(self.name, finding, parameter, against, says)


class WeightDecay(DecaySweep):
    """Where the best learning rate and decay are, by size, under each rule."""

    name = "weight-decay"
    parameters = ("lr", "weight_decay", "tau_epoch")
    comparisons = (
        (
            "lr",
            "sp",
            "The best learning rate varies less over sizes under μP with scaled decay than under "
            "SP",
        ),
        (
            "weight_decay",
            "mup",
            "The best decay varies less over sizes if it is scaled than under vanilla μP",
        ),
    )

    def claims(self, finding: SweepFinding) -> Iterator[Claim]:
        yield from super().claims(finding)
        found = variances(finding)
        ordered = sorted(
            (rule for rule in RULES if rule in found), key=lambda rule: found[rule]["weight_decay"]
        )
        words = ", ".join(f"{rule} {found[rule]['weight_decay']:.2f}" for rule in ordered)
        yield Claim(
            self.name,
            "best rates",
            "In the paper's table the best decay varies least under SP (0.383), contrary to its "
            "text",
            f"variance of log2 of the best decay over sizes, without interval: {words}",
            finding.count(),
            UNDECIDED,
        )
        weak = with_weak_decay(finding)
        words = "; ".join(drift_words(weak, rule) for rule in RULES)
        question = (
            "Where decay hardly matters (the weaker half of the decays), is the best learning rate "
            "the same at every size?"
        )
        seen = f"octaves per doubling of parameters: {words}; {_lengths(finding)}"
        yield Claim(self.name, "best rates", question, seen, weak.count(), "ours")


def _lengths(finding: SweepFinding) -> str:
    """Nothing but size differs in a fair comparison of sizes; here the length of the run does."""
    steps = {run.member: run.steps for run in finding.runs if run.steps}
    ordered = sorted(steps, key=lambda member: member.position or 0.0)
    grown = ", ".join(f"{member.label} {steps[member]}" for member in ordered)
    seeds = f"{finding.seeds} seed{'' if finding.seeds == 1 else 's'}"
    if len(set(steps.values())) < 2:
        return seeds
    return (
        f"{seeds}; batch, warmup and steps grow with the size as well (steps: {grown}), so that "
        "this is not the effect of size alone"
    )


@dataclass(frozen=True)
class SizeDrift:
    """The drift of an optimum with size; None where fewer than two sizes bound it."""

    rule: str
    sizes: int
    estimate: Estimate | None


def drift_over_sizes(finding: SweepFinding, rule: str, name: str) -> SizeDrift:
    fits = [one for one in _fits(finding, rule, name) if one[1].found[name].bounded]
    weights = drift_weights([member for member, _ in fits])
    if weights is None:
        return SizeDrift(rule, len(fits), None)
    places = [
        CellValue(fit.found[name].value, fit.errors[name], fit.found[name].degrees_of_freedom, {})
        for _, fit in fits
    ]
    estimate = contrast(places, weights, None, finding.analysis.confidence)
    return SizeDrift(rule, len(fits), estimate)


def _fits(finding: SweepFinding, rule: str, name: str) -> list[tuple[Member, Surface]]:
    """Surfaces over the learning rate and this parameter, by size.

    The learning rate itself is taken from the surfaces over rate and decay.
    """
    other = "weight_decay" if name == "lr" else name
    grid = next((one for one in finding.grids if one.names[1] == other), None)
    return [
        (member, one.fit)
        for (own, member), one in (grid.maps if grid else {}).items()
        if own == rule and one.fit is not None
    ]


def compared(experiment: str, finding: SweepFinding, name: str, against: str, says: str) -> Claim:
    """The drift under `complete-p` compared with another rule's."""
    scaled, other = (drift_over_sizes(finding, rule, name) for rule in ("complete-p", against))
    difference = further(other.estimate, scaled.estimate, finding.analysis.confidence)
    verdict = UNDECIDED
    if difference is not None and difference.excludes(0):
        verdict = by_one_fit(decided(difference.value > 0, True))
    words = ", ".join(f"{one.rule} {with_ends(one.estimate)}" for one in (other, scaled))
    more = "" if difference is None else f"; {against} moves {with_ends(difference)} further"
    seen = f"drift of log2 {name}, octaves per doubling of parameters: {words}{more}"
    runs = finding.count(against, "complete-p")
    return Claim(experiment, "best rates", says, seen, runs, verdict)


def further(first: Estimate | None, second: Estimate | None, confidence: float) -> Estimate | None:
    """How much further the first moves than the second, in either direction.

    >>> further(Estimate(-0.5, -0.6, -0.4, 30), Estimate(0.1, 0.0, 0.2, 30), 0.95)
    Estimate(value=0.4, low=0.258..., high=0.541..., degrees_of_freedom=30)
    """
    if first is None or second is None or not first.bounded or not second.bounded:
        return None
    freedom = min(first.degrees_of_freedom, second.degrees_of_freedom)
    errors = [
        (one.high - one.low) / 2 / t_quantile(one.degrees_of_freedom, confidence, 1)
        for one in (first, second)
    ]
    return Estimate.student(
        abs(first.value) - abs(second.value), math.hypot(*errors), freedom, confidence
    )


def with_weak_decay(finding: SweepFinding) -> SweepFinding:
    """The runs below the middle of the decays, as if only the learning rate had been searched."""
    decays = [run.log2("weight_decay") for run in finding.runs]
    middle = (min(decays) + max(decays)) / 2
    runs = [
        dataclasses.replace(run, params={"lr": run.params["lr"]})
        for run, decay in zip(finding.runs, decays, strict=True)
        if decay < middle
    ]
    old = finding.analysis
    return SweepFinding(analyse(runs, axis=old.axis, confidence=old.confidence), runs)


def variances(finding: SweepFinding) -> dict[str, Mapping[str, float]]:
    """Of the best trials over sizes, as in the paper: log2 units, ddof 0."""
    return {row.rule: row.variances for row in finding.analysis.variances.get("lowest", ())}


def variance_lines(finding: SweepFinding) -> Iterator[str]:
    """Ours and the paper's, whose units are unknown: only the order can be compared."""
    found = variances(finding)
    yield (
        "variance of the best trials over sizes (ours: log2 units, ddof 0, loss in nats; paper: "
        "units not stated)"
    )
    head = ["rule", *(f"{name} (ours, paper)" for name in PRINTED["sp"])]
    rows = [
        [
            rule,
            *(
                f"{f'{found[rule][name]:.3g}' if rule in found else '–'}, {value:g}"
                for name, value in printed.items()
            ),
        ]
        for rule, printed in PRINTED.items()
    ]
    yield text_table(head, rows, right=head[1:])


EXPERIMENT = WeightDecay()
