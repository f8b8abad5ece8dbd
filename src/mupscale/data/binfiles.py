"""`bin:PATH`: token files in nanoGPT's format, memory-mapped and never read as a whole."""

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
# A large file is checked and fingerprinted by this many evenly spaced blocks of this many tokens.
_BLOCKS, _BLOCK_TOKENS = 64, 2**16


@dataclass(frozen=True)
class Format:
    """How to read the files. Its repr is part of the fingerprint."""

    vocabulary: int
    dtype: str


def open_bin(path: Path, settings: Mapping[str, Value], name: str) -> Corpus:
    """Open a folder with `train.bin` and `val.bin`, or one file whose last 1 % is held out.

    The vocabulary comes from `vocab=…` or from `vocab_size` in a `meta.json` beside the files, the
    type of the tokens from `dtype` in either (default: uint16). nanoGPT's `meta.pkl` is not read:
    a pickle runs code. If the manifest lists sizes and SHA-256, the files must match it. Otherwise
    64 blocks of each part are checked against the vocabulary and form the fingerprint. A change
    between these blocks goes unnoticed here, but `Batches` checks every token it reads.
    """
    for key in settings:
        if key not in ("vocab", "dtype"):
            raise UnknownNameError("setting of bin:", key, ("vocab", "dtype"))
    if not path.exists():
        raise OptionError(f"{name}: no file or folder {path} in {Path.cwd()}. Fix the path.")
    folder = path if path.is_dir() else path.parent
    meta = read_object(folder / "meta.json") or {}
    form = _format(folder, meta, settings, name)
    listed = None
    if path.is_dir():
        fault = difference(folder, stored_files(meta.get("files")))
        if fault:
            raise OptionError(f"{name}: {fault}. Copy or prepare it again.")
        train, validation = (_map(folder / f, form.dtype, name) for f in ("train.bin", "val.bin"))
        listed = meta.get("fingerprint") if meta.get("files") else None
    else:
        tokens = _map(path, form.dtype, name)
        cut = len(tokens) - len(tokens) // 100
        train, validation = tokens[:cut], tokens[cut:]
    parts = {"train": train, "validation": validation}
    sketch = fingerprint(*(_sketch(t, form, f"{name}: {part}") for part, t in parts.items()))
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
            f"{name}: unknown vocabulary size. Write bin:PATH,vocab=50257 (GPT-2's), or put "
            f'{{"vocab_size": 50257}} into {folder / "meta.json"}. A meta.pkl is not read.'
        )
    if not isinstance(vocabulary, int) or isinstance(vocabulary, bool) or vocabulary < 1:
        raise OptionError(
            f"{name}: vocab={vocabulary!r} is not a positive integer. Write vocab=50257."
        )
    dtype = settings.get("dtype", meta.get("dtype", "uint16"))
    if dtype not in DTYPES:
        raise UnknownNameError("dtype of bin:", dtype, DTYPES)
    return Format(vocabulary, str(dtype))


def _map(path: Path, dtype: str, name: str) -> Tokens:
    if not path.is_file():
        raise OptionError(
            f"{name}: no file {path}. Name a folder with train.bin and val.bin, or one file."
        )
    size, kind = path.stat().st_size, np.dtype(dtype).newbyteorder("<")
    if size % kind.itemsize:
        raise OptionError(
            f"{name}: {path} has {size} bytes, which is not a multiple of {kind.itemsize} "
            f"({dtype}). It is truncated or has another type. Copy it again, or set dtype=…"
        )
    if not size:
        return np.zeros(0, dtype=kind)
    if not os.access(path, os.R_OK):
        raise OptionError(f"{name}: no permission to read {path}. Change its permissions.")
    return np.asarray(np.memmap(path, dtype=kind, mode="r"))


def _sketch(tokens: Tokens, form: Format, where: str) -> str:
    parts: list[bytes] = [f"{len(tokens)} {form}".encode()]
    for start, block in blocks(tokens):
        if block.max() >= form.vocabulary:
            place = start + int((block >= form.vocabulary).argmax())
            raise OptionError(
                f"{where} holds the token {tokens[place]} at position {place}, but the vocabulary "
                f"ends at {form.vocabulary - 1}. Set vocab= to the size of the tokenizer's "
                f"vocabulary, or dtype= (now {form.dtype})."
            )
        parts.append(block.tobytes())
    return fingerprint(*parts)


def blocks(
    tokens: Tokens, number: int = _BLOCKS, size: int = _BLOCK_TOKENS
) -> Iterator[tuple[int, Tokens]]:
    """Blocks of an array with their starts: all of a short array, otherwise evenly spaced ones,
    both ends included.

    >>> [start for start, _ in blocks(np.zeros(1000, dtype=np.uint8), number=4, size=10)]
    [0, 330, 660, 990]
    """
    if len(tokens) <= number * size:
        starts = range(0, len(tokens), size)
    else:
        starts = (i * (len(tokens) - size) // (number - 1) for i in range(number))
    for start in starts:
        yield start, tokens[start : start + size]
