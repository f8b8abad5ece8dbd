"""`open_corpus`: from the name of a corpus to its tokens."""

import os
import platform
import re
from dataclasses import replace
from pathlib import Path

from mupscale.data.binfiles import open_bin
from mupscale.data.corpus import Corpus, Library, fingerprint, fingerprint_of
from mupscale.data.hub import DEFAULT_TOKENIZER, HubText, import_datasets, open_hub
from mupscale.data.preparing import Report, TokenizingJob, prepare
from mupscale.data.stdlib import stdlib_documents
from mupscale.data.storing import default_cache
from mupscale.data.subwords import Subwords, train_bpe
from mupscale.data.textfiles import text_documents
from mupscale.data.tokenizing import Tokenizer, bpe_size, open_tokenizer, tokenizer_key
from mupscale.errors import OptionError, UnknownNameError
from mupscale.targets.settings import split_settings

FORMS = ("python-stdlib", "text:PATH", "bin:PATH", "hf:NAME")
# Part of the name of every prepared folder. Raise it when the same documents give other tokens.
_FORMAT = "1"


def open_corpus(
    name: str,
    *,
    tokenizer: str | None = None,
    cache: Path | None = None,
    report: Report = lambda done: None,
) -> Corpus:
    """Open a corpus by name.

    - `python-stdlib`: the sources of Python's standard library, always available.
    - `text:PATH[,PATH…]`: text files, or folders of them; the end of each file is held out.
    - `bin:PATH[,vocab=50257,dtype=uint32]`: tokens in nanoGPT's format, memory-mapped.
    - `hf:NAME[,config=…,split=train,column=text,revision=…,validation=0.005]`: a dataset of the
      Hugging Face hub.

    `tokenizer` is `bytes` (the default, except for `hf:`, where it is GPT-2's),
    `file:PATH/tokenizer.json`, `bpe:4096` (trained on the training part) or `hub:NAME`. Tokenizing
    happens once: the tokens are kept under `cache` (`$MUPSCALE_CACHE`, or `~/.cache/mupscale`), and
    an interrupted call resumes. `report` is called with the number of documents just processed.

    >>> corpus = open_corpus("python-stdlib")
    >>> corpus.vocabulary, corpus.tokenizer, corpus.train.dtype, len(corpus.train) > 10**7
    (256, 'bytes', dtype('uint8'), True)
    """
    name = name.strip()
    kind, _, rest = name.partition(":")
    cache = cache or default_cache()
    if name == "python-stdlib":
        documents = stdlib_documents()
        identity = fingerprint_of(documents, f"python {platform.python_version()}")
        return _of_documents(name, Library(identity, documents), tokenizer, cache, report)
    if kind == "text" and rest:
        documents = text_documents(rest)
        library = Library(fingerprint_of(documents), documents)
        return _of_documents(name, library, tokenizer, cache, report)
    if kind == "bin" and rest:
        if tokenizer is not None:
            raise OptionError(f"{name} holds tokens already. Remove tokenizer={tokenizer!r}.")
        # The name of an existing path may hold commas: it is not split into settings.
        path, settings = (rest, {}) if os.path.exists(rest) else split_settings(rest)
        return open_bin(Path(path).expanduser(), settings, name)
    if kind == "hf" and rest:
        return _of_hub(name, rest, tokenizer or DEFAULT_TOKENIZER, cache, report)
    if name and os.path.exists(name):
        is_bin = name.endswith(".bin") or os.path.exists(os.path.join(name, "train.bin"))
        raise OptionError(f"{name!r} is a path. Write {'bin' if is_bin else 'text'}:{name}.")
    raise UnknownNameError("corpus", name, FORMS)


def _of_documents(
    name: str, source: Library, tokenizer: str | None, cache: Path, report: Report
) -> Corpus:
    spec = tokenizer or "bytes"
    if spec == "bytes":
        train, validation = source.bytes_of("train"), source.bytes_of("validation")
        return Corpus(name, 256, source.identity, spec, train, validation)
    size = bpe_size(spec)

    def make_tokenizer() -> Tokenizer:
        if size is None:
            return open_tokenizer(spec)
        return Subwords.of_json(train_bpe(size, source.items), spec)

    folder = _folder(cache, name.partition(":")[0], source.identity, tokenizer_key(spec))
    return _prepared(TokenizingJob(name, folder, lambda: source, make_tokenizer), spec, report)


def _of_hub(name: str, rest: str, spec: str, cache: Path, report: Report) -> Corpus:
    """Open a dataset of the hub. Once its folder is complete, neither the hub nor `datasets` is
    needed.
    """
    text = HubText.of(*split_settings(rest))
    if bpe_size(spec) is not None:
        raise OptionError(
            f"{name}: tokenizer={spec!r} is trained on documents in memory, and this corpus may "
            "not fit. Train it on a text: corpus, and pass its tokenizer.json as file:PATH."
        )

    def make_tokenizer() -> Tokenizer:
        import_datasets()  # fail before a download of the tokenizer, which is slow to time out
        return open_tokenizer(spec)

    folder = _folder(cache, text.name, repr(text), tokenizer_key(spec))
    job = TokenizingJob(name, folder, lambda: open_hub(text), make_tokenizer)
    return _prepared(job, spec, report)


def _folder(cache: Path, label: str, *key: str) -> Path:
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip(".-")[:40]
    return cache / "corpora" / f"{readable}-{fingerprint(_FORMAT, *key)[:16]}"


def _prepared(job: TokenizingJob, spec: str, report: Report) -> Corpus:
    prepare(job, report)
    return replace(open_bin(job.folder, {}, job.name), tokenizer=spec)
