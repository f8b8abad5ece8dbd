"""`open_corpus`: from what a user names to tokens."""

import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from mupscale.data.binfiles import open_bin
from mupscale.data.corpus import Corpus, Document, byte_tokens, fingerprint, fingerprint_of
from mupscale.data.hub import DEFAULT_TOKENIZER, HubText, import_datasets, open_hub
from mupscale.data.preparing import TokenizingJob, prepare
from mupscale.data.stdlib import stdlib_documents
from mupscale.data.storing import default_cache
from mupscale.data.subwords import Subwords, train_bpe
from mupscale.data.textfiles import text_documents
from mupscale.data.tokenizing import Tokenizer, bpe_size, open_tokenizer, tokenizer_key
from mupscale.errors import OptionError, UnknownNameError
from mupscale.targets.settings import Value, split_settings

FORMS = ("python-stdlib", "text:PATH", "bin:PATH", "hf:NAME")
# Part of the name of every prepared folder: raised when the same documents would give other tokens.
_FORMAT = "1"

Report = Callable[[int], None]


def _silent(_done: int) -> None:
    pass


@dataclass(frozen=True)
class Library:
    """Documents in memory, as a source to prepare from."""

    identity: str
    items: Sequence[Document]

    def documents(self, start: int) -> Iterator[Document]:
        return islice(self.items, start, None)


def open_corpus(
    name: str, *, tokenizer: str | None = None, cache: Path | None = None, report: Report = _silent
) -> Corpus:
    """The corpus that a name stands for.

    - `python-stdlib`: the sources of Python's own library, always there.
    - `text:PATH[,PATH…]`: text files, or folders of them; the end of each is held out.
    - `bin:PATH[,vocab=50257,dtype=uint32]`: tokens in nanoGPT's format, mapped from the disk.
    - `hf:NAME[,config=…,split=train,column=text,revision=…,validation=0.005]`: a dataset of the
    Hugging Face hub.

    `tokenizer` is `bytes` (the default, except for `hf:`: GPT-2's), `file:PATH/tokenizer.json`,
    `bpe:4096` (trained on the training part) or `hub:NAME`. What takes time is prepared once under
    `cache` (`$MUPSCALE_CACHE`, else `~/.cache/mupscale`), and continues where it was killed;
    `report` is called with the number of documents just done.

    >>> corpus = open_corpus("python-stdlib")
    >>> corpus.vocabulary, corpus.tokenizer, corpus.train.dtype, len(corpus.train) > 10**7
    (256, 'bytes', dtype('uint8'), True)
    """
    name = name.strip()
    kind, _, rest = name.partition(":")
    cache = cache or default_cache()
    if name == "python-stdlib":
        documents = stdlib_documents()
        source = Library(
            fingerprint_of(documents, f"python {platform.python_version()}"), documents
        )
        return _of_documents(name, source, tokenizer or "bytes", cache, report)
    if kind == "text" and rest:
        documents = text_documents(rest)
        return _of_documents(
            name, Library(fingerprint_of(documents), documents), tokenizer or "bytes", cache, report
        )
    if kind == "bin" and rest:
        if tokenizer is not None:
            raise OptionError(
                f"{name} holds tokens already: tokenizer={tokenizer!r} has no place. Leave it out."
            )
        path, settings = _path_and_settings(rest)
        return open_bin(path, settings, name)
    if kind == "hf" and rest:
        return _of_hub(name, rest, tokenizer or DEFAULT_TOKENIZER, cache, report)
    raise _unknown(name)


def _unknown(name: str) -> Exception:
    if name and os.path.exists(name):
        form = (
            "bin"
            if name.endswith(".bin") or os.path.exists(os.path.join(name, "train.bin"))
            else "text"
        )
        return OptionError(f"{name!r} is a path; say what it holds. Write {form}:{name}.")
    return UnknownNameError("corpus", name, FORMS)


def _path_and_settings(rest: str) -> tuple[Path, dict[str, Value]]:
    # A path that is there as it stands is no place to look for settings.
    head, settings = (rest, {}) if os.path.exists(rest) else split_settings(rest)
    return Path(head).expanduser(), settings


def _of_documents(name: str, source: Library, spec: str, cache: Path, report: Report) -> Corpus:
    if spec == "bytes":
        train, validation = (
            byte_tokens(source.items, "train"),
            byte_tokens(source.items, "validation"),
        )
        return Corpus(name, 256, source.identity, spec, train, validation)
    size = bpe_size(spec)

    def make_tokenizer() -> Tokenizer:
        return (
            open_tokenizer(spec)
            if size is None
            else Subwords.of_json(train_bpe(size, source.items), spec)
        )

    folder = _folder(cache, name.partition(":")[0], source.identity, tokenizer_key(spec))
    return _prepared(TokenizingJob(name, folder, lambda: source, make_tokenizer), spec, report)


def _of_hub(name: str, rest: str, spec: str, cache: Path, report: Report) -> Corpus:
    """A folder that is complete is opened without `datasets`, and without the hub."""
    text = HubText.of(*split_settings(rest))
    if bpe_size(spec) is not None:
        raise OptionError(
            f"{name}: tokenizer={spec!r} is trained on documents in memory, which this corpus is "
            "too large for. "
            "Train it on a text: corpus, and pass its tokenizer.json as file:PATH."
        )

    def make_tokenizer() -> Tokenizer:
        # before the hub is asked for a tokenizer, which takes its time where there is no network
        import_datasets()
        return open_tokenizer(spec)

    folder = _folder(cache, text.name, text.key(), tokenizer_key(spec))
    return _prepared(
        TokenizingJob(name, folder, lambda: open_hub(text), make_tokenizer), spec, report
    )


def _folder(cache: Path, label: str, *key: str) -> Path:
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip(".-")[:40]
    return cache / "corpora" / f"{readable}-{fingerprint(_FORMAT, *key)[:16]}"


def _prepared(job: TokenizingJob, spec: str, report: Report) -> Corpus:
    prepare(job, report)
    return replace(open_bin(job.folder, {}, job.name), tokenizer=spec)
