"""`bin:PATH`: tokens on the disk as nanoGPT writes them, mapped into memory and never read as a
whole.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mupscale.data.corpus import Corpus, Tokens, fingerprint
from mupscale.data.storing import difference, read_object, stored_files
from mupscale.errors import OptionError, UnknownNameError
from mupscale.targets.settings import Value

DTYPES = ("uint16", "uint32", "uint8")
_SETTINGS = ("vocab", "dtype")
# Of a large file, this many blocks of this many tokens are checked and enter the fingerprint,
# evenly spread.
_BLOCKS, _BLOCK_TOKENS = 64, 2**16


@dataclass(frozen=True)
class Format:
    """How to read the files."""

    vocabulary: int
    dtype: str


def open_bin(path: Path, settings: Mapping[str, Value], name: str) -> Corpus:
    """A folder with `train.bin` and `val.bin`, or one file whose last 1 % is held out.

    The vocabulary comes from `vocab=…` or from `vocab_size` in a `meta.json` beside the files, the
    type of the tokens from `dtype` in either (uint16 unless told otherwise). nanoGPT's `meta.pkl`
    is not read: a pickle runs code. If the manifest lists sizes and SHA-256, the files must match
    it. Otherwise 64 blocks of each part are checked against the vocabulary and make the
    fingerprint: a change between them is not seen there, but `Batches` checks every token.
    """
    for key in settings:
        if key not in _SETTINGS:
            raise UnknownNameError("setting of bin:", key, _SETTINGS)
    if not path.exists():
        raise OptionError(
            f"{name}: there is no file or folder {path} in {Path.cwd()}. Mend the path."
        )
    folder = path if path.is_dir() else path.parent
    meta = read_object(folder / "meta.json") or {}
    form = _format(folder, meta, settings, name)
    if path.is_dir():
        _check_manifest(folder, meta, name)
        train, validation = (
            _map(folder / file, form.dtype, name) for file in ("train.bin", "val.bin")
        )
    else:
        tokens = _map(path, form.dtype, name)
        cut = len(tokens) - len(tokens) // 100
        train, validation = tokens[:cut], tokens[cut:]
    sketch = fingerprint(
        _sketch(train, form, f"{name}: train"), _sketch(validation, form, f"{name}: validation")
    )
    listed = meta.get("fingerprint") if path.is_dir() and meta.get("files") else None
    return Corpus(
        name=name,
        vocabulary=form.vocabulary,
        fingerprint=str(listed or sketch),
        tokenizer=str(meta.get("tokenizer", "unknown")),
        train=train,
        validation=validation,
        folder=folder,
    )


def _format(
    folder: Path, meta: Mapping[str, Any], settings: Mapping[str, Value], name: str
) -> Format:
    vocabulary = settings.get("vocab", meta.get("vocab_size"))
    if vocabulary is None:
        raise OptionError(
            f"{name}: the size of the vocabulary is not known. Write bin:PATH,vocab=50257 "
            "(GPT-2's), or put "
            f'{{"vocab_size": 50257}} into {folder / "meta.json"}. A meta.pkl is not read.'
        )
    if not isinstance(vocabulary, int) or isinstance(vocabulary, bool) or vocabulary < 1:
        raise OptionError(
            f"{name}: vocab={vocabulary!r} is not a positive whole number. Write vocab=50257."
        )
    dtype = settings.get("dtype", meta.get("dtype", "uint16"))
    if dtype not in DTYPES:
        raise UnknownNameError("dtype of bin:", dtype, DTYPES)
    return Format(vocabulary, str(dtype))


def _check_manifest(folder: Path, meta: Mapping[str, Any], name: str) -> None:
    files = stored_files(meta.get("files"))
    fault = difference(folder, files) if files else None
    if fault:
        raise OptionError(f"{name}: {fault}. Copy or prepare it again.")


def _map(path: Path, dtype: str, name: str) -> Tokens:
    if not path.is_file():
        raise OptionError(
            f"{name}: there is no file {path}. Name a folder with train.bin and val.bin, or one "
            "file."
        )
    size, kind = path.stat().st_size, np.dtype(dtype).newbyteorder("<")
    if size % kind.itemsize:
        raise OptionError(
            f"{name}: {path} has {size} bytes, which is not a multiple of {kind.itemsize} "
            f"({dtype}): it is cut short, "
            "or of another type. Copy it again, or set dtype=…"
        )
    if not size:
        return np.zeros(0, dtype=kind)
    if not os.access(path, os.R_OK):
        raise OptionError(f"{name}: {path} may not be read. Mend its permissions.")
    return np.asarray(np.memmap(path, dtype=kind, mode="r"))


def _sketch(tokens: Tokens, form: Format, where: str) -> str:
    parts: list[bytes] = [f"{len(tokens)} {form}".encode()]
    for start, block in blocks(tokens):
        if block.max() >= form.vocabulary:
            place = start + int((block >= form.vocabulary).argmax())
            raise OptionError(
                f"{where} holds the token {tokens[place]} at {place}, and the vocabulary ends at "
                f"{form.vocabulary - 1}. Set vocab= to what the tokens were made with, or dtype= "
                f"(now {form.dtype})."
            )
        parts.append(block.tobytes())
    return fingerprint(*parts)


def blocks(
    tokens: Tokens, number: int = _BLOCKS, size: int = _BLOCK_TOKENS
) -> Iterator[tuple[int, Tokens]]:
    """Stretches of an array with their starts: all of it if it is short, else evenly spread, both
    ends included.

    >>> [start for start, _ in blocks(np.zeros(1000, dtype=np.uint8), number=4, size=10)]
    [0, 330, 660, 990]
    """
    short = len(tokens) <= number * size
    starts = (
        range(0, len(tokens), size)
        if short
        else [i * (len(tokens) - size) // (number - 1) for i in range(number)]
    )
    for start in starts:
        yield start, tokens[start : start + size]
