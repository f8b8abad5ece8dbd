"""A claim of the paper with our result, and the verdict on it."""

from collections.abc import Mapping, Sequence
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
    "intervals of all fits do, with all seeds and without any one of them",
    "disagrees": "the same against the claim",
    "points for": "the interval of at least one fit with all seeds decides for the claim and none "
    "against it, but not every fit does, or not without every seed",
    "points against": "the same against the claim",
    UNDECIDED: "everything else",
}
"""The words of the table, as printed with it."""


def decided(agrees: bool, disagrees: bool) -> Verdict:
    """The verdict of two tests that cannot both hold; undecided where neither does."""
    if agrees:
        return "agrees"
    return "disagrees" if disagrees else UNDECIDED


def combined(by_fit: Sequence[Verdict], without_a_seed: Sequence[Verdict]) -> Verdict:
    """The verdict of several fits to all runs, and of the same fits without one of the seeds.

    >>> combined(["agrees", "agrees"], ["agrees"]), combined(["agrees", "agrees"], [UNDECIDED])
    ('agrees', 'points for')
    >>> combined([UNDECIDED, "disagrees"], []), combined(["agrees", "disagrees"], [])
    ('points against', 'cannot be decided')
    """
    found = {*by_fit, *without_a_seed}
    if len(found) == 1:
        return found.pop()
    if {"agrees", "disagrees"} <= found:
        return UNDECIDED
    if "agrees" in by_fit:
        return "points for"
    return "points against" if "disagrees" in by_fit else UNDECIDED


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
