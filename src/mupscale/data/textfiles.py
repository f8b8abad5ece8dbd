"""`text:PATH[,PATH…]`: text files and folders of them, read into memory."""

import os
from collections.abc import Iterator
from pathlib import Path

from mupscale.data.corpus import Document, without_copies
from mupscale.errors import OptionError
from mupscale.targets.reasons import reason

SUFFIXES = (
    ".txt", ".text", ".md", ".rst", ".tex",
    ".py", ".c", ".h", ".cpp", ".go", ".java", ".js", ".rs", ".ts",
)  # fmt: skip
"""Files read from a folder. A file named by itself is read whatever its suffix."""

SHARE = 0.05
"""Share of each file, at its end, that is held out."""


def text_documents(rest: str) -> list[Document]:
    """The files of `text:PATH,PATH`: paths in the order given, folders walked recursively in the
    order of POSIX paths.

    Hidden files and folders are skipped, links to folders are not followed, and copies are read
    once. The last 5 % of each file is held out, starting at a line, so one large file works as well
    as many small ones.
    """
    files = (found for path in _paths(rest) for found in _files(path))
    whole = without_copies(Document(name, "train", _read(file)) for name, file in files)
    if not whole:
        raise OptionError(
            f"text:{rest} holds no text: every file is empty, or none in the folder ends in "
            f"{', '.join(SUFFIXES)}. Name the files themselves, or another folder."
        )
    return [half for document in whole for half in _halves(document)]


def _paths(rest: str) -> list[Path]:
    # The name of an existing path may hold commas.
    names = [rest] if os.path.exists(rest) else [name.strip() for name in rest.split(",")]
    paths = [Path(name).expanduser() for name in names if name]
    if not paths:
        raise OptionError("text: names no path. Write text:PATH, or text:PATH,PATH.")
    for path in paths:
        if not path.exists():
            raise OptionError(
                f"text:{rest}: no file or folder {path} in {Path.cwd()}. Fix the path."
            )
    return paths


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Names are relative to the given path, so that moving a folder keeps its fingerprint."""
    if path.is_file():
        yield path.name, path
        return
    found: dict[str, Path] = {}
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        for file in (Path(folder) / name for name in files if not name.startswith(".")):
            if file.suffix.lower() in SUFFIXES and file.is_file():
                found[file.relative_to(path).as_posix()] = file
    yield from sorted(found.items())


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise OptionError(
            f"could not read {file}: {error.strerror or reason(error)}. Fix its permissions."
        ) from error


def _halves(document: Document) -> Iterator[Document]:
    cut = tail_start(document.content)
    yield Document(document.name, "train", document.content[:cut])
    if cut < len(document.content):
        yield Document(document.name, "validation", document.content[cut:])


def tail_start(content: bytes, share: float = SHARE) -> int:
    r"""Where the held-out part begins: at a line if one starts late enough, otherwise at a
    character.

    >>> tail_start(b"one\ntwo\nthree\nfour\n", share=0.5)
    14
    >>> tail_start(b"x" * 100)
    95
    """
    goal = len(content) - int(len(content) * share)
    line = content.find(b"\n", max(goal - 1, 0)) + 1
    if 0 < line < len(content):
        return line
    while goal < len(content) and content[goal] & 0xC0 == 0x80:  # inside a UTF-8 character
        goal += 1
    return goal
