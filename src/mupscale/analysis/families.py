"""How far the optimum moves over a family of models under each rule: the core of transfer.

All differences are contrasts between cells that share their seeds (`contrasts`). A cell whose value
is only its best trial (`flags.NO_OPTIMUM`) enters none of them.
"""

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mupscale.analysis.contrasts import (
    CellValue,
    SeedTable,
    contrast,
    member_noise,
    pooled_spread,
    seed_table,
    spread_of_members,
)
from mupscale.analysis.estimates import Estimate
from mupscale.analysis.flags import NO_OPTIMUM
from mupscale.analysis.measurements import Measurement, Member
from mupscale.analysis.optima import Optimum, Spread, fit_optimum
from mupscale.analysis.surfaces import Surface, fit_surface
from mupscale.analysis.timescales import tau_epoch
from mupscale.analysis.verdicts import DriftVerdict, judge_drift


@dataclass(frozen=True)
class CellAnalysis:
    """A rule on a member of the family. Optima are in log2 of the searched parameter."""

    rule: str
    member: Member
    runs: int
    "Finished runs, the diverged ones included."
    diverged: int
    seeds: tuple[int, ...]
    lowest: Measurement | None
    "The run with the lowest loss."
    optimum: Optimum | None
    "Of the rate, if nothing else is searched."
    surface: Surface | None
    "If two parameters are searched."
    fingerprint: Hashable = None
    "Equal for cells with the same runs."

    @property
    def found(self) -> Mapping[str, Estimate]:
        """The optimum of each searched parameter, in log2, with its interval; empty if every run
        diverged.
        """
        if self.surface is not None:
            return self.surface.found
        one = self.optimum
        if one is None:
            return {}
        return {"lr": Estimate(one.value, one.low, one.high, one.degrees_of_freedom)}

    @property
    def loss(self) -> float | None:
        """At the optimum."""
        found = self.optimum or self.surface
        return None if found is None else found.loss

    @property
    def flags(self) -> tuple[str, ...]:
        found = self.optimum or self.surface
        return () if found is None else found.flags


@dataclass(frozen=True)
class Regret:
    """The loss, in nats, that a member gives up when trained at the proxy's optimum instead of its
    own.
    """

    proxy: Member
    member: Member
    loss: Estimate
    octaves: Estimate
    "How far the proxy's optimum lies above the member's, in log2 of the rate."
    extrapolated: bool = False
    "The proxy's optimum lies outside of the rates that the member's curve was fitted to."


@dataclass(frozen=True)
class RuleTransfer:
    """How far the optimum of the rate moves over the family, under one rule."""

    rule: str
    members: tuple[Member, ...]
    "Those with an optimum."
    mean: Estimate | None
    "Over members, log2 of the rate."
    sd: Estimate | None
    """Over members, ddof 0, in octaves: as observed, with an interval for its value without the
    noise of the optima.
    """
    variance: float | None
    "Over members, ddof 0, in squared octaves."
    noise_variance: float | None
    "The variance expected from noise alone, if all members had the same optimum."
    drift: Estimate | None
    "Octaves per doubling of the family's axis."
    regrets: tuple[Regret, ...]
    "From the proxy, the member with the smallest position, to each of the others."


@dataclass(frozen=True)
class Comparison:
    """Two rules on the same seeds: `first` minus `second`. `better` is None if the interval
    contains zero.
    """

    quantity: str
    'Such as "loss at the optimum", "loss at the proxy\'s optimum", "drift".'
    unit: str
    first: str
    second: str
    difference: Estimate
    better: str | None


@dataclass(frozen=True)
class VarianceRow:
    """Variance of the optimum over the members of a family, ddof 0, log2 units (loss in nats)."""

    rule: str
    members: int
    variances: Mapping[str, float]
    'By quantity: "lr", "weight_decay", "tau_epoch", "loss".'


