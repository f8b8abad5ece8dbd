"""What an optimum costs, by search: real runs of results/gqa-dense, replayed.

    python benchmarks/search_cost.py [STUDY] [REPLAYS]

Each replay takes one cell of the dense table (a rule at one r: 17 rates × 3 seeds), with its seeds
in a random order. A search asks for a rate and a seed, gets the run at the nearest rate of the
table, and pays for its tokens, or for those up to where the run was stopped. Costs are in full
runs, up to the 27 of the half-power grid with three seeds, until the answer lies within ±0.25
powers of two of the dense one and stays there. Two answers are counted:

- its own: what the method itself calls the best. For grid, random and Optuna's searches the rate of
  the lowest loss (the grid's: of the lowest mean over the seeds it has been through); for the
  adaptive search its vertex.
- by our fit: the vertex of the same parabola (`mupscale.analysis.optima`) for all of them.

The adaptive search starts at a random rate, so that it gains nothing from the middle of the table
lying near the optima.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import FloatDistribution

from mupscale.analysis.optima import Optimum, fit_optimum
from mupscale.studies import Study, TrialRecord
from mupscale.studies.adaptive import TOLERANCE, Observation, next_points, present_vertex
from mupscale.studies.stopping import hopeless, reference

HERE = Path(__file__).resolve().parents[1]
WITHIN = 0.25
RUNS = 27
"""A replay goes on until so many full runs are paid: the half-power grid with three seeds."""


@dataclass(frozen=True)
class Seen:
    """A run as a search saw it: `loss` is None where it was stopped; `cost` is its share of a full
    run.
    """

    x: float
    seed: int
    loss: float | None
    cost: float


Ask = Iterator[Seen]


class Table:
    """All runs of a cell, with their analysis."""

    def __init__(self, trials: list[TrialRecord]) -> None:
        self.runs = {(round(4 * trial.log2_lr), trial.seed): trial for trial in trials}
        self.seeds = sorted({trial.seed for trial in trials})
        self.span = min(t.log2_lr for t in trials), max(t.log2_lr for t in trials)
        answer = fit_optimum(
            [t.log2_lr for t in trials], [t.loss for t in trials], [t.seed for t in trials]
        )
        assert answer is not None
        self.answer: Optimum = answer

    def run(self, x: float, seed: int) -> TrialRecord:
        low, high = (round(4 * end) for end in self.span)
        return self.runs[(min(max(round(4 * x), low), high), seed)]

    def untried(self, x: float, seed: int, seen: Sequence[Seen | Observation]) -> float | None:
        """The nearest rate that was not tried with this seed, since a repeated run gives no new
        information.
        """
        tried = {round(4 * one.x) for one in seen if one.seed == seed}
        rates = [rate / 4 for rate, of in self.runs if of == seed and rate not in tried]
        return min(rates, key=lambda rate: abs(rate - x), default=None)

    def full(self, x: float, seed: int) -> Seen:
        trial = self.run(x, seed)
        return Seen(trial.log2_lr, seed, trial.loss, trial.step / (trial.steps or trial.step))


def half_power_grid(table: Table, seeds: list[int], random: np.random.Generator) -> Ask:
    for seed in seeds:
        for x in np.arange(table.span[0], table.span[1] + 0.01, 0.5):
            yield table.full(float(x), seed)


def log_uniform(table: Table, seeds: list[int], random: np.random.Generator) -> Ask:
    for number in range(10_000):
        yield table.full(random.uniform(*table.span), seeds[number % len(seeds)])


def with_optuna(pruner: Callable[[], optuna.pruners.BasePruner]) -> Callable[..., Ask]:
    def ask(table: Table, seeds: list[int], random: np.random.Generator) -> Ask:
        sampler = optuna.samplers.TPESampler(seed=int(random.integers(2**31)))
        study = optuna.create_study(sampler=sampler, pruner=pruner())
        distributions = {
            "lr": FloatDistribution(2.0 ** table.span[0], 2.0 ** table.span[1], log=True)
        }
        for number in range(10_000):
            trial = study.ask(distributions)
            seed = seeds[number % len(seeds)]
            run = table.run(math.log2(trial.params["lr"]), seed)
            stopped = None
            for part, (step, loss) in enumerate(run.curve, start=1):
                trial.report(loss, part)
                if part < len(run.curve) and trial.should_prune():
                    stopped = step / run.steps
                    break
            if stopped is not None or run.loss is None:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                study.tell(trial, run.loss)
            full = table.full(run.log2_lr, seed)
            yield full if stopped is None else Seen(run.log2_lr, seed, None, stopped)

    return ask


def adaptive(at_once: int, tolerance: float = 0.0) -> Callable[..., Ask]:
    def ask(table: Table, seeds: list[int], random: np.random.Generator) -> Ask:
        seen: list[Observation] = []
        best: dict[int, TrialRecord] = {}
        start = random.uniform(table.span[0] + 0.5, table.span[1] - 0.5)
        while True:
            points = next_points(seen, table.span, seeds, at_once, tolerance, start)
            if not points:
                return
            rounds = []
            for wanted, seed in points:
                x = table.untried(wanted, seed, [*seen, *(one for _, one in rounds)])
                if x is None:
                    return
                run = table.run(x, seed)
                best_run = best.get(seed)
                stop = reference(best_run.curve, best_run.steps) if best_run else None
                share = next(
                    (
                        s / run.steps
                        for s, loss in run.curve[:-1]
                        if hopeless(stop, s / run.steps, loss)
                    ),
                    None,
                )
                full = table.full(x, seed)
                one = full if share is None else Seen(run.log2_lr, seed, None, share)
                rounds.append((run, one))
                yield one
            for run, one in rounds:
                seen.append(Observation(one.x, one.loss, one.seed))
                if one.loss is not None and (
                    one.seed not in best or one.loss < best[one.seed].loss
                ):
                    best[one.seed] = run

    return ask


Answer = Callable[[list[Seen]], float | None]


def by_fit(seen: list[Seen]) -> float | None:
    found = fitted(seen)
    return None if found is None or "few" in found.flags else found.value


def by_vertex(seen: list[Seen]) -> float | None:
    """The adaptive search's own: from three points on, once they bracket the optimum."""
    ended = [Observation(one.x, one.loss, one.seed) for one in seen]
    finished = [one for one in ended if one.loss is not None]
    return present_vertex(ended, finished) if len({one.x for one in finished}) >= 3 else None


