"""A tokenizer by name: bytes, or subwords from a file, from the hub or trained on the corpus."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mupscale.data.corpus import Document, Tokens
from mupscale.data.subwords import Subwords
from mupscale.errors import MissingExtraError, OptionError, UnknownNameError
from mupscale.targets.reasons import reason

FORMS = ("bytes", "file:PATH/tokenizer.json", "bpe:4096", "hub:NAME")
_BYTES = 256


@dataclass(frozen=True)
class ByteTokenizer:
    """Each byte is a token; documents are not separated.

    >>> ByteTokenizer().encode([Document("a", "train", b"abc")])
    [array([97, 98, 99], dtype=uint8)]
    """

    name: str = "bytes"
    identity: str = "bytes"
    vocabulary: int = _BYTES

    def encode(self, documents: Sequence[Document]) -> list[Tokens]:
        return [np.frombuffer(document.content, dtype=np.uint8) for document in documents]


Tokenizer = ByteTokenizer | Subwords
"""Turns documents into arrays of tokens below its `vocabulary`. Its `identity` changes whenever the
tokens change.
"""


def bpe_size(spec: str) -> int | None:
    """4096 for `bpe:4096`, None for any other tokenizer."""
    if not spec.startswith("bpe:"):
        return None
    number = spec.removeprefix("bpe:").strip()
    if not re.fullmatch(r"\d{1,7}", number) or int(number) <= _BYTES:
        raise OptionError(
            f"tokenizer {spec!r}: the size must be an integer from {_BYTES + 1} (every byte and "
            "the end of a document) to 9999999. Write bpe:4096."
        )
    return int(number)


def open_tokenizer(spec: str) -> Tokenizer:
    """Open `bytes`, `file:PATH` or `hub:NAME`; `bpe:` needs documents to train on."""
    kind, _, rest = spec.partition(":")
    if spec == "bytes":
        return ByteTokenizer()
    if kind == "file" and rest:
        return Subwords.of_json(_read(_file(rest)), spec)
    if kind == "hub" and rest:
        return Subwords.of_json(_read(_from_hub(rest)), spec)
    raise UnknownNameError("tokenizer", spec, FORMS)


def tokenizer_key(spec: str) -> str:
    """The tokenizer's part in the key of a prepared corpus: the hash of a file, otherwise the
    name.
    """
    if not spec.startswith("file:"):
        return spec
    return f"file:{hashlib.sha256(_read(_file(spec[5:])).encode()).hexdigest()}"


def _file(rest: str) -> Path:
    path = Path(rest).expanduser()
    return path / "tokenizer.json" if path.is_dir() else path


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        text = getattr(error, "strerror", None) or reason(error)
        raise OptionError(
            f"could not read the tokenizer {path}: {text}. Pass a tokenizer.json."
        ) from error


def _from_hub(name: str) -> Path:
    """The `tokenizer.json` in the hub's local cache, downloaded if needed (no test does that)."""
    try:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "hf") from error
    try:
        cached = try_to_load_from_cache(name, "tokenizer.json")
        return Path(cached if isinstance(cached, str) else hf_hub_download(name, "tokenizer.json"))
    except Exception as error:  # no network, no such repository, no such file
        raise OptionError(
            f"hub:{name}: its tokenizer.json is not in the local cache, and the download failed: "
            f"{reason(error)}. Pass a local one as file:PATH/tokenizer.json."
        ) from error
