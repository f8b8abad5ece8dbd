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
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from mupscale.data.corpus import Document, Library, Part, fingerprint
from mupscale.data.hub import HubSource
from mupscale.data.storing import fault_in, read_chunks, read_object, set_aside, write_chunks
from mupscale.data.subwords import Subwords
from mupscale.data.tokenizing import Tokenizer
from mupscale.errors import OptionError
from mupscale.records import locked, write_whole

META = "meta.json"
FILES: dict[Part, str] = {"train": "train.bin", "validation": "val.bin"}
SHARD_DOCUMENTS = 10_000
_ENCODED_AT_ONCE = 128

Report = Callable[[int], None]


TokenSource = Library | HubSource
"""Documents in a fixed order, readable from any position. Its `identity` changes whenever the
documents change.
"""


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

    def shard(self, number: int, file: str) -> Path:
        return self.shards / f"{number:05d}.{file}"


def prepare(job: TokenizingJob, report: Report) -> None:
    """Complete the folder; `report` is called with the number of documents just processed.

    While shards are concatenated, the tokens take twice their space on disk.
    """
    meta = job.folder / META
    if meta.exists() and not job.shards.exists() and fault_in(meta, FILES.values()) is None:
        return  # without the lock, so that a read-only disk works too
    lock = job.folder.with_name(f"{job.folder.name}.lock")
    with locked(lock, job.folder, seconds=math.inf):
        fault = fault_in(meta, FILES.values()) if meta.exists() else None
        if fault:
            set_aside(job.folder, fault)
        if not meta.exists():
            tokenizer = job.make_tokenizer()  # first, because it fails faster than the source
            source = job.open_source()
            _begin(job, source, tokenizer)
            _finish(job, source, tokenizer, list(_shards(job, source, tokenizer, report)))
        shutil.rmtree(job.shards, ignore_errors=True)


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
) -> Iterator[int]:
    """The number of documents in each shard; the last one is the first that is not full."""
    documents, position = iter(()), -1
    for number in count():
        start = number * job.shard_documents
        size = _kept(job, number)
        if size is not None:
            report(size)
        else:
            documents = documents if position == start else source.documents(start)
            group = islice(documents, job.shard_documents)
            size = _encode(job, number, group, tokenizer, report)
            position = start + size
        yield size
        if size < job.shard_documents:
            return


def _kept(job: TokenizingJob, number: int) -> int | None:
    """The number of documents in a shard that is intact."""
    manifest, *files = (job.shard(number, file) for file in ("json", *FILES.values()))
    if not manifest.exists():
        return None
    documents = (read_object(manifest) or {}).get("documents")
    fault = fault_in(manifest, [path.name for path in files])
    if fault is None and isinstance(documents, int):
        return documents
    for path in (manifest, *files):
        if path.exists():  # kept outside of the shards' folder, which is deleted at the end
            set_aside(path, fault or f"{manifest} is not a manifest", into=job.folder)
    return None


def _encode(
    job: TokenizingJob,
    number: int,
    documents: Iterator[Document],
    tokenizer: Tokenizer,
    report: Report,
) -> int:
    done = 0
    tokens: dict[Part, list[bytes]] = {part: [] for part in FILES}
    dtype = np.min_scalar_type(tokenizer.vocabulary - 1).newbyteorder("<")
    while group := list(islice(documents, _ENCODED_AT_ONCE)):
        for document, encoded in zip(group, tokenizer.encode(group), strict=True):
            tokens[document.part].append(encoded.astype(dtype).tobytes())
        done += len(group)
        report(len(group))
    stored: dict[str, Any] = {}
    for part, file in FILES.items():
        path = job.shard(number, file)
        stored[path.name] = write_chunks(path, tokens[part])
    manifest = json.dumps({"documents": done, "files": stored}).encode()
    write_whole(job.shard(number, "json"), manifest)
    return done


def _finish(
    job: TokenizingJob, source: TokenSource, tokenizer: Tokenizer, shards: list[int]
) -> None:
    files = {
        name: write_chunks(
            job.folder / name, read_chunks(job.shard(n, name) for n in range(len(shards)))
        )
        for name in FILES.values()
    }
    if not files["train.bin"]["bytes"]:
        raise OptionError(f"{job.name}: no documents to train on. Name a corpus with text.")
    if isinstance(tokenizer, Subwords):
        path = job.folder / "tokenizer.json"
        files[path.name] = write_chunks(path, [tokenizer.json.encode()])
    hashes = (file["sha256"] for file in files.values())
    meta = {
        "vocab_size": tokenizer.vocabulary,
        "dtype": np.min_scalar_type(tokenizer.vocabulary - 1).name,
        "tokenizer": tokenizer.name,
        "fingerprint": fingerprint(source.identity, tokenizer.identity, *hashes),
        "source": source.identity,
        "documents": sum(shards),
        "files": files,
    }
    write_whole(job.folder / META, json.dumps(meta, indent=1).encode())