@dataclass(frozen=True)
class StudyAnalysis:
    """All that a study's runs say."""

    axis: str | None
    "What is varied: r, width, depth, parameters; None if nothing is."
    parameters: tuple[str, ...]
    "What is searched, as lr and weight_decay."
    cells: tuple[CellAnalysis, ...]
    transfers: tuple[RuleTransfer, ...]
    comparisons: tuple[Comparison, ...]
    variances: Mapping[str, tuple[VarianceRow, ...]]
    'By what stands for the optimum: "fitted", or "lowest", the run with the lowest loss.'
    confidence: float

    def drift_verdict(self, rule: str) -> DriftVerdict:
        """Whether the optimum moves over all models of the family.

        Unknown while some of them have no optimum: those that have one are not a fair sample.
        """
        transfer = next((one for one in self.transfers if one.rule == rule), None)
        positions = [one.member.position for one in self.cells if one.rule == rule]
        if transfer is None or len(positions) < 2:
            return DriftVerdict("unknown", "unknown: fewer than two models were run")
        if len(transfer.members) < len(positions):
            some = f"{len(transfer.members)} of {len(positions)} models have an optimum"
            return DriftVerdict("unknown", f"unknown: only {some}")
        known = [position for position in positions if position]
        return judge_drift(transfer.drift, math.log2(max(known) / min(known)) if known else 0.0)

    def cell(self, rule: str, label: str) -> CellAnalysis | None:
        return next(
            (one for one in self.cells if one.rule == rule and one.member.label == label), None
        )


def analyse(
    runs: Sequence[Measurement], *, axis: str | None = None, confidence: float = 0.95
) -> StudyAnalysis:
    """Analyse the runs of a study, in the order in which rules and members first appear."""
    parameters = tuple(dict.fromkeys(name for run in runs for name in run.params))
    grouped: dict[tuple[str, Member], list[Measurement]] = {}
    for run in runs:
        grouped.setdefault((run.rule, run.member), []).append(run)
    cells = _cells(grouped, parameters, confidence)
    located: dict[str, list[LocatedCell]] = {cell.rule: [] for cell in cells}
    for cell in cells:
        if rate := _rate(cell):
            located[cell.rule].append((cell, rate))
    rules = tuple(located)
    # One table for the whole study: every rule's cells help to estimate the effects of seeds.
    table = seed_table([rate for pairs in located.values() for _, rate in pairs])
    transfers = tuple(_transfer(rule, located[rule], table, confidence) for rule in rules)
    losses = seed_table([loss for cell in cells if (loss := _loss(cell))])
    comparisons = tuple(
        comparison
        for first, second in itertools.combinations(transfers, 2)
        for comparison in _comparisons(first, second, located, (table, losses), confidence)
    )
    variances = {
        "fitted": _variances(rules, cells, grouped, fitted=True),
        "lowest": _variances(rules, cells, grouped, fitted=False),
    }
    return StudyAnalysis(
        axis, parameters, tuple(cells), transfers, comparisons, variances, confidence
    )


# Cells


def _cells(
    grouped: Mapping[tuple[str, Member], Sequence[Measurement]],
    parameters: Sequence[str],
    confidence: float,
) -> list[CellAnalysis]:
    """Each cell fitted by itself, and once more with the spread of seeds that all cells show.

    A cell of three seeds estimates that spread with two degrees of freedom; nine cells, with many
    more.
    """
    alone = [_cell(key, runs, parameters, confidence, None) for key, runs in grouped.items()]
    # The fits alone give each seed's optimum, from which the spread is estimated; the second fit
    # only changes errors and intervals.
    spread = pooled_spread([one for one in map(_rate, alone) if one is not None])
    if spread is None:
        return alone
    return [_cell(key, runs, parameters, confidence, spread) for key, runs in grouped.items()]