def by_lowest(seen: list[Seen]) -> float | None:
    ended = [one for one in seen if one.loss is not None]
    return min(ended, key=lambda one: one.loss).x if ended else None


def by_lowest_mean(seen: list[Seen]) -> float | None:
    """Over seeds with a complete grid."""
    rates = {one.x for one in seen}
    whole = [
        seed
        for seed in {one.seed for one in seen}
        if {one.x for one in seen if one.seed == seed} == rates
    ]
    if len(rates) < 9:
        return None
    means = {
        x: np.mean([one.loss for one in seen if one.x == x and one.seed in whole]) for x in rates
    }
    return min(means, key=lambda x: means[x])


def fitted(seen: list[Seen]) -> Optimum | None:
    ended = [one for one in seen if one.loss is not None]
    return fit_optimum(
        [one.x for one in ended], [one.loss for one in ended], [one.seed for one in ended]
    )


def settled(ask: Ask, answers: tuple[Answer, ...], truth: float) -> list[float]:
    """Full runs paid until each answer is right for good; infinite if it is not at the end."""
    seen: list[Seen] = []
    spent, since = 0.0, [math.inf] * len(answers)
    for one in ask:
        if spent + one.cost > RUNS + 1e-9:
            break
        seen.append(one)
        spent += one.cost
        for k, answer in enumerate(answers):
            found = answer(seen)
            right = found is not None and abs(found - truth) <= WITHIN
            since[k] = min(since[k], spent) if right else math.inf
    return since


