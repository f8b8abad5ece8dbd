"""One page per experiment of the paper: its claims, its figures and the command that repeats it.

Claims are rows of the table in results/README.md, which a test compares with the records.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from mupscale.paper import EXPERIMENTS

PLACES = {"tau-epoch": "weight-decay"}
"""Folders of figures that are not named after their experiment."""
OWN = {
    "weight-decay": lambda path: "tau" not in path.name,
    "tau-epoch": lambda path: "tau" in path.name,
}
"""Which figures belong to which of two experiments that share a folder."""


def pages(results: Path) -> dict[str, str]:
    """Pages by path, for each experiment in the table, and their list."""
    table = (results / "README.md").read_text(encoding="utf-8").splitlines()
    claims = {
        name: [line for line in table if line.startswith(f"| {name} |")] for name in EXPERIMENTS
    }
    found = {
        name: "\n".join(_page(name, lines, results)) for name, lines in claims.items() if lines
    }
    listed = [f"- [{name}]({name}.md): {EXPERIMENTS[name]}" for name in found]
    overview = "\n".join(
        [
            "# Results, one by one\n",
            "All claims in one table: [Results](../README.md).\n",
            *listed,
            "",
        ]
    )
    return {"results/pages/index.md": overview} | {
        f"results/pages/{name}.md": text for name, text in found.items()
    }


def _page(name: str, claims: list[str], results: Path) -> Iterator[str]:
    yield f"# {name}\n"
    yield f"*{EXPERIMENTS[name]}.* Repeat it: `mupscale paper {name} --scale cpu`\n"
    for claim in claims:
        _, kind, says, seen, runs, verdict = (
            word.strip() for word in claim.strip("| ").split(" | ")
        )
        measured = f"Measured ({kind}): {seen} ({runs} runs)".replace(" (– runs)", "")
        yield f"**{says}**\n\n: {verdict}. {measured}\n"
    for path in _figures(name, results):
        place = os.path.relpath(path, results / "pages")
        yield f"![{path.stem.replace('-', ' ')}]({place})\n"


def _figures(name: str, results: Path) -> list[Path]:
    mine = OWN.get(name, lambda path: True)
    return [
        path for path in sorted((results / PLACES.get(name, name)).rglob("*.png")) if mine(path)
    ]