def _cell(
    key: tuple[str, Member],
    runs: Sequence[Measurement],
    parameters: Sequence[str],
    confidence: float,
    spread: Spread | None,
) -> CellAnalysis:
    ended = [run for run in runs if run.loss is not None]
    losses, seeds = [run.loss for run in runs], [run.seed for run in runs]
    optimum = surface = None
    # What all runs of a cell share was settled before, as the factors of a paired search.
    varied = [name for name in parameters if len({run.params.get(name) for run in runs}) > 1]
    searched = varied or parameters
    if len(searched) == 2:
        first, second = searched
        points = [(run.log2(first), run.log2(second)) for run in runs]
        surface = fit_surface(points, losses, seeds, names=(first, second), confidence=confidence)
    elif parameters:
        optimum = fit_optimum(
            [run.log2("lr") for run in runs], losses, seeds, confidence=confidence, spread=spread
        )
    return CellAnalysis(
        *key,
        len(runs),
        len(runs) - len(ended),
        tuple(sorted({run.seed for run in runs})),
        min(ended, key=lambda run: run.loss or 0.0, default=None),
        optimum,
        surface,
        frozenset((run.seed, *sorted(run.params.items()), run.loss) for run in runs),
    )


def optimum_value(one: Optimum, fingerprint: Hashable = None) -> CellValue:
    """Where an optimum is, for differences between cells."""
    return CellValue(
        one.value, one.error, one.degrees_of_freedom, one.seed_optima, one.bend_error, fingerprint
    )


def _rate(cell: CellAnalysis) -> CellValue | None:
    """Where the cell's optimal rate is; None if it has no optimum."""
    if NO_OPTIMUM & set(cell.flags):
        return None
    if cell.optimum is not None:
        return optimum_value(cell.optimum, cell.fingerprint)
    if cell.surface is not None:
        found, error = cell.surface.found["lr"], cell.surface.errors["lr"]
        return CellValue(
            found.value, error, found.degrees_of_freedom, {}, fingerprint=cell.fingerprint
        )
    return None


def _loss(cell: CellAnalysis) -> CellValue | None:
    """The cell's loss at its optimum. A single seed does not show its error."""
    if cell.loss is None or NO_OPTIMUM & set(cell.flags):
        return None
    by_seed = {} if cell.optimum is None else cell.optimum.seed_losses
    return CellValue(cell.loss, math.inf, 0, by_seed, 0.0, cell.fingerprint)


LocatedCell = tuple[CellAnalysis, CellValue]
"""A cell with its optimal rate."""


# Transfer of a rule


def _transfer(
    rule: str, known: Sequence[LocatedCell], table: SeedTable | None, confidence: float
) -> RuleTransfer:
    if not known:
        return RuleTransfer(rule, (), None, None, None, None, None, ())
    members = tuple(cell.member for cell, _ in known)
    weights = drift_weights(members)
    located = [rate for _, rate in known]
    count = len(located)
    # ddof 0, as in the paper's tables: these members are the family, not a sample of one.
    variance = float(np.var([rate.value for rate in located]))
    noise, freedom = member_noise(located, table)
    return RuleTransfer(
        rule,
        members,
        contrast(located, [1 / count] * count, table, confidence),
        spread_of_members(variance, count, noise, freedom, confidence),
        variance,
        noise * (1 - 1 / count),  # fitting the mean leaves this share of the noise
        None if weights is None else contrast(located, weights, table, confidence),
        _regrets(known, table, confidence),
    )


def drift_weights(members: Sequence[Member]) -> list[float] | None:
    """Weights that give the least-squares slope over log2 of the positions; None without two
    positions.

    >>> drift_weights([Member(label="a", position=1), Member(label="b", position=4)])
    [-0.5, 0.5]
    """
    if len({member.position for member in members}) < 2 or any(
        not member.position for member in members
    ):
        return None
    # The least-squares slope is Σ (x − x̄)·y / Σ (x − x̄)²: linear in y, so a contrast.
    places = np.log2([member.position or 1.0 for member in members])
    centred = places - places.mean()
    return [float(weight) for weight in centred / (centred @ centred)]


def _proxy(members: Sequence[Member]) -> int:
    """The smallest on the axis, or the first if there is no axis."""
    if any(member.position is None for member in members):
        return 0
    return min(range(len(members)), key=lambda place: members[place].position or 0.0)