SEARCHES: dict[str, tuple[Callable[..., Ask], Answer]] = {
    "grid at half powers": (half_power_grid, by_lowest_mean),
    "random": (log_uniform, by_lowest),
    "TPE": (with_optuna(optuna.pruners.NopPruner), by_lowest),
    "TPE + Hyperband": (
        with_optuna(lambda: optuna.pruners.HyperbandPruner(min_resource=4, max_resource=64)),
        by_lowest,
    ),
    "adaptive, one at a time": (adaptive(1), by_vertex),
    "adaptive, three at once": (adaptive(3), by_vertex),
}


def main(path: str = str(HERE / "results/gqa-dense"), replays: str = "200") -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    by_cell: dict[str, list[TrialRecord]] = {}
    for trial in Study.open(path).trials:
        by_cell.setdefault(trial.cell, []).append(trial)
    tables = {cell: Table(trials) for cell, trials in by_cell.items()}
    runs = sum(len(trials) for trials in by_cell.values())
    print(
        f"{len(tables)} cells, {runs} runs; {replays} replays of each search; costs in full runs\n"
    )
    print("dense answers, log2 lr with 95 % interval")
    for cell, table in tables.items():
        print(
            f"  {cell:26s} {table.answer.value:6.2f} [{table.answer.low:.2f}, "
            f"{table.answer.high:.2f}]"
        )
    costs = {
        name: replayed(search, answer, tables, int(replays))
        for name, (search, answer) in SEARCHES.items()
    }
    for column, title in enumerate(("its own answer", "the answer by our fit")):
        shown(title, {name: cost[:, column] for name, cost in costs.items()})
    own_stopping(tables, int(replays))


def shown(title: str, costs: dict[str, np.ndarray]) -> None:
    print(f"\nuntil {title} is within ±{WITHIN} of the dense one, for good")
    print(f"{'search':26s} {'mean':>6} {'10 %':>6} {'median':>6} {'90 %':>6}  never  grid/this")
    grid = float(np.minimum(costs["grid at half powers"], RUNS).mean())
    for name, cost in costs.items():
        counted = np.minimum(cost, RUNS)
        mean, (low, median, high) = counted.mean(), np.percentile(counted, [10, 50, 90])
        never = int(np.isinf(cost).sum())
        print(
            f"{name:26s} {mean:6.1f} {low:6.1f} {median:6.1f} {high:6.1f} {never:6d} "
            f"{grid / mean:10.2f}"
        )


def replayed(
    search: Callable[..., Ask], answer: Answer, tables: dict[str, Table], replays: int
) -> np.ndarray:
    costs = [
        settled(search(table, seeds, random), (answer, by_fit), table.answer.value)
        for table, seeds, random in draws(tables, replays)
    ]
    return np.array(costs)


def draws(
    tables: dict[str, Table], replays: int
) -> Iterator[tuple[Table, list[int], np.random.Generator]]:
    cells = list(tables.values())
    for number in range(replays):
        random = np.random.default_rng(number)
        table = cells[number % len(cells)]
        yield table, [int(seed) for seed in random.permutation(table.seeds)], random


def own_stopping(tables: dict[str, Table], replays: int) -> None:
    """What a user sees: the search ends when its own interval is narrow. Is it right then?"""
    print(
        f"\nadaptive, ended by itself at an interval of ±{TOLERANCE}; the grid ends after all "
        f"{RUNS} runs"
    )
    for at_once in (1, 3):
        costs, errors, covered = [], [], 0
        for table, seeds, random in draws(tables, replays):
            seen: list[Seen] = []
            for one in adaptive(at_once, TOLERANCE)(table, seeds, random):
                seen.append(one)
                if len(seen) >= 60:
                    break
            found = fitted(seen)
            assert found is not None
            costs.append(sum(one.cost for one in seen))
            errors.append(found.value - table.answer.value)
            covered += found.low <= table.answer.value <= found.high
        mean, right = np.mean(costs), np.mean(np.abs(errors) <= WITHIN)
        print(
            f"  {at_once} at once: {mean:.1f} full runs (median {np.median(costs):.1f}), "
            f"{RUNS / mean:.1f} times fewer "
            f"than the grid; error {np.mean(errors):+.2f} ± {np.std(errors):.2f},\n"
            f"    within ±{WITHIN} in {right:.0%}; "
            f"its interval holds the dense answer in {covered / replays:.0%}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
