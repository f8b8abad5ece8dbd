"""Lay out everything that the site is built from, in one folder that has the repository's own
shape.

Guides, results and examples lie there as they do in a clone, so that one link serves the site, an
editor and a code host. What can be derived is made here, from the code itself: derivations, the
commands' help, the API, the calculator's formulas, and a page for each committed result.

    python -m website.pages build/pages && mkdocs build --strict
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from website import commands, derivations, formulas, reference, studies

ROOT = Path(__file__).parents[1]
COPIED = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "RELEASING.md",
    "CITATION.cff",
    "LICENSE",
)
FOLDERS = {
    "docs": (".md", ".js", ".css", ".png", ".svg"),
    "examples": (".md", ".py", ".toml"),
    "results": (".md", ".png", ".svg", ".txt", ".csv"),
}
"""Of each folder, what a page shows or links to; records stay where they are."""


def lay_out(folder: Path) -> None:
    """Made anew each time."""
    shutil.rmtree(folder, ignore_errors=True)
    for source in sources():
        target = folder / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    for path, text in made().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def sources() -> Iterator[Path]:
    """The files that are taken as they are."""
    named = [ROOT / name for name in COPIED]
    for name, endings in FOLDERS.items():
        named += [
            path
            for path in sorted((ROOT / name).rglob("*"))
            if path.is_file() and path.suffix in endings
        ]
    yield from dict.fromkeys(
        [*named, *(path for page in named if page.suffix == ".md" for path in linked(page))]
    )


def linked(page: Path) -> Iterator[Path]:
    """Files of the repository that a page sends its readers to: sources, tests, records."""
    for place in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        path = (page.parent / place).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path


def made() -> dict[str, str]:
    """The pages that the code itself writes, by their place."""
    return {
        "theory/derivations.md": derivations.page(),
        "reference/commands.md": commands.page(),
        "reference/api.md": reference.page(),
        "docs/assets/formulas.js": formulas.script(),
        **studies.pages(ROOT / "results"),
    }


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
