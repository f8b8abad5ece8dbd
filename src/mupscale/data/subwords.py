"""Subword tokenizers through Hugging Face's `tokenizers`, which only this file imports."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mupscale.data.corpus import Document, Tokens
from mupscale.errors import MissingExtraError, OptionError
from mupscale.targets.reasons import reason

END = "<|endoftext|>"
# Common spellings of the end of a document. The first one in the vocabulary follows each document.
_ENDS = (END, "<|end_of_text|>", "</s>", "<eos>")
# Longer texts are cut after a line, because a tokenizer needs a few hundred bytes per input token.
_PIECE_CHARACTERS = 2**20


@dataclass(frozen=True)
class Subwords:
    """A tokenizer of `tokenizers`. Text that spells out a special token gets ordinary tokens."""

    name: str
    json: str
    inner: Any
    vocabulary: int
    end: int | None
    """The token after each document; None if the vocabulary has none for that."""

    @classmethod
    def of_json(cls, text: str, name: str) -> "Subwords":
        """From the content of a `tokenizer.json`."""
        tokenizers = _tokenizers()
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # whatever its parser raises
            raise OptionError(
                f"{name} is not a tokenizer: {reason(error)}. Pass a tokenizer.json."
            ) from error
        inner.no_truncation()
        inner.no_padding()
        inner.encode_special_tokens = True
        known: dict[str, int] = inner.get_vocab(with_added_tokens=True)
        if not known:
            raise OptionError(
                f"{name} has an empty vocabulary. Pass the tokenizer.json of a trained tokenizer."
            )
        end = next((known[word] for word in _ENDS if word in known), None)
        return cls(name, text, inner, max(known.values()) + 1, end)

    @property
    def identity(self) -> str:
        return hashlib.sha256(self.json.encode()).hexdigest()

    def encode(self, documents: Sequence[Document]) -> list[Tokens]:
        pieces = [list(_pieces(_text(document))) for document in documents]
        encoded = iter(
            self.inner.encode_batch_fast([p for ps in pieces for p in ps], add_special_tokens=False)
        )
        end = [] if self.end is None else [self.end]
        ids = [[token for _ in ps for token in next(encoded).ids] + end for ps in pieces]
        return [np.array(tokens, dtype=np.uint32) for tokens in ids]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text, without the ends of documents."""
        ids = [int(t) for t in tokens if t != self.end]
        return self.inner.decode(ids, skip_special_tokens=False)


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtraError("tokenizers", "hf") from error
    return tokenizers


def _text(document: Document) -> str:
    try:
        return document.content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{document.name} is not UTF-8 at byte {error.start}, which this tokenizer needs. "
            "Convert the file, or use the tokenizer bytes."
        ) from error


def _pieces(text: str, most: int = _PIECE_CHARACTERS) -> Iterator[str]:
    start = 0
    while len(text) - start > most:
        cut = text.rfind("\n", start, start + most) + 1 or start + most
        yield text[start:cut]
        start = cut
    yield text[start:]


def train_bpe(size: int, documents: Iterable[Document]) -> str:
    """Train a byte-level BPE of this many tokens on the training part; return its `tokenizer.json`.

    Byte-level like GPT-2's, so every text can be encoded and decodes to itself. Ties between pairs
    are broken by their tokens, so the same documents give the same merges. A text with too few
    pairs gives fewer tokens.
    """
    tk = _tokenizers()
    inner = tk.Tokenizer(tk.models.BPE())
    inner.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tk.decoders.ByteLevel()
    alphabet = sorted(tk.pre_tokenizers.ByteLevel.alphabet())
    trainer = tk.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    pieces = (piece for d in documents if d.part == "train" for piece in _pieces(_text(d)))
    inner.train_from_iterator(pieces, trainer)
    return inner.to_str()
