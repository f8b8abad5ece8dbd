"""A claim of the paper with our result, and the verdict on it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["arithmetic", "first steps", "best rates"]

KINDS: Mapping[Kind, str] = {
    "arithmetic": "tables and formulas, computed again or drawn as random matrices; nothing is "
    "trained",
    "first steps": "norms, gradients and updates in the first steps of training",
    "best rates": "what searches over the learning rate and the weight decay find after training",
}
"""What a claim is about. Only the last kind says whether tuned values transfer."""

Verdict = Literal["agrees", "points for", "points against", "disagrees", "cannot be decided"]
UNDECIDED: Verdict = "cannot be decided"

VERDICTS: Mapping[Verdict, str] = {
    "agrees": "an exact comparison or a 95 % interval decides for the claim; for best rates, the "
    "intervals of all fits do",
    "disagrees": "the same against the claim",
    "points for": "the interval of at least one fit decides for the claim and none against it, but "
    "not every fit decides",
    "points against": "the same against the claim",
    UNDECIDED: "none of these",
}
"""The words of the table, as printed with it."""

FITS_TEXT = (
    "one curve for all seeds, as in docs/statistics.md, whose interval comes first, and three fits "
    "to the runs of each seed alone: a quadratic within one octave of the lowest loss, a cubic "
    "within two, and a Gaussian process through all rates, with an interval from the differences "
    "between seeds"
)
"""The fits of a claim about best rates."""


def decided(agrees: bool, disagrees: bool) -> Verdict:
    """The verdict of two tests that cannot both hold; undecided where neither does."""
    if agrees:
        return "agrees"
    return "disagrees" if disagrees else UNDECIDED


def combined(by_fit: Collection[Verdict]) -> Verdict:
    """The verdict of several fits to the same runs.

    >>> combined(["agrees", "agrees"]), combined(["agrees", UNDECIDED]), combined([UNDECIDED])
    ('agrees', 'points for', 'cannot be decided')
    >>> combined([UNDECIDED, "disagrees"]), combined(["agrees", "disagrees"])
    ('points against', 'cannot be decided')
    """
    found = set(by_fit)
    if found == {"agrees"}:
        return "agrees"
    if found == {"disagrees"}:
        return "disagrees"
    if "agrees" in found and "disagrees" not in found:
        return "points for"
    return "points against" if "disagrees" in found and "agrees" not in found else UNDECIDED


def by_one_fit(verdict: Verdict) -> Verdict:
    """Where only one fit is at hand, nothing is decided: at most it points somewhere.

    >>> by_one_fit("agrees"), by_one_fit("disagrees"), by_one_fit(UNDECIDED)
    ('points for', 'points against', 'cannot be decided')
    """
    return combined([verdict, UNDECIDED])


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, or a question of ours, with the result: a row of results/README.md."""

    experiment: str
    kind: Kind
    says: str
    "What the paper says; for a question of ours, the question."
    seen: str
    "The result, with its interval."
    runs: int
    verdict: Verdict | Literal["ours"]
    '"ours" where the paper makes no claim.'
