"""All claims, from the recorded results of every experiment: the table of results/README.md."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from mupscale.errors import OptionError
from mupscale.paper.claims import FITS_TEXT, KINDS, VERDICTS, Claim, Verdict
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
    """How many claims have which verdict, in all. `counts` has them by kind.

    >>> verdicts = "agrees", "disagrees", "ours"
    >>> summary([Claim("depth", "best rates", "it holds", "it does", 9, one) for one in verdicts])
    'Of 2 claims of the paper, 1 agrees and 1 disagrees. 1 question is ours.'
    """
    count = Counter(one.verdict for one in claims)
    ours = count.pop("ours", 0)
    words = [f"{count[one]} {_verb(one, count[one])}" for one in VERDICTS if count[one]]
    return (
        f"Of {len(claims) - ours} claims of the paper, {_listed(words)}. "
        f"{ours} question{' is' if ours == 1 else 's are'} ours."
    )


def _listed(words: Sequence[str]) -> str:
    *first, last = words or ["none is judged"]
    return f"{', '.join(first)} and {last}" if first else last


def _verb(verdict: Verdict, count: int) -> str:
    """As the verb of so many claims.

    >>> _verb("agrees", 2), _verb("points for", 1), _verb("cannot be decided", 2)
    ('agree', 'points for', 'cannot be decided')
    """
    first, _, rest = verdict.partition(" ")
    return f"{first.removesuffix('s') if count != 1 else first} {rest}".strip()


def counts(claims: Sequence[Claim]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table: claims of each kind by verdict, and questions of ours."""
    columns = [*VERDICTS, "ours"]
    count = Counter((one.kind, one.verdict) for one in claims)
    rows = [[kind, *(str(count[kind, one] or "–") for one in columns)] for kind in KINDS]
    return ["kind", *columns], rows


def definitions() -> list[str]:
    """What the kinds and the verdicts mean, one sentence each."""
    return [
        *(f"{name}: {meaning}" for name, meaning in KINDS.items()),
        *(f"{name}: {meaning}" for name, meaning in VERDICTS.items()),
        f"fits: {FITS_TEXT}",
        "ours: a question on which the paper makes no claim",
    ]


def table_lines(claims: Sequence[Claim]) -> Iterator[str]:
    """As Markdown."""
    yield from textwrap.wrap(summary(claims), 100)
    yield ""
    yield from markdown_table(*counts(claims)).splitlines()
    yield ""
    for one in definitions():
        yield from textwrap.wrap(f"- {one}", 100, subsequent_indent="  ")
    yield ""
    head = ("experiment", "kind", "claim or question", "result", "runs", "verdict")
    cells = [
        (one.experiment, one.kind, one.says, one.seen, str(one.runs or "–"), one.verdict)
        for one in claims
    ]
    yield from markdown_table(head, cells).splitlines()
