"""Preparation is finished or it is continued: what was killed, torn or changed is never used."""

import hashlib
import json
import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mupscale.data import open_corpus, storing
from mupscale.data.corpus import Document, Library
from mupscale.data.hub import HubText, open_hub
from mupscale.data.preparing import TokenizingJob, prepare
from mupscale.data.tokenizing import ByteTokenizer
from mupscale.errors import MissingExtraError, OptionError, StorageError, UnknownNameError

DOCUMENTS = [
    Document(f"{n}", "validation" if n % 5 == 4 else "train", f"document {n}\n".encode())
    for n in range(7)
]


def job_in(folder: Path, documents=DOCUMENTS, size: int = 3, identity: str = "v1") -> TokenizingJob:
    return TokenizingJob(
        "made", folder, lambda: Library(identity, documents), ByteTokenizer, shard_documents=size
    )


def silent(_done: int) -> None:
    pass


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.fixture
def undisturbed(tmp_path):
    prepare(job_in(tmp_path / "undisturbed"), silent)
    return tree(tmp_path / "undisturbed")


def test_the_files_are_the_documents_in_order_and_the_manifest_describes_them(undisturbed):
    assert undisturbed.keys() == {"train.bin", "val.bin", "meta.json"}
    for part, name in (("train", "train.bin"), ("validation", "val.bin")):
        assert undisturbed[name] == b"".join(d.content for d in DOCUMENTS if d.part == part)
    files = json.loads(undisturbed["meta.json"])["files"]
    for name, stored in files.items():
        assert stored == {
            "bytes": len(undisturbed[name]),
            "sha256": hashlib.sha256(undisturbed[name]).hexdigest(),
        }


@pytest.mark.parametrize("size", [1, 2, 7, 8, 100])
def test_the_size_of_shards_does_not_show(size, undisturbed, tmp_path):
    prepare(job_in(tmp_path / "other", size=size), silent)
    assert tree(tmp_path / "other") == undisturbed


# One process forks for each write point and dies there as by kill -9: no cleanup, no flush.
DRILL = """
import os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_preparing import job_in, silent
from mupscale.data.preparing import prepare

def die_at(point):
    seen = 0
    def counted(name):
        real = getattr(os, name)
        def call(*args, **kwargs):
            nonlocal seen
            seen += 1
            if seen == point:
                os._exit(9)
            return None if name == "fsync" else real(*args, **kwargs)  # needed for power cuts only
        setattr(os, name, call)
    for name in ("fsync", "replace", "rename", "unlink", "rmdir", "chmod"):
        counted(name)

for point in range(1, 10**6):
    child = os.fork()
    if not child:
        die_at(point)
        prepare(job_in(Path({folder!r}) / str(point)), silent)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        print(point)
        break
"""


def test_killed_at_any_write_point_it_continues_to_the_same_bytes(
    undisturbed, tmp_path, monkeypatch
):
    code = DRILL.format(here=str(Path(__file__).parent), folder=str(tmp_path / "killed"))
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    points = int(out.stdout)
    assert (
        points > 60
    )  # 13 files, each with a file fsync, chmod, replace and folder fsync, and the shards' removal
    saved = 0
    for point in range(1, points):
        folder = tmp_path / "killed" / str(point)
        done = []
        prepare(job_in(folder), done.append)
        assert tree(folder) == undisturbed, f"killed at write point {point}"
        assert not done or sum(done) == len(DOCUMENTS)  # what was kept is reported too
        saved += not done
    assert saved > 0  # some were killed when the manifest was already there


def test_who_reads_the_old_file_keeps_it_while_a_new_one_is_written(tmp_path):
    path = tmp_path / "file"
    storing.write_chunks(path, [b"old"])
    with path.open("rb") as reader:
        stored = storing.write_chunks(path, iter([b"n", b"", b"ew"]))
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
    assert stored == {"bytes": 3, "sha256": hashlib.sha256(b"new").hexdigest()}


def test_only_what_is_missing_is_encoded_again(tmp_path, undisturbed):
    encoded = []

    class Counting(ByteTokenizer):
        def encode(self, documents):
            encoded.extend(d.name for d in documents)
            if "6" in encoded:
                raise KeyboardInterrupt
            return super().encode(documents)

    job = job_in(tmp_path / "job")
    with pytest.raises(KeyboardInterrupt):
        prepare(replace(job, make_tokenizer=Counting), silent)
    assert encoded == list("0123456")
    encoded.clear()
    with pytest.raises(KeyboardInterrupt):
        prepare(replace(job, make_tokenizer=Counting), silent)
    assert encoded == ["6"]
    prepare(job, silent)
    assert tree(tmp_path / "job") == undisturbed


