"""Verdicts: is a slope flat, and does an optimum stay where it is over a family of models?

Both are equivalence statements: the whole interval must lie within a stated bound. An interval that
merely contains zero shows nothing, since noise alone makes intervals wide.
"""

import math
from dataclasses import dataclass
from typing import Literal

from scipy.special import ndtr

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.slopes import Slope, t_quantile
from mupscale.errors import OptionError

Verdict = Literal["pass", "fail", "inconclusive"]

# If more seeds than this are needed, it is better to reduce the noise.
SEEDS_LIMIT = 100
# The probability with which `more_seeds` must settle a verdict: the usual power of an experiment.
POWER = 0.8


Movement = Literal["still", "moves", "no significant drift", "unknown"]

STILL_OCTAVES = 0.5
"""An optimum that moves by less than this over a whole family is still. It is the paper's finest
grid: a smaller move would not have changed the rate that the paper reports.
"""


@dataclass(frozen=True)
class DriftVerdict:
    """Whether an optimum moves over a family, with the definition of that word in `sentence`."""

    movement: Movement
    sentence: str


def judge_drift(
    drift: Estimate | None, doublings: float, still: float = STILL_OCTAVES
) -> DriftVerdict:
    """Judge a drift in octaves per doubling, over a family that spans this many doublings.

    still                 the interval bounds the whole movement below `still` octaves
    moves                 not still, and the interval excludes zero
    no significant drift  not still, and the interval contains zero
    unknown               there is no bounded interval

    "still" comes first: a tiny drift that is known precisely excludes zero and is still.

    >>> judge_drift(Estimate(0.0, -0.1, 0.1), 3).sentence
    'still: over 3 doublings it may move by up to 0.30 octaves (still means less than 0.5)'
    >>> [judge_drift(one, 3).movement for one in (Estimate(-0.3, -0.4, -0.2), Estimate(0, -1, 1))]
    ['moves', 'no significant drift']
    """
    if drift is None or not drift.bounded:
        return DriftVerdict("unknown", "unknown: the runs do not bound its drift")
    most = max(abs(drift.low), abs(drift.high)) * doublings
    movement, why = "no significant drift", "the interval contains zero, but "
    if most < still:
        movement, why = "still", ""
    elif drift.excludes(0):
        movement, why = "moves", "the interval excludes zero, and "
    reach = f"over {doublings:.2g} doublings it may move by up to {most:.2f} octaves"
    return DriftVerdict(movement, f"{movement}: {why}{reach} (still means less than {still:.2g})")


@dataclass(frozen=True)
class Flatness:
    """The interval `low` to `high` against ±`tolerance`.

    `more_seeds` is 0 if the verdict is settled, and None if more than 100 would be needed.
    """

    slope: Slope
    low: float
    high: float
    tolerance: float
    verdict: Verdict
    more_seeds: int | None


@dataclass(frozen=True)
class _Question:
    """Which intervals pass and which fail."""

    tolerance: float
    confidence: float
    comparisons: int
    one_sided: bool

    @property
    def floor(self) -> float:
        return -math.inf if self.one_sided else -self.tolerance

    def verdict(self, low: float, high: float) -> Verdict:
        if self.floor <= low and high <= self.tolerance:
            return "pass"
        if low > self.tolerance or high < self.floor:
            return "fail"
        return "inconclusive"


def judge_flatness(
    slope: Slope,
    *,
    tolerance: float = 0.1,
    confidence: float = 0.95,
    comparisons: int = 1,
    one_sided: bool = False,
) -> Flatness:
    """Pass if the whole interval lies within ±tolerance, fail if all of it lies outside, otherwise
    inconclusive.

    With `one_sided`, only growth fails: an interval below the tolerance passes, however steep.

    >>> flatness = judge_flatness(Slope(0.02, 0.05, degrees_of_freedom=4, seeds=3, values=4))
    >>> flatness.verdict, flatness.more_seeds
    ('inconclusive', 8)
    """
    if not 0 < tolerance < math.inf:
        raise OptionError(
            f"tolerance={tolerance} must be positive and finite. Choose a value such as 0.1."
        )
    question = _Question(tolerance, confidence, comparisons, one_sided)
    low, high = slope.interval(confidence, comparisons)
    verdict = question.verdict(low, high)
    more_seeds = _more_seeds(slope, question) if verdict == "inconclusive" else 0
    return Flatness(slope, low, high, tolerance, verdict, more_seeds)


def _more_seeds(slope: Slope, question: _Question) -> int | None:
    return next(
        (more for more in range(1, SEEDS_LIMIT + 1) if _chance(slope, question, more) >= POWER),
        None,
    )


def _chance(slope: Slope, question: _Question, more: int) -> float:
    """The probability that `more` seeds settle it, if the present estimate and noise are true.

    The next estimate then scatters around the present one. Just enough seeds for an interval around
    the present estimate would settle it only half the time.
    """
    seeds = slope.seeds + more
    standard_error = slope.standard_error * math.sqrt(slope.seeds / seeds)
    degrees_of_freedom = slope.degrees_of_freedom * (seeds - 1) / (slope.seeds - 1)
    reach = t_quantile(degrees_of_freedom, question.confidence, question.comparisons)

    def below(end: float, shift: float) -> float:
        return float(ndtr((end - slope.value) / standard_error + shift))

    passes = below(question.tolerance, -reach) - below(question.floor, reach)
    fails = below(question.floor, -reach) + 1 - below(question.tolerance, reach)
    return max(passes, 0.0) + fails