def _regrets(
    known: Sequence[LocatedCell], table: SeedTable | None, confidence: float
) -> tuple[Regret, ...]:
    base = _proxy([cell.member for cell, _ in known])
    proxy, there = known[base]
    found: list[Regret] = []
    for place, (cell, here) in enumerate(known):
        if place != base:
            octaves = contrast([there, here], [1, -1], table, confidence)
            cost = _regret(cell, octaves)
            beyond = _beyond(cell, octaves.value)
            found.append(Regret(proxy.member, cell.member, cost, octaves, beyond))
    return tuple(found)


def _beyond(cell: CellAnalysis, octaves: float) -> bool:
    """Whether no fitted point of the cell lies as far out as this."""
    if cell.optimum is None:
        return False
    low, high = cell.optimum.range
    return not low <= cell.optimum.value + octaves <= high


def _regret(cell: CellAnalysis, octaves: Estimate) -> Estimate:
    """The cost of the distance on the cell's fitted curve, with the interval of the distance."""
    cost = [loss_above(cell, distance) for distance in (octaves.value, octaves.low, octaves.high)]
    # A distance of 0 costs nothing; it is the lowest cost if the interval contains it.
    low = 0.0 if octaves.low <= 0 <= octaves.high else min(cost[1:])
    return Estimate(cost[0], min(low, cost[0]), max(cost), octaves.degrees_of_freedom)


def loss_above(cell: CellAnalysis, octaves: float) -> float:
    """Loss above the minimum at this distance, with the other parameter at its best there."""
    if not math.isfinite(octaves):
        return math.inf
    if cell.optimum is not None:
        # A cubic turns down again on its flat side, where it would promise a gain. So at least half
        # the parabola is charged. A curve with the recorded asymmetry of 0.2 per octave lies above
        # that within the fitted two octaves (1 − 0.2·2 = 0.6): it only matters further out.
        square = cell.optimum.bend[0] * octaves**2
        curve = cell.optimum.loss_at(cell.optimum.value + octaves) - cell.optimum.loss
        return max(curve, square / 2)
    assert cell.surface is not None
    # The Schur complement: the curvature along the valley, where the other parameter follows.
    (uu, uv), (_, vv) = cell.surface.hessian
    return (uu - uv * uv / vv) / 2 * octaves**2


# Rules side by side


def _comparisons(
    first: RuleTransfer,
    second: RuleTransfer,
    located: Mapping[str, Sequence[LocatedCell]],
    tables: tuple[SeedTable | None, SeedTable | None],
    confidence: float,
) -> Iterator[Comparison]:
    """Two rules on the models that both have; on different models, these would be compared."""
    common = set(first.members) & set(second.members)
    if not common:
        return
    own, other = (
        [pair for pair in located[one.rule] if pair[0].member in common] for one in (first, second)
    )
    losses = [loss for cell, _ in (*own, *other) if (loss := _loss(cell))]
    weights = [1 / len(own)] * len(own) + [-1 / len(other)] * len(other)
    at_optimum = contrast(losses, weights, tables[1], confidence)
    yield _compared("loss at the optimum", "nats", first, second, at_optimum)
    if len(own) > 1:
        at_proxy = _given_up(at_optimum, first, second)
        yield _compared("loss at the proxy's optimum", "nats", first, second, at_proxy)
    drift = _drifts((first, second), (own, other), tables[0], confidence)
    if drift is not None:
        yield _compared("drift", "octaves per doubling", first, second, drift)


def _compared(
    quantity: str, unit: str, first: RuleTransfer, second: RuleTransfer, difference: Estimate
) -> Comparison:
    """Less is better in every quantity."""
    better = None
    if difference.excludes(0):
        better = first.rule if difference.value < 0 else second.rule
    return Comparison(quantity, unit, first.rule, second.rule, difference, better)


