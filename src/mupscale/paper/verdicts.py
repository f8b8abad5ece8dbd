"""All claims, from the recorded results of every experiment: the table of results/README.md."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from mupscale.errors import OptionError
from mupscale.paper.claims import UNDECIDED, Claim
from mupscale.paper.experiment import Scale
from mupscale.paper.named import EXPERIMENTS, experiment_named
from mupscale.text import markdown_table

FOLDERS: dict[str, tuple[str, Scale]] = {
    "coordinate-check": ("coordinate-check/paper", "paper"),
    "tau-epoch": ("weight-decay", "cpu"),
}
"""Results that are not in the folder of their name, or not at the small scale."""

COMPUTED = ("configurations", "parameterization")
"""Experiments that need no records."""


def claims_in(results: Path) -> list[Claim]:
    """In the order of the experiments, without those that have no results."""
    if not results.is_dir():
        raise OptionError(
            f"{results} is not a folder. Give one that holds a folder for each experiment."
        )
    found: list[Claim] = []
    for name in EXPERIMENTS:
        place, scale = FOLDERS.get(name, (name, "cpu"))
        if name in COMPUTED or (results / place).is_dir():
            found += experiment_named(name).claims_in(scale, results / place)
    return found


def summary(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict.

    >>> verdicts = "agrees", "disagrees", "ours"
    >>> summary([Claim("depth", "it holds", "it does", 9, one) for one in verdicts])[:53]
    'Of 2 claims of the paper, 1 agrees, 1 disagrees and 0'
    """
    count = Counter(one.verdict for one in claims)
    agree, disagree, ours = (count[one] for one in ("agrees", "disagrees", "ours"))
    return (
        f"Of {len(claims) - ours} claims of the paper, {agree} agree{'s' if agree == 1 else ''}, "
        f"{disagree} disagree{'s' if disagree == 1 else ''} and {count[UNDECIDED]} {UNDECIDED}. "
        f"{ours} question{' is' if ours == 1 else 's are'} ours."
    )


def table_lines(claims: Sequence[Claim]) -> Iterator[str]:
    """As Markdown."""
    yield from textwrap.wrap(summary(claims), 100)
    yield ""
    head = ("experiment", "claim or question", "result", "runs", "verdict")
    cells = [
        (one.experiment, one.says, one.seen, str(one.runs or "–"), one.verdict) for one in claims
    ]
    yield from markdown_table(head, cells).splitlines()
