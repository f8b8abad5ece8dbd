"""Which rule a recipe follows, and why."""

import math
import statistics

from mupscale.analysis.families import Comparison, StudyAnalysis
from mupscale.errors import StudyFailedError, UnknownNameError
from mupscale.text import many

AT_PROXY = "loss at the proxy's optimum"


def choose(analysis: StudyAnalysis, requested: str | None) -> tuple[str, str]:
    """A rule and the reason: the requested one, the only one, or the one with the lowest loss when
    every model trains at the proxy's optimum.
    """
    swept = list(dict.fromkeys(cell.rule for cell in analysis.cells))
    if requested is not None:
        if requested not in swept:
            raise UnknownNameError("rule of this study", requested, swept)
        compared = [
            _against(analysis, requested, rule)
            for rule in swept
            if rule != requested and _between(analysis, requested, rule)
        ]
        return requested, "; ".join(["as requested", *compared])
    if len(swept) == 1:
        return swept[0], "the only rule in the study"
    losses = {rule: found for rule in swept if (found := _losses(analysis, rule))}
    if not losses:
        raise StudyFailedError("no trial finished, so there is no optimum to transfer.")
    # Members differ in loss, so rules are compared on the members that all of them have.
    common = set.intersection(*(set(found) for found in losses.values()))
    means = {
        rule: statistics.fmean(
            loss for label, loss in found.items() if not common or label in common
        )
        for rule, found in losses.items()
    }
    best = min(means, key=means.__getitem__)
    models = len(common) or len(losses[best])
    reason = (
        f"with the lowest loss at the proxy's optimum ({means[best]:.4f} nats, mean over "
        f"{many(models, 'model')})"
    )
    return best, "; ".join(
        [reason, *(_against(analysis, best, other) for other in means if other != best)]
    )


def _losses(analysis: StudyAnalysis, rule: str) -> dict[str, float]:
    """By member: the loss at its own optimum plus what the proxy's optimum costs there."""
    costs = {
        regret.member.label: regret.loss.value
        for transfer in analysis.transfers
        if transfer.rule == rule
        for regret in transfer.regrets
    }
    found = {
        cell.member.label: cell.loss + costs.get(cell.member.label, 0.0)
        for cell in analysis.cells
        if cell.rule == rule and cell.loss is not None
    }
    return {label: loss for label, loss in found.items() if math.isfinite(loss)}


def _against(analysis: StudyAnalysis, best: str, other: str) -> str:
    comparison = _between(analysis, best, other)
    if comparison is None:
        return f"not compared with {other}"
    gap = comparison.difference
    sign = 1 if comparison.first == best else -1
    low, high = sorted((sign * gap.low, sign * gap.high))
    numbers = f"{sign * gap.value:+.4f} [{low:+.4f}, {high:+.4f}] nats"
    verdict = {best: "better than", other: "worse than"}.get(
        comparison.better or "", "indistinguishable from"
    )
    return f"{verdict} {other} ({numbers})"


def _between(analysis: StudyAnalysis, one: str, other: str) -> Comparison | None:
    found = (
        comparison
        for comparison in analysis.comparisons
        if comparison.quantity == AT_PROXY and {comparison.first, comparison.second} == {one, other}
    )
    return next(found, None)
