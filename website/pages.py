"""Collect the sources of the site in one folder that mirrors the repository.

Guides, results and examples keep their places, so that a link works in the site, in an editor and
on a code host. The other pages are generated from the code: derivations, the commands' help, the
API, the calculator's formulas, and one page per committed result.

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
"""The files of each folder that a page shows or links to; records are left out."""


def lay_out(folder: Path) -> None:
    """Write the folder from scratch."""
    shutil.rmtree(folder, ignore_errors=True)
    for source in sources():
        target = folder / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    for path, text in generated().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def sources() -> Iterator[Path]:
    """The files that are copied unchanged."""
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
    """Files of the repository that a page links to: sources, tests, records."""
    for place in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        path = (page.parent / place).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path


def generated() -> dict[str, str]:
    """The generated pages, by their path."""
    return {
        "theory/derivations.md": derivations.page(),
        "reference/commands.md": commands.page(),
        "reference/api.md": reference.page(),
        "docs/assets/formulas.js": formulas.script(),
        **studies.pages(ROOT / "results"),
    }


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
