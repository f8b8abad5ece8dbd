"""From runs to findings: for each statistic and role its slope, what theory predicts, and the
verdict.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mupscale.analysis import Flatness, Verdict, curve_slope, fit_slope, judge_flatness
from mupscale.checks import statistics
from mupscale.checks.statistics import (
    MAPS,
    ONLY_GROWTH,
    STATISTICS,
    Quantity,
    Run,
    Statistic,
    geometric_mean,
)
from mupscale.errors import OptionError

Measured = Callable[[Run], Sequence[float]]
Predicted = Callable[[Run], float | None]


@dataclass(frozen=True)
class Finding:
    """The course of one statistic of one role over the varied quantity."""

    statistic: str
    label: str
    role: str
    judged: bool
    flatness: Flatness
    """Of a statistic that is only shown too: there it does not count."""
    predicted: float | None
    """The slope of theory's curve on the same values, for the plan in use."""
    means: tuple[float, ...]
    """Geometric means over seeds, steps and layers, one a value."""

    @property
    def verdict(self) -> Verdict | None:
        return self.flatness.verdict if self.judged else None


@dataclass(frozen=True)
class Coherence:
    """κ = ‖ΔW‖/‖ΔW‖_F of a role at one value, between what noise would give and 1."""

    role: str
    x: float
    kappa: float
    noise: float

    @property
    def position(self) -> float:
        """0 for noise, 1 for a coherent update, on a log scale."""
        return math.log(self.kappa / self.noise) / math.log(1 / self.noise)

    @property
    def regime(self) -> str:
        return "coherent" if self.position > 0.5 else "noisy"


@dataclass(frozen=True)
class Criteria:
    """What counts as flat."""

    tolerance: float = 0.1
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < math.inf:
            raise OptionError(
                f"tolerance={self.tolerance} must be a finite number above 0, such as 0.1."
            )
        if not 0 < self.confidence < 1:
            raise OptionError(
                f"confidence={self.confidence} must lie between 0 and 1, such as 0.95."
            )


def findings(runs: Sequence[Run], quantity: Quantity, criteria: Criteria) -> list[Finding]:
    """All of them, the judged ones first; intervals of the judged ones hold together
    (Bonferroni).
    """
    table = NormTable(runs, quantity)
    judged = {name for name, one in STATISTICS.items() if one.judged and quantity != "depth"}
    curves = list(_curves(table, judged, quantity))
    count = sum(is_judged for *_, is_judged in curves)
    beside = Counter(name for name, *_ in curves)
    found: list[Finding] = []
    for name, label, role, measured, predicted, is_judged in curves:
        values = table.means(measured)
        flatness = judge_flatness(
            fit_slope(table.x, values),
            tolerance=criteria.tolerance,
            confidence=criteria.confidence,
            comparisons=count if is_judged else beside[name],
            one_sided=role in ONLY_GROWTH,
        )
        means = tuple(map(geometric_mean, zip(*values, strict=True)))
        found.append(
            Finding(name, label, role, is_judged, flatness, table.predicted(predicted), means)
        )
    return sorted(found, key=lambda one: not one.judged)


def _curves(
    table: "NormTable", judged: set[str], quantity: Quantity
) -> Iterator[tuple[str, str, str, Measured, Predicted, bool]]:
    for name in MAPS:
        measured, predicted = _of_map(name)
        if all(measured(run) for run in table.runs):
            yield "map", MAPS[name], name, measured, predicted, quantity == "depth"
    for name, statistic in STATISTICS.items():
        for role in table.roles(statistic):
            yield (
                name,
                statistic.label_for(table.runs[0], role),
                role,
                *_of_role(statistic, role),
                name in judged,
            )


def _of_map(name: str) -> tuple[Measured, Predicted]:
    return lambda run: statistics.map_by_step(run, name), lambda run: statistics.predicted_map(
        run, name
    )


def _of_role(statistic: Statistic, role: str) -> tuple[Measured, Predicted]:
    return (
        lambda run: statistics.by_step(run, statistic, role),
        lambda run: statistics.predicted(run, statistic, role),
    )


def coherences(runs: Sequence[Run], quantity: Quantity) -> list[Coherence]:
    """κ of each role of matrices, at every value."""
    table = NormTable(runs, quantity)
    found: list[Coherence] = []
    for role in table.roles(STATISTICS["coherence"]):
        measured, _ = _of_role(STATISTICS["coherence"], role)
        for x, column in zip(table.x, zip(*table.means(measured), strict=True), strict=True):
            found.append(
                Coherence(
                    role, x, geometric_mean(column), statistics.noise_coherence(table.at(x), role)
                )
            )
    return found


class NormTable:
    """Runs by seed and by the value of the varied quantity, in rising order."""

    def __init__(self, runs: Sequence[Run], quantity: Quantity) -> None:
        self.runs = statistics.with_thin(runs, quantity)
        self.x = sorted({run[quantity] for run in runs})
        self.seeds = sorted({run["seed"] for run in runs})
        self._runs: Mapping[tuple[int, float], Run] = {
            (run["seed"], run[quantity]): run for run in self.runs
        }

    def at(self, x: float, seed: int | None = None) -> Run:
        return self._runs[self.seeds[0] if seed is None else seed, x]

    def roles(self, statistic: Statistic) -> list[str]:
        """Those that have numbers in every run."""
        found = statistics.roles(self.runs[0], statistic)
        return [
            role
            for role in found
            if all(statistics.by_step(run, statistic, role) for run in self.runs)
        ]

    def means(self, measured: Measured) -> list[list[float]]:
        """The geometric mean over steps, for each seed and value."""
        return [[geometric_mean(measured(self.at(x, seed))) for x in self.x] for seed in self.seeds]

    def predicted(self, predicted: Predicted) -> float | None:
        values = [predicted(self.at(x)) for x in self.x]
        known = [value for value in values if value]
        return curve_slope(self.x, known) if len(known) == len(values) else None
