"""How many runs does a claim need? Parts of the dense table, analysed as if nothing else had been
run.

For each part (number of seeds and distance between learning rates): half the 95 % interval of an
optimum, of its drift with r, and of the difference between the drifts of two rules, averaged over
the table. A claim about a smaller effect cannot be decided.
"""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from mupscale.analysis import Estimate, Measurement, analyse
from mupscale.studies import Study
from mupscale.studies.measured import measured

DENSE = Path(__file__).parents[1] / "results/gqa-dense"
SEEDS, STEPS = (42, 43, 44), (0.25, 0.5, 1.0)


def parts(runs: list[Measurement], count: int, step: float) -> Iterator[list[Measurement]]:
    """Every choice of `count` seeds."""
    for chosen in itertools.combinations(SEEDS, count):
        yield [
            run
            for run in runs
            if run.seed in chosen and math.isclose(run.log2("lr") / step % 1, 0, abs_tol=1e-6)
        ]


def half(found: list[Estimate]) -> str:
    """Mean half-width of the bounded intervals, and how many are unbounded."""
    bounded = [(one.high - one.low) / 2 for one in found if one.bounded]
    missing = len(found) - len(bounded)
    return (f"± {fmean(bounded):.2f}" if bounded else "none") + (
        f" ({missing} of {len(found)} open)" if missing else ""
    )


def main() -> None:
    runs, axis = measured(Study.open(DENSE))
    print(
        f"{'seeds':>5}{'rates':>7}{'runs per cell':>15}  "
        f"{'optimum':<24}{'drift with r':<24}difference of drifts"
    )
    for count, step in itertools.product((1, 2, 3), STEPS):
        found = [analyse(part, axis=axis) for part in parts(runs, count, step)]
        optima = [cell.found["lr"] for one in found for cell in one.cells]
        drifts = [transfer.drift for one in found for transfer in one.transfers if transfer.drift]
        both = [
            one.difference for some in found for one in some.comparisons if one.quantity == "drift"
        ]
        rates = round(4 / step) + 1
        print(
            f"{count:>5}{rates:>7}{count * rates:>15}  "
            f"{half(optima):<24}{half(drifts):<24}{half(both)}"
        )
    print("octaves; drifts for each doubling of r, over r = 1, 4, 12")


if __name__ == "__main__":
    main()
