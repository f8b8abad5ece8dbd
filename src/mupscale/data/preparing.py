"""Tokenize once into a folder: first shards that survive a kill, then `train.bin`, `val.bin` and
the manifest, which is written last.

A shard is two token files and a JSON file with their sizes and SHA-256, each renamed into place.
The next start keeps intact shards, sets damaged ones aside and encodes only what is missing. The
finished folder can be opened with `bin:`, and by nanoGPT if tokens take two bytes.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mupscale.data.corpus import Document, Part, fingerprint
from mupscale.data.storing import (
    Stored,
    difference,
    read_chunks,
    read_object,
    set_aside,
    stored_files,
    write_chunks,
)
from mupscale.data.subwords import Subwords
from mupscale.data.tokenizing import Tokenizer
from mupscale.errors import OptionError
from mupscale.records import locked, write_whole

META = "meta.json"
FILES: dict[Part, str] = {"train": "train.bin", "validation": "val.bin"}
SHARD_DOCUMENTS = 10_000
_ENCODED_AT_ONCE = 128

Report = Callable[[int], None]


class TokenSource(Protocol):
    """Documents in a fixed order, readable from any position."""

    @property
    def identity(self) -> str:
        """Changes whenever the documents change."""
        ...

    def documents(self, start: int) -> Iterator[Document]: ...


@dataclass(frozen=True)
class TokenizingJob:
    """What to tokenize, and where. Source and tokenizer are opened only if work is left."""

    name: str
    folder: Path
    open_source: Callable[[], TokenSource]
    make_tokenizer: Callable[[], Tokenizer]
    shard_documents: int = SHARD_DOCUMENTS

    @property
    def shards(self) -> Path:
        return self.folder / "shards"


@dataclass(frozen=True)
class Shard:
    documents: int
    files: dict[Part, Path]


def prepare(job: TokenizingJob, report: Report) -> None:
    """Complete the folder; `report` is called with the number of documents just processed.

    While shards are concatenated, the tokens take twice their space on disk.
    """
    meta = job.folder / META
    if meta.exists() and not job.shards.exists() and _fault(job.folder) is None:
        return  # without the lock, so that a read-only disk works too
    lock = job.folder.with_name(f"{job.folder.name}.lock")
    with locked(lock, job.folder, seconds=math.inf):
        fault = _fault(job.folder) if meta.exists() else None
        if fault:
            set_aside(job.folder, fault)
        if not meta.exists():
            tokenizer = job.make_tokenizer()  # first, because it fails faster than the source
            source = job.open_source()
            _begin(job, source, tokenizer)
            _finish(job, source, tokenizer, list(_shards(job, source, tokenizer, report)))
        shutil.rmtree(job.shards, ignore_errors=True)


def _fault(folder: Path) -> str | None:
    meta = read_object(folder / META)
    files = stored_files(meta.get("files")) if meta else None
    if not files or not set(FILES.values()) <= files.keys():
        return f"{folder / META} is not a manifest"
    return difference(folder, files)


def _begin(job: TokenizingJob, source: TokenSource, tokenizer: Tokenizer) -> None:
    """Set shards aside that were made from other documents or with another tokenizer."""
    settings: dict[str, Any] = {
        "source": source.identity,
        "tokenizer": tokenizer.identity,
        "documents": job.shard_documents,
    }
    path = job.shards / "job.json"
    if read_object(path) != settings:
        if any(job.shards.glob("[0-9]*")):
            set_aside(
                job.shards, f"{job.shards} was begun from other documents or another tokenizer"
            )
        write_whole(path, json.dumps(settings).encode())
    for folder in (job.shards, job.folder):
        for torn in folder.glob(".*"):  # temporary files of a killed writer
            torn.unlink()


def _shards(
    job: TokenizingJob, source: TokenSource, tokenizer: Tokenizer, report: Report
) -> Iterator[Shard]:
    """Every shard, in order; the last one is the first that is not full."""
    documents, position = iter(()), -1
    for number in count():
        start = number * job.shard_documents
        shard = _kept(job.shards, number)
        if shard:
            report(shard.documents)
        else:
            documents = documents if position == start else source.documents(start)
            group = islice(documents, job.shard_documents)
            shard = _encode(job.shards, number, group, tokenizer, report)
            position = start + shard.documents
        yield shard
        if shard.documents < job.shard_documents:
            return


def _paths(folder: Path, number: int) -> tuple[Path, dict[Part, Path]]:
    files: dict[Part, Path] = {p: folder / f"{number:05d}.{file}" for p, file in FILES.items()}
    return folder / f"{number:05d}.json", files


def _kept(folder: Path, number: int) -> Shard | None:
    manifest, files = _paths(folder, number)
    if not manifest.exists():
        return None
    values = read_object(manifest) or {}
    stored, documents = stored_files(values.get("files")), values.get("documents")
    names = {path.name for path in files.values()}
    if not stored or stored.keys() != names or not isinstance(documents, int):
        fault = f"{manifest} is not a manifest"
    else:
        fault = difference(folder, stored)
        if fault is None:
            return Shard(documents, files)
    for path in (manifest, *files.values()):
        if path.exists():  # kept outside of the shards' folder, which is deleted at the end
            set_aside(path, fault, into=folder.parent)
    return None


def _encode(
    folder: Path, number: int, documents: Iterator[Document], tokenizer: Tokenizer, report: Report
) -> Shard:
    done = 0
    tokens: dict[Part, list[bytes]] = {part: [] for part in FILES}
    dtype = np.min_scalar_type(tokenizer.vocabulary - 1).newbyteorder("<")
    while group := list(islice(documents, _ENCODED_AT_ONCE)):
        for document, encoded in zip(group, tokenizer.encode(group), strict=True):
            tokens[document.part].append(encoded.astype(dtype).tobytes())
        done += len(group)
        report(len(group))
    manifest, files = _paths(folder, number)
    stored = {path.name: asdict(write_chunks(path, tokens[part])) for part, path in files.items()}
    write_whole(manifest, json.dumps({"documents": done, "files": stored}).encode())
    return Shard(done, files)


def _finish(
    job: TokenizingJob, source: TokenSource, tokenizer: Tokenizer, shards: list[Shard]
) -> None:
    files: dict[str, Stored] = {
        name: write_chunks(job.folder / name, read_chunks(shard.files[part] for shard in shards))
        for part, name in FILES.items()
    }
    if not files["train.bin"].bytes:
        raise OptionError(f"{job.name}: no documents to train on. Name a corpus with text.")
    if isinstance(tokenizer, Subwords):
        path = job.folder / "tokenizer.json"
        files[path.name] = write_chunks(path, [tokenizer.json.encode()])
    hashes = (file.sha256 for file in files.values())
    meta = {
        "vocab_size": tokenizer.vocabulary,
        "dtype": np.min_scalar_type(tokenizer.vocabulary - 1).name,
        "tokenizer": tokenizer.name,
        "fingerprint": fingerprint(source.identity, tokenizer.identity, *hashes),
        "source": source.identity,
        "documents": sum(shard.documents for shard in shards),
        "files": {name: asdict(file) for name, file in files.items()},
    }
    write_whole(job.folder / META, json.dumps(meta, indent=1).encode())
