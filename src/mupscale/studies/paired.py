"""The search over values and factors by kind of weight: one direction after another, by paired
comparisons.

It starts at the middle of each value's range and at 1 for each factor. Along a direction, which is
one parameter or two that interact, it trains one step down and one step up, on the same seeds as
the current point. A difference counts if its 95 % interval, paired by seed, excludes zero. The
better side becomes the current point, and the search goes on that way until nothing is gained. A
parameter of which neither side makes a difference does not matter, and is not tried again, except
for the rate. The others are tried again with half the step. At the end, rates around the best one
are added, so that its interval can be fitted.

Every decision depends on recorded losses alone, so the same records give the same search.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from mupscale.analysis.estimates import Estimate
from mupscale.studies.trials import Point, Space, TrialRecord

FIRST_STEP = 2.0
"""Octaves (factors of two): far enough to see what matters at all."""

LINE = (-1.0, -0.5, 0.5, 1.0)
"""Octaves from the best rate at which rates are added in the end: with the rate itself, five points
for a fit.
"""

NOISE_DEGREES = 6
"""Degrees of freedom of the noise before a parameter may be dropped: the first comparisons, of two
or three seeds, do not show how noisy losses are."""

PAIRS = (
    ("lr", "std"),
    ("lr", "std.readout"),
    ("lr.embedding", "std.embedding"),
    ("lr.readout", "std.readout"),
)
"""Parameters that interact: what one loses, the other may regain. They are also tried together,
moved the same way and opposite ways."""

Place = Mapping[str, float]
"""log2 of each parameter."""

PlaceKey = tuple[tuple[str, float], ...]

Direction = tuple[tuple[str, int], ...]
"""Parameters with the signs in which they move together."""


@dataclass(frozen=True)
class PairedComparison:
    """One point against the current one, on the same seeds."""

    direction: Direction
    "With the signs of the move."
    step: float
    differences: Mapping[int, float]
    "Loss minus that of the current point, by seed; empty if a run diverged or failed."
    estimate: Estimate
    "Their mean, with the interval that the search used."
    accepted: bool = False

    @property
    def verdict(self) -> str:
        if self.estimate.high < 0:
            return "better"
        if not self.differences:
            return "diverged"
        return "worse" if self.estimate.low > 0 else "no difference"

    @property
    def name(self) -> str:
        """As "lr.embedding × 4" or "lr ÷ 2, std.readout × 2"."""
        size = f"{2**self.step:.4g}"
        return ", ".join(
            f"{name} {'×' if sign > 0 else '÷'} {size}" for name, sign in self.direction
        )


@dataclass
class PairedSearch:
    """How far the search of a cell has come, replayed from its records."""

    point: dict[str, float]
    "The current point: log2 of each parameter."
    comparisons: list[PairedComparison] = field(default_factory=list[PairedComparison])
    "Each pair of points once, in the order of the search."
    missing: list[tuple[dict[str, float], int]] = field(
        default_factory=list[tuple[dict[str, float], int]]
    )
    "Places and seeds to train next; empty if the search is done."
    before_factors: dict[str, float] = field(default_factory=dict[str, float])
    "The point at which only values, such as the rate, had been tuned."
    squares: dict[object, tuple[float, int]] = field(
        default_factory=dict[object, tuple[float, int]]
    )
    "Of each comparison: squares around its mean over seeds, and their degrees of freedom."

    @property
    def done(self) -> bool:
        return not self.missing

    @property
    def noise_degrees(self) -> int:
        return sum(degrees for _, degrees in self.squares.values())

    def interval(self, values: Sequence[float]) -> Estimate:
        """The mean of differences by seed, with Student's interval. Their spread is the larger of
        their own and that of all comparisons: two or three seeds do not show it well.
        """
        count, own = len(values), _squares(values)
        mean, degrees = sum(values) / count, self.noise_degrees
        if count < 2 or not degrees:
            return Estimate(mean, -math.inf, math.inf, 0)
        pooled = sum(squares for squares, _ in self.squares.values()) / degrees
        error = math.sqrt(max(pooled, own / (count - 1)) / count)
        return Estimate.student(mean, error, degrees)

    def last_of(self, name: str) -> list[PairedComparison]:
        """The latest comparisons of a parameter by itself, one for each side."""
        found = {
            one.direction: one
            for one in self.comparisons
            if [n for n, _ in one.direction] == [name]
        }
        return list(found.values())


class _MissingRunsError(Exception):
    """The next decision needs runs that are not there yet."""


def replay(
    space: Space, seeds: Sequence[int], trials: Sequence[TrialRecord], smallest: float
) -> PairedSearch:
    """The search as far as the trials decide it, down to steps of `smallest` octaves."""
    walk = _Walk(space, seeds, trials)
    with suppress(_MissingRunsError):
        walk.run(smallest)
    return walk.search


def paired_round(
    space: Space, seeds: Sequence[int], trials: Sequence[TrialRecord], smallest: float
) -> list[Point]:
    """The next trials of a cell; empty if the search is done."""
    found = replay(space, seeds, trials, smallest)
    return [
        Point(
            {name: min(max(2.0**x, space[name][0]), space[name][1]) for name, x in place.items()},
            seed,
        )
        for place, seed in found.missing
    ]


class _Walk:
    """One replay."""

    def __init__(self, space: Space, seeds: Sequence[int], trials: Sequence[TrialRecord]) -> None:
        self.spans = {
            name: (math.log2(low), math.log2(high)) for name, (low, high) in space.items()
        }
        self.seeds = list(seeds)
        self.losses = {
            (
                place_key({name: math.log2(value) for name, value in trial.params.items()}),
                trial.seed,
            ): trial.loss
            for trial in trials
        }
        self.search = PairedSearch({name: _start(name, span) for name, span in self.spans.items()})
        self.matters = dict.fromkeys(self.spans, True)
        "Parameters that make a difference, as far as is known."
        self.places: dict[object, int] = {}
        "Of each comparison in the list."

    def run(self, smallest: float) -> None:
        values = [name for name in self.spans if "." not in name]
        factors = [name for name in self.spans if "." in name]
        for name in values:
            self._parameter(name, FIRST_STEP)
        self.search.before_factors = dict(self.search.point)
        for name in factors:
            self._parameter(name, FIRST_STEP)
        self._pairs(FIRST_STEP)
        self._judge_again(FIRST_STEP)
        step = FIRST_STEP / 2
        while step >= smallest - 1e-9:
            before = dict(self.search.point)
            for name in self.spans:
                self._parameter(name, step)
            self._pairs(step)
            self._judge_again(step)
            is_last = step / 2 < smallest - 1e-9
            if not is_last or self.search.point == before:
                step /= 2
        self._rates()

    def _parameter(self, name: str, step: float) -> None:
        # The rate is followed to the end: what the others move may move it, too.
        if self.matters[name] or name == "lr":
            differs = self._along(((name, 1),), step)
            self.matters[name] = differs or self.search.noise_degrees < NOISE_DEGREES

    def _judge_again(self, step: float) -> None:
        """By now the noise is known better: where the runs are there, compare once more."""
        for name in self.spans:
            sides = [self._moved(((name, sign),), step) for sign in (1, -1)]
            places = [place for place in sides if place is not None]
            if not self._lacking(places):
                self._parameter(name, step)

    def _pairs(self, step: float) -> None:
        for pair in PAIRS:
            if all(self.matters.get(name, False) for name in pair):
                for signs in ((1, 1), (1, -1)):
                    self._along(tuple(zip(pair, signs, strict=True)), step)

    def _along(self, direction: Direction, step: float) -> bool:
        """Both sides, then on as long as it gains; whether the direction makes a difference."""
        sides = [direction, tuple((name, -sign) for name, sign in direction)]
        places = {side: place for side in sides if (place := self._moved(side, step)) is not None}
        self._require(list(places.values()))
        found = [self._compared(side, step, place) for side, place in places.items()]
        best = min(found, key=lambda one: one.estimate.value, default=None)
        while best is not None and best.verdict == "better":
            self._accept(best, step)
            place = self._moved(best.direction, step)
            if place is None:
                break
            self._require([place])
            best = self._compared(best.direction, step, place)
        return any(one.verdict != "no difference" for one in found)

    def _accept(self, one: PairedComparison, step: float) -> None:
        place = self._moved(one.direction, step)
        assert place is not None
        number = self.places[place_key(self.search.point), place_key(place)]
        self.search.comparisons[number] = replace(one, accepted=True)
        self.search.point = place

    def _moved(self, direction: Direction, step: float) -> dict[str, float] | None:
        """None where that leaves the range."""
        place = dict(self.search.point)
        for name, sign in direction:
            place[name] += sign * step
            low, high = self.spans[name]
            if not low - 1e-6 <= place[name] <= high + 1e-6:
                return None
        return place

    def _lacking(self, places: Sequence[Place]) -> list[tuple[dict[str, float], int]]:
        """What has not run yet of these and of the current point, on every seed."""
        wanted = [dict(self.search.point), *map(dict, places)]
        return [
            (place, seed)
            for place, seed in itertools.product(wanted, self.seeds)
            if (place_key(place), seed) not in self.losses
        ]

    def _require(self, places: Sequence[Place]) -> None:
        self.search.missing = self._lacking(places)
        if self.search.missing:
            raise _MissingRunsError

    def _compared(self, direction: Direction, step: float, place: Place) -> PairedComparison:
        """A place against the current point, with the noise as it is known now."""
        key = place_key(self.search.point), place_key(place)
        there, here = (
            [self.losses[place_key(one), seed] for seed in self.seeds]
            for one in (place, self.search.point)
        )
        differences = {
            seed: loss - current
            for seed, loss, current in zip(self.seeds, there, here, strict=True)
            if loss is not None and current is not None
        }
        if None in there:
            differences, estimate = {}, Estimate(math.inf, -math.inf, math.inf, 0)
        elif None in here:  # anything that trains is better than what does not
            differences, estimate = {}, Estimate(-math.inf, -math.inf, -math.inf, 0)
        else:
            values = list(differences.values())
            self.search.squares[key] = _squares(values), len(values) - 1
            estimate = self.search.interval(values)
        found = PairedComparison(direction, step, differences, estimate)
        place_of = self.places.setdefault(key, len(self.search.comparisons))
        self.search.comparisons[place_of : place_of + 1] = [found]
        return found

    def _rates(self) -> None:
        self._require(
            [place for octaves in LINE if (place := self._moved((("lr", 1),), octaves)) is not None]
        )


def _squares(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


def _start(name: str, span: tuple[float, float]) -> float:
    """The middle of a value's range; 1 for a factor, or the end of its range next to 1."""
    middle = sum(span) / 2
    return min(max(0.0, span[0]), span[1]) if "." in name else middle


def place_key(place: Place) -> PlaceKey:
    """Equal for equal places: log2 of what was read from a file differs in the last digits."""
    return tuple(sorted((name, round(x, 6) + 0.0) for name, x in place.items()))


def on_the_line(trials: Sequence[TrialRecord], point: Place) -> Iterator[TrialRecord]:
    """Trials that differ from the point in nothing but the rate."""
    others = {name: x for name, x in point.items() if name != "lr"}
    wanted = place_key(others)
    for trial in trials:
        own = {name: math.log2(value) for name, value in trial.params.items() if name != "lr"}
        if place_key(own) == wanted:
            yield trial
