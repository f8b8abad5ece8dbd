"""The embedded corpus: the sources of Python's own standard library, which every machine that runs
this has.

About 11 MB. It differs from one version of Python to the next, and between distributions that patch
it, so its fingerprint is part of every record.
"""

import os
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from mupscale.data.corpus import Document, Part, held_out, without_copies
from mupscale.errors import OptionError

SHARE = 0.08
"""Of the files that may be, held out: about 5 % of the bytes."""

_SKIPPED_FOLDERS = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "lib-dynload",
}
# Written by the build or by the machine's owner: they name local paths, or run local code.
_SKIPPED_FILES = ("_sysconfigdata", "sitecustomize", "usercustomize")
# Tables that differ in a few lines and topics that quote each other: held-out ones would have been
# seen in training.
_ALIKE = ("encodings/", "pydoc_data/")
_TOPICS = "pydoc_data/topics.py"


def stdlib_documents(root: Path | None = None) -> list[Document]:
    """Every `.py` of the library without its tests, and the topics of pydoc as text, sorted by
    POSIX path.

    A file is held out if a hash of its path says so: a new file in a later Python moves no other.

    >>> names = [document.name for document in stdlib_documents()]
    >>> "ast.py" in names, "pydoc_data/topics/lambda.txt" in names, "test/support/__init__.py" in names
    (True, True, False)
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    contents = {name: (root / name).read_bytes() for name in _sources(root)}
    if not contents:
        raise OptionError(
            f"python-stdlib: this Python has no sources in {root}. Name another corpus, as "
            "text:PATH, or use a Python "
            "that comes with its library as .py files."
        )
    contents |= {f"pydoc_data/topics/{name}.txt": text.encode() for name, text in _topics().items()}
    return without_copies(Document(name, _part(name), contents[name]) for name in sorted(contents))


def _part(name: str) -> Part:
    return (
        "validation" if not name.startswith(_ALIKE) and held_out(name.encode(), SHARE) else "train"
    )


def _sources(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if name not in _SKIPPED_FOLDERS and not name.startswith("config-")
        ]
        for file in files:
            name = (Path(folder) / file).relative_to(root).as_posix()
            if file.endswith(".py") and not file.startswith(_SKIPPED_FILES) and name != _TOPICS:
                yield name


def _topics() -> Mapping[str, str]:
    """Empty where a distribution leaves them out."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return {}
    return topics
