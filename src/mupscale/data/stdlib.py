"""The embedded corpus: the sources of Python's standard library.

About 11 MB. It differs between versions of Python, and between distributions that patch it, so
every record holds its fingerprint.
"""

import os
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from mupscale.data.corpus import Document, Part, held_out, without_copies
from mupscale.errors import OptionError

SHARE = 0.08
"""Share of the files that is held out, which is about 5 % of the bytes."""

_SKIPPED_FOLDERS = {
    "test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload",
}  # fmt: skip
# Written by the build or by the machine's owner: they hold local paths, or run local code.
_SKIPPED_FILES = ("_sysconfigdata", "sitecustomize", "usercustomize")
# Tables that differ in a few lines, and topics that quote each other: if some were held out, the
# others would leak them into training.
_NEVER_HELD_OUT = ("encodings/", "pydoc_data/")
_TOPICS = "pydoc_data/topics.py"


def stdlib_documents(root: Path | None = None) -> list[Document]:
    """Every `.py` of the library without its tests, and pydoc's topics as text, sorted by POSIX
    path.

    A hash of its path decides whether a file is held out: a new file in a later Python moves no
    other.

    >>> names = [document.name for document in stdlib_documents()]
    >>> "ast.py" in names, "pydoc_data/topics/lambda.txt" in names
    (True, True)
    >>> "test/support/__init__.py" in names
    False
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    contents = {name: (root / name).read_bytes() for name in _sources(root)}
    if not contents:
        raise OptionError(
            f"python-stdlib: this Python has no sources in {root}. Name another corpus, such as "
            "text:PATH, or use a Python that ships its library as .py files."
        )
    contents |= {f"pydoc_data/topics/{name}.txt": text.encode() for name, text in _topics().items()}
    return without_copies(Document(name, _part(name), contents[name]) for name in sorted(contents))


def _part(name: str) -> Part:
    may_be_held_out = not name.startswith(_NEVER_HELD_OUT)
    return "validation" if may_be_held_out and held_out(name.encode(), SHARE) else "train"


def _sources(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [
            n for n in folders if n not in _SKIPPED_FOLDERS and not n.startswith("config-")
        ]
        for file in files:
            name = (Path(folder) / file).relative_to(root).as_posix()
            if file.endswith(".py") and not file.startswith(_SKIPPED_FILES) and name != _TOPICS:
                yield name


def _topics() -> Mapping[str, str]:
    """Empty if the distribution leaves them out."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return {}
    return topics
