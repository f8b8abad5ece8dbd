"""From optima over a family to one more member of it: the target."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import CellAnalysis, RuleTransfer, StudyAnalysis
from mupscale.analysis.slopes import t_quantile
from mupscale.recipes.shapes import ModelShape

DOUBTS = {
    "edge": "its optimum lies at the edge of what was tried: widen the range",
    "flat": "its curve is too flat for an interval: add rates or seeds",
    "few": "it has too few runs for an interval: add rates",
    "seeds": "its seeds differ too much for an interval: add seeds",
    "saddle": "its surface has no minimum in what was tried: widen the ranges",
}
"""What each flag of an optimum means to a reader. One of them makes a recipe inconclusive."""


@dataclass(frozen=True)
class Extrapolated:
    """The rate along a drift that was told from zero, in log2, at the target's place on the
    family's axis.
    """

    axis: str
    position: float
    centre: float
    "Where the members stand, as a geometric mean."
    drift: Estimate
    value: float
    low: float
    high: float


def predicted(
    optima: Sequence[Estimate], mean: Estimate | None = None, confidence: float = 0.95
) -> Estimate:
    """The optimum of one more member, in log2: Student's prediction interval, mean ± t·s·√(1 +
    1/k).

    The spread s of k optima holds both how far members lie apart and how well each is known. What
    all members share, such as the luck of common seeds, it does not hold: so the interval also
    covers that of the mean. A single member has its own interval, and nothing is known of transfer.

    >>> found = predicted([Estimate(x, x - 0.1, x + 0.1) for x in (-6.2, -6.0, -5.8)])
    >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
    (-6.0, -6.99, -5.01)
    """
    if len(optima) == 1:
        return optima[0]
    values, count = [one.value for one in optima], len(optima)
    centre = statistics.fmean(values) if mean is None else mean.value
    half = (
        t_quantile(count - 1, confidence, 1) * statistics.stdev(values) * math.sqrt(1 + 1 / count)
    )
    if mean is None:  # as wide as if all members erred together
        low, high = (
            statistics.fmean(one.low for one in optima),
            statistics.fmean(one.high for one in optima),
        )
    else:
        low, high = mean.low, mean.high
    return Estimate(centre, min(centre - half, low), max(centre + half, high), count - 1)


def found_optima(analysis: StudyAnalysis, rule: str) -> dict[str, list[Estimate]]:
    """The optima of each searched parameter, in log2, over the members that have one.

    What was searched and has no fit of its own, as the third of three, is where each member's
    lowest loss is.
    """
    cells = [cell for cell in analysis.cells if cell.rule == rule and cell.found and cell.lowest]
    members = {
        m for transfer in analysis.transfers if transfer.rule == rule for m in transfer.members
    }
    cells = [cell for cell in cells if cell.member in members] or cells
    return {name: [_found(cell, name) for cell in cells] for name in analysis.parameters if cells}


def _found(cell: CellAnalysis, name: str) -> Estimate:
    if name in cell.found:
        return cell.found[name]
    assert cell.lowest is not None
    return Estimate(cell.lowest.log2(name), -math.inf, math.inf, 0)


def extrapolated(
    analysis: StudyAnalysis, transfer: RuleTransfer, target: ModelShape
) -> Extrapolated | None:
    """None where the drift is not told from zero, or the target has no place on the axis."""
    drift, mean, axis = transfer.drift, transfer.mean, analysis.axis
    position = positions(target).get(axis or "")
    places = [member.position for member in transfer.members if member.position]
    if (
        drift is None
        or mean is None
        or axis is None
        or position is None
        or not places
        or not drift.excludes(0)
    ):
        return None
    centre = statistics.fmean(math.log2(place) for place in places)
    away = math.log2(position) - centre
    ends = sorted((mean.value + drift.low * away, mean.value + drift.high * away))
    return Extrapolated(
        axis, position, 2**centre, drift, mean.value + drift.value * away, ends[0], ends[1]
    )


def positions(shape: ModelShape) -> Mapping[str, float]:
    """Where a model stands on each axis that a family may have."""
    return {
        "r": shape.r,
        "width": shape.width,
        "depth": shape.depth,
        "parameters": shape.parameters,
    }


def doubts(analysis: StudyAnalysis, rule: str) -> list[str]:
    """Why the optima of a rule carry no recommendation; empty where they do."""
    return [doubt for cell in analysis.cells if cell.rule == rule for doubt in _doubts(cell)]


def _doubts(cell: CellAnalysis) -> list[str]:
    where = f"{cell.rule}, {cell.member.label}"
    if not cell.found:
        return [f"{where}: none of its {cell.runs} runs ended well"]
    flags = {"few"} if "few" in cell.flags else set(cell.flags)
    return [f"{where}: {meaning}" for flag, meaning in DOUBTS.items() if flag in flags]
