"""Best rates under three schedules: the records of results/schedules, paired by seed.

    python benchmarks/schedules.py [FOLDER]

results/schedules/README.md has the design, which was fixed before the runs.
"""

import sys
from pathlib import Path

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.fits import FITS, agreed, mean_over_seeds
from mupscale.paper.rate_tables import RateTable, lower_or_higher, missing_in, rate_tables
from mupscale.studies import StudyConfig
from mupscale.text import text_table

RESULTS = Path(__file__).resolve().parents[1] / "results" / "schedules"


def differences(one: RateTable, cosine: RateTable, what: str) -> dict[str, Estimate | None]:
    """By fit: of the best rate, of the lowest loss, or the cost of the cosine's best rate."""
    found: dict[str, Estimate | None] = {}
    for fit in FITS:
        own, other = (table.of_seeds(fit, table.seeds) for table in (one, cosine))
        if not all(point.inside for point in [*own, *other]):
            found[fit] = None
            continue
        if what == "rate":
            values = [a.log2_rate - b.log2_rate for a, b in zip(own, other, strict=True)]
        elif what == "loss":
            values = [a.loss - b.loss for a, b in zip(own, other, strict=True)]
        else:
            there = [one.at(seed, cosine.best) for seed in one.seeds]
            values = [loss - a.loss for loss, a in zip(there, own, strict=True) if loss is not None]
        found[fit] = mean_over_seeds(values)
    return found


def shown(estimate: Estimate | None, digits: int) -> str:
    if estimate is None:
        return "not located"
    return f"{estimate.value:+.{digits}f} [{estimate.low:+.{digits}f}, {estimate.high:+.{digits}f}]"


def main(folder: Path) -> None:
    config = StudyConfig.load(RESULTS / "study.toml")
    tables = rate_tables(config, folder, lambda _, cell: str(cell.label))
    missing = missing_in(tables)
    if missing:
        raise SystemExit(f"{folder}: {missing}")
    cosine, *others = tables
    print(f"the cosine's best rate of the grid: 2^{cosine.best:g}; {len(cosine.seeds)} seeds\n")
    rows: list[list[str]] = []
    for what, unit, digits in (("rate", "octaves", 2), ("loss", "nats", 4), ("cost", "nats", 4)):
        for one in others:
            by_fit = differences(one, cosine, what)
            all_fits = agreed(by_fit, lower_or_higher)
            names = {
                "rate": "log2 of the best rate minus the cosine's",
                "loss": "lowest loss minus the cosine's",
                "cost": "cost of the cosine's best rate",
            }
            rows += [
                [names[what], one.model, fit, f"{shown(e, digits)} {unit}", ""]
                for fit, e in by_fit.items()
            ]
            rows.append(["", "", "widest", shown(all_fits.widest, digits), all_fits.verdict])
    print(text_table(["what", "schedule", "fit", "95 % interval", "all fits"], rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
