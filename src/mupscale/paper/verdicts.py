"""All claims at once, from the recorded results of every experiment: the table of
results/README.md.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from mupscale.errors import OptionError
from mupscale.paper.experiment import Claim, Scale
from mupscale.paper.named import EXPERIMENTS, experiment_named

FOLDERS: dict[str, tuple[str, Scale]] = {
    "coordinate-check": ("coordinate-check/paper", "paper"),
    "tau-epoch": ("weight-decay", "cpu"),
}
"""Where results are, for those that are not in the folder of their name, or not at the small
scale.
"""

COMPUTED = ("configurations", "parameterization")
"""What needs no record."""


def claims_in(results: Path) -> list[Claim]:
    """In the order of the experiments. One whose results are not there has no claim."""
    if not results.is_dir():
        raise OptionError(
            f"{results} is not a folder. Name the one that holds a folder for each experiment."
        )
    found: list[Claim] = []
    for name in EXPERIMENTS:
        place, scale = FOLDERS.get(name, (name, "cpu"))
        if name in COMPUTED or (results / place).is_dir():
            found += experiment_named(name).claims_in(scale, results / place)
    return found


def summary(claims: Sequence[Claim]) -> str:
    """How many came out how.

    >>> made = [Claim("depth", "it holds", "it does", 9, verdict) for verdict in ("agrees", "disagrees", "ours")]
    >>> summary(made)
    'Of 2 claims of the paper 1 agrees, 1 disagrees and 0 cannot be decided at this scale. 1 question is ours.'
    """
    count = Counter(one.verdict for one in claims)
    agree, disagree, open_, ours = (
        count[one] for one in ("agrees", "disagrees", "cannot be decided at this scale", "ours")
    )
    return (
        f"Of {agree + disagree + open_} claims of the paper {agree} "
        f"agree{'s' if agree == 1 else ''}, {disagree} "
        f"disagree{'s' if disagree == 1 else ''} and {open_} cannot be decided at this scale. "
        f"{ours} question{' is' if ours == 1 else 's are'} ours."
    )


def table_lines(claims: Sequence[Claim]) -> Iterator[str]:
    """As Markdown."""
    yield summary(claims)
    yield ""
    yield "| experiment | claim or question | seen | runs | verdict |"
    yield "|---|---|---|---|---|"
    for one in claims:
        words = [
            one.experiment,
            one.says,
            one.seen,
            str(one.runs) if one.runs else "–",
            one.verdict,
        ]
        yield f"| {' | '.join(word.replace('|', chr(92) + '|') for word in words)} |"