@pytest.fixture
def unfinished(tmp_path):
    """Killed when the shards were done."""
    job = job_in(tmp_path / "job")
    real = storing.write_chunks

    def stop_at_the_end(path, chunks):
        if path.name == "train.bin":
            raise KeyboardInterrupt
        return real(path, chunks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mupscale.data.preparing.write_chunks", stop_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            prepare(job, silent)
    return job


def without_set_aside(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if "set-aside" not in name}


@pytest.mark.parametrize("file", ["00001.train.bin", "00001.val.bin", "00001.json"])
@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b"\0" + b[1:], lambda b: b"", lambda b: b + b"x"]
)
def test_a_shard_that_was_torn_or_changed_is_set_aside_and_made_again(
    file, damage, unfinished, undisturbed
):
    path = unfinished.folder / "shards" / file
    path.write_bytes(damage(path.read_bytes()) or b"x")
    with pytest.warns(UserWarning, match=r"00001\..*kept as .*set-aside-1 and prepared again"):
        prepare(unfinished, silent)
    assert without_set_aside(tree(unfinished.folder)) == undisturbed


def test_a_shard_set_aside_outlives_the_shards(unfinished):
    path = unfinished.folder / "shards" / "00001.train.bin"
    path.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="kept as"):
        prepare(unfinished, silent)
    assert b"damaged" in tree(unfinished.folder).values()


def test_a_shard_without_its_tokens_is_made_again(unfinished, undisturbed):
    (unfinished.folder / "shards" / "00000.val.bin").unlink()
    with pytest.warns(UserWarning, match=r"00000\.val\.bin is missing"):
        prepare(unfinished, silent)
    assert without_set_aside(tree(unfinished.folder)) == undisturbed


@pytest.mark.parametrize("known", [True, False])
def test_shards_of_other_documents_are_not_mixed_in(known, unfinished):
    if not known:
        (unfinished.folder / "shards" / "job.json").unlink()
    others = [replace(d, content=d.content.upper()) for d in DOCUMENTS]
    with pytest.warns(UserWarning, match="begun from other documents"):
        prepare(job_in(unfinished.folder, others, identity="v2"), silent)
    expected = b"".join(d.content for d in others if d.part == "train")
    assert (unfinished.folder / "train.bin").read_bytes() == expected


@pytest.mark.parametrize("file", ["train.bin", "val.bin", "meta.json"])
@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"?" + b[1:]])
def test_a_finished_folder_that_changed_is_set_aside_and_made_again(
    file, damage, undisturbed, tmp_path
):
    job = job_in(tmp_path / "undisturbed")
    path = job.folder / file
    path.write_bytes(damage(path.read_bytes()))
    damaged = path.read_bytes()
    with pytest.warns(UserWarning, match=f"{file} .*kept as .*undisturbed.set-aside-1 and"):
        prepare(job, silent)
    assert tree(job.folder) == undisturbed
    assert (tmp_path / "undisturbed.set-aside-1" / file).read_bytes() == damaged


def test_a_large_file_is_hashed_again_only_when_it_changed(undisturbed, tmp_path, monkeypatch):
    job = job_in(tmp_path / "undisturbed")
    hashed = []
    real = storing._sha256
    monkeypatch.setattr(storing, "ALWAYS_HASHED_BYTES", 20)
    monkeypatch.setattr(storing, "_sha256", lambda path: hashed.append(path.name) or real(path))
    prepare(job, silent)
    assert hashed == ["train.bin", "val.bin"]
    prepare(job, silent)
    prepare(job, silent)
    assert hashed == ["train.bin", "val.bin"] + ["val.bin"] * 2  # val.bin counts as small
    (job.folder / "train.bin").write_bytes(b"?" + undisturbed["train.bin"][1:])
    with pytest.warns(UserWarning, match=r"train\.bin has changed"):
        prepare(job, silent)


def test_a_finished_folder_needs_no_source_and_no_right_to_write(
    undisturbed, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "mupscale.data.preparing.locked", lambda *_, **__: pytest.fail("a lock is a write")
    )
    job = job_in(tmp_path / "undisturbed")
    prepare(
        replace(
            job,
            open_source=lambda: pytest.fail("opened"),
            make_tokenizer=lambda: pytest.fail("made"),
        ),
        silent,
    )


