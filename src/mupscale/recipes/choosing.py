"""Which rule a recipe follows, and why."""

import math
import statistics

from mupscale.analysis.families import Comparison, StudyAnalysis
from mupscale.errors import StudyFailedError, UnknownNameError

AT_PROXY = "loss at the proxy's optimum"


def choose(analysis: StudyAnalysis, asked: str | None) -> tuple[str, str]:
    """A rule and the reason: the one asked for, the only one, or the one that trains best at the
    proxy's optimum.
    """
    swept = list(dict.fromkeys(cell.rule for cell in analysis.cells))
    if asked is not None:
        if asked not in swept:
            raise UnknownNameError("rule of this study", asked, swept)
        others = [rule for rule in swept if rule != asked and _between(analysis, asked, rule)]
        return asked, "; ".join(
            ["asked for", *(_against(analysis, asked, other) for other in others)]
        )
    if len(swept) == 1:
        return swept[0], "the only one swept"
    losses = {rule: _losses(analysis, rule) for rule in swept}
    losses = {rule: found for rule, found in losses.items() if found}
    if not losses:
        raise StudyFailedError("not one trial finished well: there is no optimum to carry over.")
    common = set.intersection(*(set(found) for found in losses.values()))
    means = {
        rule: statistics.fmean(
            loss for label, loss in found.items() if not common or label in common
        )
        for rule, found in losses.items()
    }
    best = min(means, key=means.__getitem__)
    members = len(common) or len(losses[best])
    reason = (
        f"lowest loss at the proxy's optimum, {means[best]:.4f} nats over {members} member"
        + "s" * (members > 1)
    )
    return best, "; ".join(
        [reason, *(_against(analysis, best, other) for other in means if other != best)]
    )


def _losses(analysis: StudyAnalysis, rule: str) -> dict[str, float]:
    """By member: the loss at its own optimum, and what the proxy's optimum gives up there."""
    given_up = {
        regret.member.label: regret.loss.value
        for transfer in analysis.transfers
        if transfer.rule == rule
        for regret in transfer.regrets
    }
    found = {
        cell.member.label: cell.loss + given_up.get(cell.member.label, 0.0)
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
        comparison.better or "", "no interval tells it from"
    )
    return f"{verdict} {other} ({numbers})"


def _between(analysis: StudyAnalysis, one: str, other: str) -> Comparison | None:
    return next(
        (
            c
            for c in analysis.comparisons
            if c.quantity == AT_PROXY and {c.first, c.second} == {one, other}
        ),
        None,
    )
