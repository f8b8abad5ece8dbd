"""From runs to findings: the slope of each statistic and role, theory's prediction, the verdict."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

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
    """One statistic of one role over the varied quantity."""

    statistic: str
    label: str
    role: str
    judged: bool
    flatness: Flatness
    """Also for a statistic that is only shown, where it does not count."""
    predicted: float | None
    """The slope that theory predicts on the same values, for the plan in use."""
    means: tuple[float, ...]
    """Geometric means over seeds, steps and layers, one per value."""

    @property
    def verdict(self) -> Verdict | None:
        return self.flatness.verdict if self.judged else None


@dataclass(frozen=True)
class Coherence:
    """κ = ‖ΔW‖/‖ΔW‖_F of a role at one value; it lies between the κ of noise and 1."""

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
            raise OptionError(f"tolerance={self.tolerance} must be above 0, such as 0.1.")
        if not 0 < self.confidence < 1:
            raise OptionError(f"confidence={self.confidence} must be from 0 to 1, such as 0.95.")


@dataclass(frozen=True)
class _Series:
    """One statistic of one role, to be fitted over all runs."""

    statistic: str
    label: str
    role: str
    judged: bool
    measured: Measured
    predicted: Predicted


def findings(runs: Sequence[Run], quantity: Quantity, criteria: Criteria) -> list[Finding]:
    """All findings, judged ones first. The intervals of judged ones hold together (Bonferroni)."""
    table = NormTable(runs, quantity)
    series = list(_series(table, quantity))
    judged = sum(one.judged for one in series)
    shown = Counter(one.statistic for one in series)
    found: list[Finding] = []
    for one in series:
        values = table.means(one.measured)
        flatness = judge_flatness(
            fit_slope(table.x, values),
            tolerance=criteria.tolerance,
            confidence=criteria.confidence,
            comparisons=judged if one.judged else shown[one.statistic],
            one_sided=one.role in ONLY_GROWTH,
        )
        means = tuple(map(geometric_mean, zip(*values, strict=True)))
        predicted = table.predicted(one.predicted)
        found.append(
            Finding(one.statistic, one.label, one.role, one.judged, flatness, predicted, means)
        )
    return sorted(found, key=lambda one: not one.judged)


def _series(table: "NormTable", quantity: Quantity) -> Iterator[_Series]:
    over_depth = quantity == "depth"
    for name, label in MAPS.items():
        measured = partial(statistics.map_by_step, name=name)
        if all(measured(run) for run in table.runs):
            predicted = partial(statistics.predicted_map, name=name)
            yield _Series("map", label, name, over_depth, measured, predicted)
    for name, statistic in STATISTICS.items():
        judged = statistic.judged and not over_depth
        for role in table.roles(statistic):
            label = statistic.label_for(table.runs[0], role)
            measured = partial(table.by_step, statistic=statistic, role=role)
            predicted = partial(statistics.predicted, statistic=statistic, role=role)
            yield _Series(name, label, role, judged, measured, predicted)


def coherences(runs: Sequence[Run], quantity: Quantity) -> list[Coherence]:
    """κ of each role of matrices, at every value."""
    table, statistic = NormTable(runs, quantity), STATISTICS["coherence"]
    found: list[Coherence] = []
    for role in table.roles(statistic):
        kappa = partial(table.by_step, statistic=statistic, role=role)
        columns = zip(*table.means(kappa), strict=True)
        for x, column in zip(table.x, columns, strict=True):
            noise = statistics.noise_coherence(table.at(x), role)
            found.append(Coherence(role, x, geometric_mean(column), noise))
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
        self._by_role: dict[tuple[int, str], dict[str, list[float]]] = {}

    def at(self, x: float, seed: int | None = None) -> Run:
        return self._runs[self.seeds[0] if seed is None else seed, x]

    def roles(self, statistic: Statistic) -> list[str]:
        """The roles with numbers in every run."""
        return [
            role
            for role in statistics.by_role(self.runs[0], statistic)
            if all(self.by_step(run, statistic, role) for run in self.runs)
        ]

    def by_step(self, run: Run, statistic: Statistic, role: str) -> list[float]:
        """Of one of the table's runs; computed once for all roles."""
        key = id(run), statistic.name
        if key not in self._by_role:
            self._by_role[key] = statistics.by_role(run, statistic)
        return self._by_role[key].get(role, [])

    def means(self, measured: Measured) -> list[list[float]]:
        """The geometric mean over steps, for each seed and value."""
        return [[geometric_mean(measured(self.at(x, seed))) for x in self.x] for seed in self.seeds]

    def predicted(self, predicted: Predicted) -> float | None:
        values = [predicted(self.at(x)) for x in self.x]
        known = [value for value in values if value]
        return curve_slope(self.x, known) if len(known) == len(values) else None
