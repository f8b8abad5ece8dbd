"""The paper's sweep of rate and decay over three sizes: Voronoi maps by rule and size, and the
table of variances.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mupscale.analysis import Estimate, analyse
from mupscale.analysis.contrasts import CellValue, contrast
from mupscale.analysis.families import drift_weights
from mupscale.analysis.measurements import Member
from mupscale.analysis.slopes import t_quantile
from mupscale.analysis.surfaces import Surface
from mupscale.paper.experiment import Claim, Verdict
from mupscale.paper.sweeps import Sweep, SweepFinding, drift_words, with_ends

RULES = ("sp", "mup", "complete-p")

PRINTED: Mapping[str, Mapping[str, float]] = {
    "sp": {"lr": 1.34, "weight_decay": 0.383, "tau_epoch": 2.78, "loss": 0.487},
    "mup": {"lr": 0.0475, "weight_decay": 1.38, "tau_epoch": 1.49, "loss": 0.487},
    "complete-p": {"lr": 0.00554, "weight_decay": 0.751, "tau_epoch": 0.656, "loss": 0.477},
}
"""The paper's table of variances over sizes, of the best trials. It does not say in which units."""


class WeightDecay(Sweep):
    """Where the best rate and decay are, by size, under each rule."""

    name = "weight-decay"
    study = "weight-decay"

    def lines(self, seen: SweepFinding) -> Iterator[str]:
        yield from variance_lines(seen)
        yield ""
        yield "drift of the optimum, octaves for each doubling of the parameters:"
        for drift in drifts(seen, ("lr", "weight_decay", "tau_epoch")):
            yield f"  {drift.rule:<11} {drift.name:<13} {with_ends(drift.estimate)}, {drift.sizes} of 3 sizes bounded"

    def claims(self, seen: SweepFinding) -> Iterator[Claim]:
        says = "The best rate holds over sizes better under μP with scaled decay than under SP"
        yield compared(self.name, seen, "lr", "sp", says)
        says = "The best decay holds over sizes better if it is scaled than under vanilla μP"
        yield compared(self.name, seen, "weight_decay", "mup", says)
        yield self._lowest_under_sp(seen)
        weak = with_weak_decay(seen)
        words = "; ".join(drift_words(weak, rule) for rule in RULES)
        question = "Where decay hardly matters (the weaker half of those tried), does the best rate hold over sizes?"
        yield Claim(
            self.name, question, f"octaves a doubling of parameters: {words}", weak.count(), "ours"
        )

    def _lowest_under_sp(self, seen: SweepFinding) -> Claim:
        """What the paper's own table shows against its text."""
        found = variances(seen)
        ordered = sorted(
            (rule for rule in RULES if rule in found), key=lambda rule: found[rule]["weight_decay"]
        )
        words = ", ".join(f"{rule} {found[rule]['weight_decay']:.2f}" for rule in ordered)
        return Claim(
            self.name,
            "In the paper's table the best decay varies least under SP (0.383), against its text",
            f"variance of log2 of the best decay over sizes, as seen, without interval: {words}",
            seen.count(),
            "cannot be decided at this scale",
        )


@dataclass(frozen=True)
class SizeDrift:
    """How far an optimum moves with size, under one rule; None where fewer than two sizes bound
    it.
    """

    rule: str
    name: str
    sizes: int
    estimate: Estimate | None


def drifts(seen: SweepFinding, names: Sequence[str]) -> list[SizeDrift]:
    return [drift_over_sizes(seen, rule, name) for rule in RULES for name in names]


def drift_over_sizes(seen: SweepFinding, rule: str, name: str) -> SizeDrift:
    bounded = [(member, fit) for member, fit in _fits(seen, rule, name) if fit.found[name].bounded]
    weights = drift_weights([member for member, _ in bounded])
    if weights is None:
        return SizeDrift(rule, name, len(bounded), None)
    places = [
        CellValue(fit.found[name].value, fit.errors[name], fit.found[name].degrees_of_freedom, {})
        for _, fit in bounded
    ]
    return SizeDrift(
        rule, name, len(bounded), contrast(places, weights, None, seen.analysis.confidence)
    )


def _fits(seen: SweepFinding, rule: str, name: str) -> list[tuple[Member, Surface]]:
    """Surfaces over the rate and this parameter, by size. The rate is taken from where decay is the
    other one.
    """
    other = "weight_decay" if name == "lr" else name
    grid = next((one for one in seen.grids if one.names[1] == other), None)
    found = {} if grid is None else grid.maps
    return [
        (member, one.fit)
        for (own, member), one in found.items()
        if own == rule and one.fit is not None
    ]


def compared(experiment: str, seen: SweepFinding, name: str, against: str, says: str) -> Claim:
    """The drift under `complete-p` beside that under another rule."""
    scaled, other = (drift_over_sizes(seen, rule, name) for rule in ("complete-p", against))
    difference = further(other.estimate, scaled.estimate, seen.analysis.confidence)
    verdict: Verdict = "cannot be decided at this scale"
    if difference is not None and difference.excludes(0):
        verdict = "agrees" if difference.value > 0 else "disagrees"
    words = ", ".join(f"{one.rule} {with_ends(one.estimate)}" for one in (other, scaled))
    more = "" if difference is None else f"; {against} moves {with_ends(difference)} further"
    seen_words = f"drift of log2 {name}, octaves a doubling of parameters: {words}{more}"
    return Claim(experiment, says, seen_words, seen.count(against, "complete-p"), verdict)


def further(first: Estimate | None, second: Estimate | None, confidence: float) -> Estimate | None:
    """How much further the first moves than the second, whichever way each goes.

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


def with_weak_decay(seen: SweepFinding) -> SweepFinding:
    """The runs below the middle of the decays, as if the rate alone had been searched."""
    decays = [run.log2("weight_decay") for run in seen.runs]
    middle = (min(decays) + max(decays)) / 2
    runs = [
        dataclasses.replace(run, params={"lr": run.params["lr"]})
        for run, decay in zip(seen.runs, decays, strict=True)
        if decay < middle
    ]
    return SweepFinding(
        analyse(runs, axis=seen.analysis.axis, confidence=seen.analysis.confidence), runs
    )


def variances(seen: SweepFinding) -> dict[str, Mapping[str, float]]:
    """Of the best trials over sizes, as in the paper: log2 units, ddof 0."""
    return {row.rule: row.variances for row in seen.analysis.variances.get("lowest", ())}


def variance_lines(seen: SweepFinding) -> Iterator[str]:
    """Ours beside the paper's, whose units are not known: only the order can be compared."""
    found = variances(seen)
    yield "variance of the best trials over sizes (ours: log2 units, ddof 0, loss in nats; paper: units not stated)"
    yield f"  {'rule':<11} " + "".join(f"{name + ' (ours, paper)':>28}" for name in PRINTED["sp"])
    for rule, printed in PRINTED.items():
        ours = {name: f"{found[rule][name]:.3g}" if rule in found else "–" for name in printed}
        cells = [f"{ours[name]}, {value:g}" for name, value in printed.items()]
        yield f"  {rule:<11} " + "".join(f"{cell:>28}" for cell in cells)


EXPERIMENT = WeightDecay()
