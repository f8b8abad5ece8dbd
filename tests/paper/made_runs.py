"""Runs whose optima are known, for the claims that are read from them."""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from mupscale.analysis import Measurement, Member, analyse
from mupscale.paper.sweeps import SweepFinding

SEEDS = (42, 43, 44)


def curve_runs(
    optima: Mapping[tuple[str, Member], float], rates: Sequence[float], noise: float = 0.002
) -> Iterator[Measurement]:
    """A parabola around each optimum, with a little noise; seeds differ by a level."""
    chance = random.Random(0)
    for (rule, member), best in optima.items():
        for seed, rate in itertools.product(SEEDS, rates):
            loss = 2 + 0.1 * (rate - best) ** 2 + 0.01 * (seed - 43) + chance.gauss(0, noise)
            yield Measurement(
                rule=rule, member=member, seed=seed, params={"lr": 2.0**rate}, loss=loss, steps=100
            )


def seen_over(
    axis: str,
    positions: Sequence[float],
    best: Mapping[str, Callable[[float], float]],
    noise: float = 0.002,
) -> SweepFinding:
    """Rules whose best rate (log2) is a function of log2 of the position."""
    optima = {
        (rule, Member(label=f"{axis} = {position}", position=position)): function(
            math.log2(position)
        )
        for rule, function in best.items()
        for position in positions
    }
    runs = list(curve_runs(optima, [-8 + k / 2 for k in range(9)], noise))
    return SweepFinding(analyse(runs, axis=axis), runs)
