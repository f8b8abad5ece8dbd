"""Does early stopping spare the runs that matter? The rule is applied to full runs of the dense
table.

    python drills/early_stopping.py [STUDY]

Every run is compared with every run of its seed within one octave (a factor of two) of the optimum:
such a run is the best so far in a search that has begun. Runs are counted by their distance from
the optimum: how many are stopped, the share of their tokens that is spent, and how much worse the
best stopped run ended than the best run of its cell and seed.
"""

import sys
from pathlib import Path

import numpy as np

from mupscale.analysis.optima import fit_optimum
from mupscale.studies import Study, TrialRecord
from mupscale.studies.curves import LossCurve, TrialStopped
from mupscale.studies.stopping import reference

HERE = Path(__file__).resolve().parents[1]
BANDS = ((0.0, 0.5), (0.5, 1.0), (1.0, 1.5), (1.5, 2.0), (2.0, 3.0))


def spent(run: TrialRecord, best: TrialRecord) -> float | None:
    """The share of its steps at which the run is stopped; None if it is not stopped."""
    curve = LossCurve(stop=reference(best.curve, best.steps or 1), steps=run.steps)
    try:
        for step, loss in run.curve:
            curve.add(loss, int(step))
    except TrialStopped:
        return curve.step / (run.steps or 1)
    return None


def main(path: str = str(HERE / "results/gqa-dense")) -> None:
    cells: dict[str, list[TrialRecord]] = {}
    for trial in Study.open(path).trials:
        cells.setdefault(trial.cell, []).append(trial)
    rows: dict[tuple[float, float], list[tuple[float | None, float]]] = {band: [] for band in BANDS}
    for trials in cells.values():
        found = fit_optimum(
            [t.log2_lr for t in trials], [t.loss for t in trials], [t.seed for t in trials]
        )
        assert found is not None
        for seed in {trial.seed for trial in trials}:
            runs = [trial for trial in trials if trial.seed == seed]
            lowest = min(trial.loss for trial in runs if trial.loss is not None)
            for best in (
                trial for trial in runs if abs(trial.log2_lr - found.value) <= 1 and trial.loss
            ):
                for run in runs:
                    distance = abs(run.log2_lr - found.value)
                    band = next(band for band in BANDS if band[0] <= distance < band[1])
                    worse = (run.loss if run.loss is not None else np.inf) - lowest
                    rows[band].append((spent(run, best), worse))
    print("runs against the best so far, by distance from the optimum in powers of two\n")
    print("  distance  comparisons  stopped  tokens spent  least harm: nats above the best")
    for (low, high), found in rows.items():
        stopped = [share for share, _ in found if share is not None]
        tokens = np.mean([1.0 if share is None else share for share, _ in found])
        harm = min((worse for share, worse in found if share is not None), default=float("nan"))
        print(
            f"  {low:.1f}–{high:.1f} {len(found):12d} {len(stopped) / len(found):8.1%} "
            f"{tokens:13.2f} {harm:12.3f}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
