"""What a paired search found: which parameters matter, and what the factors bought."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mupscale.analysis.estimates import Estimate
from mupscale.records import finite
from mupscale.studies.paired import (
    PairedComparison,
    PairedSearch,
    Place,
    PlaceKey,
    place_key,
    replay,
)
from mupscale.studies.study import Snapshot
from mupscale.studies.trials import TrialRecord
from mupscale.text import text_table, wrapped

MATTERS, FLAT, UNTRIED = "matters", "no significant difference", "not tried yet"


@dataclass(frozen=True)
class Sensitivity:
    """The loss over one parameter, with all others at the best point."""

    cell: str
    parameter: str
    value: float
    "log2 of the best value."
    moved: bool
    "Whether the search moved it, alone or with another."
    verdict: str
    points: tuple[tuple[float, Estimate], ...]
    """log2 of each value that was tried, and its loss minus that at the best point, in nats; of a
    parameter without a significant difference, at the point where it was tried."""

    def to_dict(self) -> dict[str, Any]:
        points = [
            {"log2": x, "difference": one.value, "low": finite(one.low), "high": finite(one.high)}
            for x, one in self.points
        ]
        names = ("cell", "parameter", "moved", "verdict")
        return {name: getattr(self, name) for name in names} | {
            "log2": self.value,
            "points": points,
        }


@dataclass(frozen=True)
class FactorGain:
    """What the factors of a cell bought."""

    cell: str
    done: bool
    factors: Mapping[str, float]
    "Those that the search moved away from 1."
    gain: Estimate | None
    "The loss at the best point minus that with tuned values and all factors at 1."

    def to_dict(self) -> dict[str, Any]:
        gain = self.gain
        ends = None if gain is None else [gain.value, finite(gain.low), finite(gain.high)]
        return {"cell": self.cell, "done": self.done, "factors": self.factors, "gain": ends}


def found_in(snapshot: Snapshot) -> tuple[list[Sensitivity], list[FactorGain]]:
    """For each cell of a paired search; nothing for other searches."""
    config = snapshot.config
    rows, gains = list[Sensitivity](), list[FactorGain]()
    for cell in config.cells() if config.search.method == "paired" else ():
        trials = list(snapshot.cells.get(cell.name, {}).values())
        search = replay(cell.space, config.seeds, trials, config.search.step)
        losses = {(place_key(_logs(t)), t.seed): t.loss for t in trials if t.loss is not None}
        rows += [_sensitivity(cell.name, name, search, trials, losses) for name in cell.space]
        gains.append(_gain(cell.name, search, losses, config.seeds))
    return rows, gains


Losses = Mapping[tuple[PlaceKey, int], float]


def _logs(trial: TrialRecord) -> dict[str, float]:
    return {name: math.log2(value) for name, value in trial.params.items()}


def _sensitivity(
    cell: str, name: str, search: PairedSearch, trials: Sequence[TrialRecord], losses: Losses
) -> Sensitivity:
    others = place_key({other: x for other, x in search.point.items() if other != name})
    along: dict[float, list[float]] = {}
    for trial in trials:
        logs = _logs(trial)
        here = losses.get((place_key(search.point), trial.seed))
        if trial.loss is None or here is None:
            continue
        if place_key({other: x for other, x in logs.items() if other != name}) == others:
            along.setdefault(round(logs[name], 6), []).append(trial.loss - here)
    best = round(search.point[name], 6)
    points = {x: search.interval(found) for x, found in along.items() if x != best}
    alone = search.last_of(name)
    for one in alone:  # tried earlier, and not again: no significant difference
        if one.differences:
            points.setdefault(round(best + one.direction[0][1] * one.step, 6), one.estimate)
    moved, verdict = _moved(name, search), _verdict(alone)
    return Sensitivity(cell, name, best, moved, verdict, tuple(sorted(points.items())))


def _moved(name: str, search: PairedSearch) -> bool:
    accepted = (one for one in search.comparisons if one.accepted)
    return any(name == moved for one in accepted for moved, _ in one.direction)


def _verdict(alone: Sequence[PairedComparison]) -> str:
    if not alone:
        return UNTRIED
    return FLAT if all(one.verdict == "no difference" for one in alone) else MATTERS


def _gain(cell: str, search: PairedSearch, losses: Losses, seeds: Sequence[int]) -> FactorGain:
    def at(place: Place) -> list[float | None]:
        return [losses.get((place_key(place), seed)) for seed in seeds]

    factors = {name: 2.0**x for name, x in search.point.items() if "." in name and abs(x) > 1e-6}
    pairs = zip(at(search.point), at(search.before_factors), strict=True)
    known = [after - before for after, before in pairs if after is not None and before is not None]
    gain = search.interval(known) if factors and len(known) == len(seeds) else None
    return FactorGain(cell, search.done, factors, gain)


def sensitivity_text(rows: Sequence[Sensitivity], gains: Sequence[FactorGain]) -> str:
    """For the terminal; empty for other searches."""
    if not rows:
        return ""
    table = text_table(
        SENSITIVITY_HEAD, [sensitivity_cells(row) for row in rows], details=SENSITIVITY_HEAD[-1:]
    )
    return "\n".join([table, "", *(wrapped(gain_sentence(gain)) for gain in gains)])


SENSITIVITY_HEAD = ["cell", "parameter", "best value", "verdict", "loss next to it, above the best"]


def sensitivity_cells(row: Sensitivity) -> list[str]:
    return [row.cell, row.parameter, _power(row.value), _words(row), _around(row)]


def _words(row: Sensitivity) -> str:
    return f"{row.verdict}, moved" if row.moved else row.verdict


def _around(row: Sensitivity) -> str:
    """The nearest point to each side."""
    below = [point for point in row.points if point[0] < row.value][-1:]
    above = [point for point in row.points if point[0] > row.value][:1]
    return "; ".join(f"{_power(x)}: {_difference(one)}" for x, one in (*below, *above))


def _difference(one: Estimate) -> str:
    ends = f" [{one.low:+.4f}, {one.high:+.4f}]" if one.bounded else ""
    return f"{one.value:+.4f}{ends}"


def _power(x: float) -> str:
    """A power of two, without needless digits.

    >>> _power(-7.0), _power(0.5)
    ('2^-7', '2^0.5')
    """
    return f"2^{x:.2f}".rstrip("0").rstrip(".")


def gain_sentence(gain: FactorGain) -> str:
    state = "" if gain.done else " so far"
    if not gain.factors:
        return f"{gain.cell}: no factor was moved{state}."
    names = ", ".join(f"{name} × {value:.4g}" for name, value in gain.factors.items())
    bought = "not known yet" if gain.gain is None else f"{_difference(gain.gain)} nats"
    return f"{gain.cell}: factors{state} {names}. Loss with them minus without: {bought}."
