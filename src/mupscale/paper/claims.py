"""A claim of the paper with our result, and the verdict on it."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["agrees", "disagrees", "cannot be decided at this scale"]
UNDECIDED: Verdict = "cannot be decided at this scale"


def decided(agrees: bool, disagrees: bool) -> Verdict:
    """The verdict of two tests that cannot both hold; undecided where neither does."""
    if agrees:
        return "agrees"
    return "disagrees" if disagrees else UNDECIDED


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, or a question of ours, with the result: a row of results/README.md."""

    experiment: str
    says: str
    "What the paper says; for a question of ours, the question."
    seen: str
    "The result, with its interval."
    runs: int
    verdict: Verdict | Literal["ours"]
    '"ours" where the paper makes no claim.'