def _given_up(own: Estimate, first: RuleTransfer, second: RuleTransfer) -> Estimate:
    """The difference of losses at the optimum, plus what each rule gives up at the proxy's optimum,
    averaged over the members.

    Regrets are skewed, so the interval has two different sides: half-widths add up in squares, the
    lower side of one rule with the upper side of the other.
    """
    count = len(first.members)
    value = own.value + sum(
        sign * one.loss.value / count
        for sign, rule in ((1, first), (-1, second))
        for one in rule.regrets
    )
    losses = [[one.loss for one in rule.regrets] for rule in (first, second)]
    if not own.bounded or not all(loss.bounded for of_rule in losses for loss in of_rule):
        return Estimate(value, -math.inf, math.inf, 0)
    # Losses at the optimum and regrets come from different parts of a fit (level and position), so
    # their errors are added as independent ones.
    half = (own.high - own.low) / 2
    down, up = (
        [[(loss.value - loss.low) / count for loss in of_rule] for of_rule in losses],
        [[(loss.high - loss.value) / count for loss in of_rule] for of_rule in losses],
    )
    below, above = math.hypot(half, *down[0], *up[1]), math.hypot(half, *up[0], *down[1])
    return Estimate(value, value - below, value + above, own.degrees_of_freedom)


def _drifts(
    rules: tuple[RuleTransfer, RuleTransfer],
    known: tuple[Sequence[LocatedCell], Sequence[LocatedCell]],
    table: SeedTable | None,
    confidence: float,
) -> Estimate | None:
    """How much further one rule drifts than the other, whichever direction each has."""
    weights: list[float] = []
    for sign, rule, pairs in zip((1, -1), rules, known, strict=True):
        own = drift_weights([cell.member for cell, _ in pairs])
        if own is None or rule.drift is None:
            return None
        # |drift| is not linear in the cells. With the sign of each drift fixed it is, and then the
        # common effects of seeds cancel as in any contrast.
        direction = math.copysign(1.0, rule.drift.value)
        weights += [sign * direction * weight for weight in own]
    return contrast([rate for pairs in known for _, rate in pairs], weights, table, confidence)


# Variance tables


def _variances(
    rules: Sequence[str],
    cells: Sequence[CellAnalysis],
    grouped: Mapping[tuple[str, Member], Sequence[Measurement]],
    *,
    fitted: bool,
) -> tuple[VarianceRow, ...]:
    rows: list[VarianceRow] = []
    for rule in rules:
        optima = [
            one
            for cell in cells
            if cell.rule == rule
            if (one := _logs(cell, grouped, fitted=fitted))
        ]
        if len(optima) > 1:
            names = [name for name in optima[0] if all(name in one for one in optima)]
            variances = {name: float(np.var([one[name] for one in optima])) for name in names}
            rows.append(VarianceRow(rule, len(optima), variances))
    return tuple(rows)


def _logs(
    cell: CellAnalysis, grouped: Mapping[tuple[str, Member], Sequence[Measurement]], *, fitted: bool
) -> dict[str, float]:
    """log2 of the searched parameters, of τ if decay was searched, and the loss."""
    if cell.lowest is None or cell.loss is None or (fitted and NO_OPTIMUM & set(cell.flags)):
        return {}
    if fitted:
        logs, loss = {name: one.value for name, one in cell.found.items()}, cell.loss
    else:
        logs, loss = (
            {name: cell.lowest.log2(name) for name in cell.lowest.params},
            cell.lowest.loss or 0.0,
        )
    steps = max((run.steps or 0 for run in grouped[cell.rule, cell.member]), default=0)
    if steps and "tau_epoch" not in logs and "weight_decay" in logs:
        logs["tau_epoch"] = math.log2(tau_epoch(2 ** logs["lr"], 2 ** logs["weight_decay"], steps))
    if steps and "weight_decay" not in logs and "tau_epoch" in logs:
        logs["weight_decay"] = -(logs["lr"] + logs["tau_epoch"] + math.log2(steps))
    return {
        name: logs[name] for name in ("lr", "weight_decay", "tau_epoch", "std") if name in logs
    } | {"loss": loss}
