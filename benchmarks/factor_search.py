"""What a search for values by kind of weight gains: paired, TPE and random, on real runs.

    python benchmarks/factor_search.py [FOLDER]

All search the space of results/factors/64 at width 64 (the rate and five factors) with 66 runs. The
paired search is the recorded one: two seeds per point. TPE (Optuna's, multivariate, one trial at a
time) and random have 66 different points with one seed, and no early stopping. Each has two repeats
with other random numbers. What a search has found is, for paired, its current point, and for the
others the point of their lowest loss. It is taken after 33 and after 66 runs, and then trained with
four seeds that no search has seen, because the lowest of many noisy losses is lower by chance.

Gain: the loss at the start (the rate 2^-7, all factors 1) minus that at the found point, in nats,
mean over the four seeds with its 95 % interval. This was written before the runs of TPE and random.

Runs that FOLDER (results/factor-search) lacks are trained; that needs the text of results/width.
"""

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.fits import mean_over_seeds
from mupscale.paper.factors import EXPERIMENT
from mupscale.studies import Study, StudyConfig, TrialRecord
from mupscale.studies.config import Search
from mupscale.studies.paired import replay
from mupscale.text import text_table

RESULTS = Path(__file__).resolve().parents[1] / "results"
RUNS = 66
AFTER = (33, RUNS)
FRESH_SEEDS = (46, 47, 48, 49)
REPEATS = (0, 1)

Found = Mapping[str, float]


def paired_config() -> StudyConfig:
    return next(iter(EXPERIMENT.parts("cpu").values()))


def searches() -> dict[str, StudyConfig]:
    """Those to run, by name."""
    base = paired_config()
    return {
        f"{method}-{repeat}": dataclasses.replace(
            base,
            name=f"factor-search-{method}-{repeat}",
            seeds=base.seeds[:1],
            search=Search(
                method=method, trials=RUNS, at_once=1, stop_hopeless=False, seed=repeat, step=1.0
            ),
        )
        for repeat in REPEATS
        for method in ("tpe", "random")
    }


def trials_of(config: StudyConfig, folder: Path) -> Sequence[TrialRecord]:
    """All trials in their order, run if they are missing."""
    study = Study.create(config, folder)
    snapshot = study.snapshot()
    if not snapshot.done.issuperset(cell.name for cell in config.cells()):
        snapshot = study.run(remark=lambda text: print(text, file=sys.stderr))
    return sorted(snapshot.trials, key=lambda trial: trial.number)


def paired_found(trials: Sequence[TrialRecord]) -> Found:
    config = paired_config()
    point = replay(config.space, config.seeds, trials, config.search.step).point
    return {name: 2.0**x for name, x in point.items()}


def lowest_found(trials: Sequence[TrialRecord]) -> Found:
    finished = [trial for trial in trials if trial.loss is not None]
    return min(finished, key=lambda trial: trial.loss or math.inf).params


def fresh_losses(point: Found, folder: Path) -> list[float]:
    """The loss at a point with each of the fresh seeds."""
    base = paired_config()
    rate, factors = point["lr"], {k: v for k, v in point.items() if k != "lr" and v != 1}
    optimizer = {**base.tables["optimizer"], **({"factors": factors} if factors else {})}
    config = dataclasses.replace(
        base,
        name=f"factor-search-{folder.name}",
        seeds=FRESH_SEEDS,
        space={"lr": (rate, rate * 2**0.25)},  # a grid needs a range: this holds one rate
        search=Search(method="grid", step=0.5),
        tables={**base.tables, "optimizer": optimizer},
    )
    by_seed = {trial.seed: trial.loss for trial in trials_of(config, folder)}
    return [math.nan if (loss := by_seed[seed]) is None else loss for seed in FRESH_SEEDS]


def found_points(folder: Path) -> Iterator[tuple[str, int, Found]]:
    """Each search, how many runs it had, and what it had found then."""
    recorded = Study.open(RESULTS / "factors" / "64").snapshot()
    paired = sorted(recorded.trials, key=lambda trial: trial.number)
    each = {name: trials_of(config, folder / name) for name, config in searches().items()}
    for runs in AFTER:
        yield "paired", runs, paired_found(paired[:runs])
        for name, trials in each.items():
            yield name, runs, lowest_found(trials[:runs])


def shown(point: Found) -> str:
    factors = [f"{k} × {v:.3g}" for k, v in point.items() if k != "lr" and not math.isclose(v, 1)]
    return ", ".join([f"lr 2^{math.log2(point['lr']):.3g}", *factors])


def gain_text(gain: Estimate) -> str:
    return f"{gain.value:.4f} [{gain.low:.4f}, {gain.high:.4f}]"


def main(folder: Path) -> None:
    base = paired_config()
    low, high = base.space["lr"]
    start = fresh_losses({"lr": math.sqrt(low * high)}, folder / "start")
    rows: list[list[str]] = []
    for name, runs, point in found_points(folder):
        losses = fresh_losses(point, folder / f"{name}-found-{runs}")
        gain = mean_over_seeds([a - b for a, b in zip(start, losses, strict=True)])
        mean = sum(losses) / len(losses)
        rows.append([name, str(runs), f"{mean:.4f}", gain_text(gain), shown(point)])
    seeds = ", ".join(map(str, FRESH_SEEDS))
    print(
        f"width {base.tables['model']['width']}, {RUNS} runs per search; seeds {seeds} afterwards"
    )
    print(f"loss at the start: {sum(start) / len(start):.4f}\n")
    head = ["search", "runs", "loss", "gain, 95 % interval (nats)", "found"]
    print(text_table(head, rows, details=("found",)))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "factor-search")
