"""Tokens prepared once into a folder: shards that survive a kill, then `train.bin`, `val.bin` and
the manifest, last.

A shard is two files of tokens and a JSON file with their sizes and SHA-256, each renamed into
place. A second start keeps the shards that are as they were written, sets aside those that are not,
and encodes only what is missing. The finished folder is one that `bin:` opens, and that nanoGPT
reads as long as the tokens take two bytes.
"""

import json
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
    locked,
    read_chunks,
    read_object,
    set_aside,
    stored_files,
    write_chunks,
)
from mupscale.data.subwords import Subwords
from mupscale.data.tokenizing import Tokenizer
from mupscale.errors import OptionError
from mupscale.records import write_whole

META = "meta.json"
FILES: dict[Part, str] = {"train": "train.bin", "validation": "val.bin"}
SHARD_DOCUMENTS = 10_000
_ENCODED_AT_ONCE = 128
_SHARDS = "shards"


class TokenSource(Protocol):
    """Documents in an order that never changes, from any one of them on."""

    @property
    def identity(self) -> str:
        """Another one whenever the documents would be others."""
        ...

    def documents(self, start: int) -> Iterator[Document]: ...


@dataclass(frozen=True)
class TokenizingJob:
    """What is to be prepared, and where. Source and tokenizer are made only if there is work left
    to do.
    """

    name: str
    folder: Path
    open_source: Callable[[], TokenSource]
    make_tokenizer: Callable[[], Tokenizer]
    shard_documents: int = SHARD_DOCUMENTS


@dataclass(frozen=True)
class Shard:
    documents: int
    files: dict[Part, Path]


def prepare(job: TokenizingJob, report: Callable[[int], None]) -> None:
    """Bring the folder to completion; `report` is called with the number of documents just done.

    While the shards are put together, the tokens take twice their room.
    """
    shards = job.folder / _SHARDS
    if (job.folder / META).exists() and not shards.exists() and _fault(job.folder) is None:
        return  # without the lock, so a disk that may only be read will do
    with locked(job.folder):
        fault = _fault(job.folder) if (job.folder / META).exists() else None
        if fault:
            set_aside(job.folder, fault)
        if not (job.folder / META).exists():
            tokenizer = job.make_tokenizer()  # the cheaper of the two to be wrong about
            _run(job, job.open_source(), tokenizer, report)
        shutil.rmtree(shards, ignore_errors=True)  # they are in the files now


def _fault(folder: Path) -> str | None:
    meta = read_object(folder / META)
    files = stored_files(meta.get("files")) if meta else None
    if not files or not set(FILES.values()) <= files.keys():
        return f"{folder / META} is not a manifest"
    return difference(folder, files)


def _run(
    job: TokenizingJob, source: TokenSource, tokenizer: Tokenizer, report: Callable[[int], None]
) -> None:
    _begin(
        job.folder / _SHARDS,
        {
            "source": source.identity,
            "tokenizer": tokenizer.identity,
            "documents": job.shard_documents,
        },
    )
    shards = list(_shards(job, source, tokenizer, report))
    _finish(job, source, tokenizer, shards)


def _begin(folder: Path, settings: dict[str, Any]) -> None:
    """Shards of other documents or another tokenizer are not mixed with these."""
    path = folder / "job.json"
    if read_object(path) != settings:
        if any(folder.glob("[0-9]*")):
            set_aside(folder, f"{folder} was begun from other documents or with another tokenizer")
        write_whole(path, json.dumps(settings).encode())
    for folder_of_files in (folder, folder.parent):
        for torn in folder_of_files.glob(".*"):  # what a killed writer left: nothing reads these
            torn.unlink()


def _shards(
    job: TokenizingJob, source: TokenSource, tokenizer: Tokenizer, report: Callable[[int], None]
) -> Iterator[Shard]:
    """Every shard, in order; the last one is the first that is not full."""
    documents, position = iter(()), -1
    for number in count():
        start = number * job.shard_documents
        shard = _kept(job.folder / _SHARDS, number)
        if shard:
            report(shard.documents)
        else:
            documents = documents if position == start else source.documents(start)
            shard = _encode(
                job.folder / _SHARDS,
                number,
                islice(documents, job.shard_documents),
                tokenizer,
                report,
            )
            position = start + shard.documents
        yield shard
        if shard.documents < job.shard_documents:
            return


def _paths(folder: Path, number: int) -> tuple[Path, dict[Part, Path]]:
    stem = f"{number:05d}"
    files: dict[Part, Path] = {part: folder / f"{stem}.{file}" for part, file in FILES.items()}
    return folder / f"{stem}.json", files


def _kept(folder: Path, number: int) -> Shard | None:
    manifest, files = _paths(folder, number)
    if not manifest.exists():
        return None
    values = read_object(manifest) or {}
    stored = stored_files(values.get("files"))
    documents = values.get("documents")
    if (
        not stored
        or stored.keys() != {path.name for path in files.values()}
        or not isinstance(documents, int)
    ):
        fault = f"{manifest} is not a manifest"
    else:
        fault = difference(folder, stored)
        if fault is None:
            return Shard(documents, files)
    for path in (manifest, *files.values()):
        if path.exists():
            set_aside(
                path, fault, into=folder.parent
            )  # the folder of shards goes when they are put together
    return None


def _encode(
    folder: Path,
    number: int,
    documents: Iterator[Document],
    tokenizer: Tokenizer,
    report: Callable[[int], None],
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
    files: dict[str, Stored] = {}
    for part, name in FILES.items():
        files[name] = write_chunks(
            job.folder / name, read_chunks(shard.files[part] for shard in shards)
        )
    if not files["train.bin"].bytes:
        raise OptionError(
            f"{job.name}: no document is left to train on. Name a corpus that holds text."
        )
    if isinstance(tokenizer, Subwords):
        files["tokenizer.json"] = write_chunks(
            job.folder / "tokenizer.json", [tokenizer.json.encode()]
        )
    meta = {
        "vocab_size": tokenizer.vocabulary,
        "dtype": np.min_scalar_type(tokenizer.vocabulary - 1).name,
        "tokenizer": tokenizer.name,
        "fingerprint": fingerprint(
            source.identity, tokenizer.identity, *(file.sha256 for file in files.values())
        ),
        "source": source.identity,
        "documents": sum(shard.documents for shard in shards),
        "files": {name: asdict(file) for name, file in files.items()},
    }
    write_whole(job.folder / META, json.dumps(meta, indent=1).encode())
