"""A corpus: tokens to train on, tokens held out, and a fingerprint of both."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mupscale.errors import OptionError

Tokens = npt.NDArray[np.unsignedinteger[Any]]
Part = Literal["train", "validation"]


@dataclass(frozen=True)
class Document:
    """Text with a name, on one side of the split."""

    name: str
    part: Part
    content: bytes


@dataclass(frozen=True)
class Library:
    """Documents in memory."""

    identity: str
    items: Sequence[Document]

    def documents(self, start: int) -> Iterator[Document]:
        return islice(self.items, start, None)

    def bytes_of(self, part: Part) -> Tokens:
        content = b"".join(d.content for d in self.items if d.part == part)
        return np.frombuffer(content, dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens in two parts that share no document, or no section of one.

    The arrays are read-only, and memory-mapped if the tokens are on disk. Pickling would copy such
    a map into memory: other processes open the corpus by name instead, and compare fingerprints.
    """

    name: str
    vocabulary: int
    fingerprint: str
    tokenizer: str
    train: Tokens
    validation: Tokens
    folder: Path | None = None
    """Folder with the tokens and, unless the user passed one, the tokenizer.json; None for tokens
    in memory.
    """

    def __post_init__(self) -> None:
        if not len(self.train):
            raise OptionError(f"{self.name}: the training part is empty. Name a corpus with text.")

    def describe(self) -> dict[str, str | int]:
        """The description that a run's record keeps."""
        return {
            "name": self.name,
            "tokenizer": self.tokenizer,
            "vocabulary": self.vocabulary,
            "train_tokens": len(self.train),
            "validation_tokens": len(self.validation),
            "fingerprint": self.fingerprint,
        }


def fingerprint(*parts: str | bytes) -> str:
    """SHA-256 over the parts, each preceded by its length, so that moving a byte from one part to
    the next changes it.

    >>> fingerprint("ab", "c") == fingerprint("a", "bc")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()


def fingerprint_of(documents: Iterable[Document], *about: str) -> str:
    """The fingerprint of documents in their order: names, parts and contents."""
    return fingerprint(*about, *(field for d in documents for field in (d.name, d.part, d.content)))


def held_out(key: bytes, share: float) -> bool:
    """Whether a hash of the key falls into the share that is held out: the same on every machine,
    in any order.

    >>> names = ("ast.py", "csv.py", "opcode.py", "re.py")
    >>> [name for name in names if held_out(name.encode(), 0.05)]
    ['opcode.py']
    """
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") < share * 2**64


def without_copies(documents: Iterable[Document]) -> list[Document]:
    """Nonempty documents, each content once: a copy on the other side of the split would leak."""
    seen: set[bytes] = set()
    kept: list[Document] = []
    for document in documents:
        digest = hashlib.sha256(document.content).digest()
        if document.content and digest not in seen:
            seen.add(digest)
            kept.append(document)
    return kept
