"""From the optima of a family of models to one more member: the target."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import CellAnalysis, RuleTransfer, StudyAnalysis
from mupscale.analysis.flags import FLAGS, UNSURE
from mupscale.analysis.slopes import t_quantile
from mupscale.recipes.shapes import ModelShape


@dataclass(frozen=True)
class Extrapolated:
    """Where a significant drift would put log2 of the rate at the target's position on the axis."""

    axis: str
    position: float
    centre: float
    "Geometric mean of the members' positions."
    drift: Estimate
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"If the drift with {self.axis} continued, the learning rate at {self.axis} = "
            f"{self.position:,g} would be 2^{self.value:.2f} [2^{self.low:.2f}, 2^{self.high:.2f}] "
            f"(the swept models are centred on {self.centre:.3g}). The values below do not follow "
            "it."
        )


def predicted(
    optima: Sequence[Estimate], mean: Estimate | None = None, confidence: float = 0.95
) -> Estimate:
    """The optimum of one more member, in log2: Student's prediction interval, mean ± t·s·√(1+1/k).

    The spread s of k optima contains both the differences between members and the error of each
    optimum. It misses what all members share, such as the luck of common seeds, so the interval
    also covers that of the mean. A single member keeps its own interval: transfer was not measured.

    >>> optimum = predicted([Estimate(x, x - 0.1, x + 0.1) for x in (-6.2, -6.0, -5.8)])
    >>> round(optimum.value, 2), round(optimum.low, 2), round(optimum.high, 2)
    (-6.0, -6.99, -5.01)
    """
    if len(optima) == 1:
        return optima[0]
    values, count = [one.value for one in optima], len(optima)
    centre = statistics.fmean(values) if mean is None else mean.value
    spread = statistics.stdev(values) * math.sqrt(1 + 1 / count)
    half = t_quantile(count - 1, confidence, 1) * spread
    if mean is None:  # as wide as if all members erred together
        low = statistics.fmean(one.low for one in optima)
        high = statistics.fmean(one.high for one in optima)
    else:
        low, high = mean.low, mean.high
    return Estimate(centre, min(centre - half, low), max(centre + half, high), count - 1)


def rule_optima(analysis: StudyAnalysis, rule: str) -> dict[str, list[Estimate]]:
    """The members' optima of each searched parameter, in log2.

    A parameter without a fit, such as the third of three, is taken at the member's lowest loss.
    """
    cells = [cell for cell in analysis.cells if cell.rule == rule and cell.found and cell.lowest]
    members = {
        m for transfer in analysis.transfers if transfer.rule == rule for m in transfer.members
    }
    cells = [cell for cell in cells if cell.member in members] or cells
    return {name: [_optimum(cell, name) for cell in cells] for name in analysis.parameters if cells}


def _optimum(cell: CellAnalysis, name: str) -> Estimate:
    if name in cell.found:
        return cell.found[name]
    assert cell.lowest is not None
    return Estimate(cell.lowest.log2(name), -math.inf, math.inf, 0)


def extrapolated(
    analysis: StudyAnalysis, transfer: RuleTransfer, target: ModelShape
) -> Extrapolated | None:
    """None without a significant drift, or if the target has no position on the axis."""
    drift, mean, axis = transfer.drift, transfer.mean, analysis.axis
    known = axis in ("r", "width", "depth", "parameters")
    position: int | None = getattr(target, axis) if axis and known else None
    places = [member.position for member in transfer.members if member.position]
    if not (axis and position and places and mean and drift and drift.excludes(0)):
        return None
    centre = statistics.fmean(math.log2(place) for place in places)
    away = math.log2(position) - centre
    ends = sorted((mean.value + drift.low * away, mean.value + drift.high * away))
    return Extrapolated(
        axis, position, 2**centre, drift, mean.value + drift.value * away, ends[0], ends[1]
    )


def doubts(analysis: StudyAnalysis, rule: str) -> list[str]:
    """Why the optima of a rule do not support a recipe; empty if they do."""
    return [doubt for cell in analysis.cells if cell.rule == rule for doubt in _doubts(cell)]


def _doubts(cell: CellAnalysis) -> list[str]:
    where = f"{cell.rule}, {cell.member.label}"
    if not cell.found:
        return [f"{where}: none of its {cell.runs} runs finished"]
    flags = {"few"} if "few" in cell.flags else UNSURE & set(cell.flags)
    return [f"{where}: {text.advice}" for flag, text in FLAGS.items() if flag in flags]