RACE = """
import os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_preparing import job_in
from mupscale.data.preparing import prepare

def start():
    child = os.fork()
    if not child:
        done = []
        prepare(job_in(Path({folder!r})), done.append)
        os.write(1, f"{{sum(done)}}\\n".encode())
        os._exit(0)
    return child

for child in [start() for _ in range(3)]:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_of_several_processes_one_prepares(tmp_path, undisturbed):
    code = RACE.format(here=str(Path(__file__).parent), folder=str(tmp_path / "job"))
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sums = [int(line) for line in out.stdout.split()]
    assert sorted(sums) == [0, 0, len(DOCUMENTS)]
    assert tree(tmp_path / "job") == undisturbed


def test_a_full_disk_is_an_error_of_its_own_and_the_rest_is_done_later(
    tmp_path, undisturbed, monkeypatch
):
    job = job_in(tmp_path / "job")
    real, calls = storing.os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 9:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(storing.os, "fsync", full)
    with pytest.raises(StorageError, match=r"could not write .*/job/.*: No space left on device"):
        prepare(job, silent)
    assert not list(job.folder.rglob(".*"))
    prepare(job, silent)
    assert tree(job.folder) == undisturbed


def test_no_document_at_all_is_an_error(tmp_path):
    with pytest.raises(OptionError, match="no documents to train on"):
        prepare(job_in(tmp_path / "job", documents=[]), silent)


def test_a_prepared_folder_is_one_for_bin(undisturbed, tmp_path):
    folder = tmp_path / "undisturbed"
    corpus = open_corpus(f"bin:{folder}")
    assert (corpus.vocabulary, corpus.tokenizer, corpus.train.dtype) == (256, "bytes", np.uint8)
    assert corpus.fingerprint == json.loads(undisturbed["meta.json"])["fingerprint"]
    (folder / "train.bin").write_bytes(undisturbed["train.bin"][:-1])
    with pytest.raises(
        OptionError, match=r"train\.bin has \d+ bytes, not the \d+ that were written. Copy"
    ):
        open_corpus(f"bin:{folder}")


class StandIn:
    """What is used of a `datasets.Dataset`."""

    def __init__(self, rows):
        self.rows, self._fingerprint = rows, hashlib.sha256(repr(rows).encode()).hexdigest()[:16]
        self.column_names = list(rows[0]) if rows else ["text"]

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def select(self, numbers):
        return StandIn([self.rows[n] for n in numbers])

    def select_columns(self, names):
        return StandIn([{name: row[name] for name in names} for row in self.rows])


@pytest.fixture
def hub(monkeypatch):
    """A `datasets` with one set of 400 rows, every tenth of them a copy."""
    module = types.ModuleType("datasets")
    module.rows = [{"text": f"text number {n if n % 10 else 0}", "id": n} for n in range(400)]
    module.asked = []

    def load_dataset(*args, **kwargs):
        module.asked.append((*args, kwargs))
        if args[0] == "old":
            raise RuntimeError("Dataset scripts are no longer supported, but found old.py")
        return StandIn(module.rows)

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def test_a_dataset_is_prepared_once_and_then_opened_without_the_package(hub, tmp_path, monkeypatch):
    done = []
    name = "hf:openwebtext,validation=0.1"
    first = open_corpus(name, tokenizer="bytes", cache=tmp_path, report=done.append)
    assert hub.asked == [("Skylion007/openwebtext", None, {"split": "train", "revision": None})]
    assert sum(done) == 400
    assert sorted(first.train.tobytes() + first.validation.tobytes()) == sorted(
        "".join(r["text"] for r in hub.rows).encode()
    )
    assert 0.04 < len(first.validation) / len(first.train) < 0.2
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert open_corpus(name, tokenizer="bytes", cache=tmp_path).describe() == first.describe()


def test_a_dataset_can_be_read_from_any_row_on(hub):
    source = open_hub(HubText("some", validation=0.1))
    everything = list(source.documents(0))
    assert [d.content.decode() for d in everything] == [row["text"] for row in hub.rows]
    assert list(source.documents(123)) == everything[123:]
    assert list(source.documents(400)) == []
    hub.rows[7] = {"text": "changed", "id": 7}
    assert open_hub(HubText("some", validation=0.1)).identity != source.identity


def test_copies_of_a_document_are_on_the_same_side(hub, tmp_path):
    corpus = open_corpus("hf:some,validation=0.5", tokenizer="bytes", cache=tmp_path)
    counts = [part.tobytes().count(b"text number 0") for part in (corpus.train, corpus.validation)]
    assert sorted(counts) == [0, 40]


def test_another_split_column_or_share_is_another_folder(hub, tmp_path):
    names = [
        "hf:some",
        "hf:some,split=test",
        "hf:some,validation=0.01",
        "hf:some,config=en",
        "hf:some,revision=x",
    ]
    assert len(
        {open_corpus(name, tokenizer="bytes", cache=tmp_path).folder for name in names}
    ) == len(names)
    assert hub.asked[3] == ("some", "en", {"split": "train", "revision": None})


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "hf:some,column=txt",
            UnknownNameError,
            r"unknown column of hf:some 'txt'. Did you mean 'text'\?",
        ),
        (
            "hf:some,column=id",
            OptionError,
            r"row 0 of column id holds a value of type int, not text",
        ),
        (
            "hf:old",
            OptionError,
            r"no longer supported, but found old\.py.*revision=refs/convert/parquet",
        ),
    ],
)
def test_what_the_hub_cannot_give_is_named(name, error, message, hub, tmp_path):
    with pytest.raises(error, match=message):
        open_corpus(name, tokenizer="bytes", cache=tmp_path)


def test_without_datasets_the_line_that_installs_it_is_given(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"datasets is not installed.*mupscale\[hf\]"):
        open_corpus("hf:some", cache=tmp_path)  # GPT-2's tokenizer is not even asked for


def test_bpe_is_not_trained_on_the_hub(tmp_path):
    with pytest.raises(OptionError, match=r"pass its tokenizer\.json as file:PATH"):
        open_corpus("hf:some", tokenizer="bpe:4096", cache=tmp_path)
