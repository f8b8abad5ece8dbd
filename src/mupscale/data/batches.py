"""Batches as a pure function of seed and step: nothing to checkpoint, and the same for any number
of processes.

B: rows of the global batch, T: tokens of a sequence.
"""

import operator
from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from mupscale.data.corpus import Corpus, Part, Tokens
from mupscale.errors import DimensionError, OptionError

_WORD = 2**64


class Batch(NamedTuple):
    """Tokens, and the token that follows each of them; both (B, T), int64, contiguous."""

    inputs: Tensor
    targets: Tensor


class Batches:
    """Random windows of the training part (or of an array of tokens).

    The starts at a step are Philox's raw output under the key (seed, step), modulo the number of
    windows: each start is as likely as any other up to 1 part in 2⁶⁴ / windows, a step costs the
    same wherever it is, and numpy promises that this stream never changes (as it does not of
    `Generator.integers`).

    >>> batches = Batches(np.arange(100, dtype=np.uint8), batch=2, sequence=4, seed=0)
    >>> inputs, targets = batches.at(10**12)
    >>> inputs.shape, bool((inputs + 1 == targets).all())
    (torch.Size([2, 4]), True)
    """

    def __init__(self, data: Corpus | Tokens, *, batch: int, sequence: int, seed: int) -> None:
        self.batch, self.sequence = _positive("batch", batch), _positive("sequence", sequence)
        self.seed = _word("seed", seed)
        self._windows = _Windows(data, "train", self.sequence)

    def at(
        self, step: int, *, rank: int = 0, ranks: int = 1, micro: int = 0, micros: int = 1
    ) -> Batch:
        """The rows of a step; with `ranks` a rank's share of them, with `micros` a slice of that to
        accumulate over.

        The shares are consecutive rows: in order, they are the global batch.
        """
        rows = _rows(self.batch, rank, ranks, micro, micros)
        key = np.array([self.seed, _word("step", step)], dtype=np.uint64)
        raw = np.random.Philox(key=key).random_raw(self.batch)
        return self._windows.read((raw[rows] % np.uint64(len(self._windows))).astype(np.intp))


class ValidationBatches(Sequence[Batch]):
    """Full batches of windows that do not overlap, read when asked for; the same always."""

    def __init__(
        self, data: Corpus | Tokens, *, batch: int, sequence: int, limit: int | None = None
    ) -> None:
        self.batch, self.sequence = _positive("batch", batch), _positive("sequence", sequence)
        self._windows = _Windows(data, "validation", self.sequence)
        self._available = self._windows.apart // self.batch
        if not self._available:
            raise DimensionError(
                f"{self._windows.name} has {self._windows.apart} windows of {sequence} tokens that "
                "do not overlap, and "
                f"batch={batch} asks for more. Choose a batch of at most {self._windows.apart}, or "
                "a shorter sequence."
            )
        self._length = min(
            self._available, _positive("limit", self._available if limit is None else limit)
        )

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        batch = range(self._length)[index] * self._available // self._length
        first = batch * self.batch
        return self._windows.read(np.arange(first, first + self.batch) * self.sequence)


def validation_batches(
    corpus: Corpus | Tokens, batch: int, sequence: int, limit: int | None = None
) -> ValidationBatches:
    """The part held out, as a fixed sequence of batches of consecutive windows, each token a target
    at most once.

    With a `limit`, that many batches evenly spread over the part, rather than its first documents
    only. A last batch that would not be full is left out, so the mean over batches is the mean over
    tokens.

    >>> batches = validation_batches(np.arange(100, dtype=np.uint8), batch=2, sequence=8)
    >>> len(batches), batches[1].inputs[:, 0].tolist(), batches[-1].targets[-1, -1].item()
    (6, [16, 24], 96)
    """
    return ValidationBatches(corpus, batch=batch, sequence=sequence, limit=limit)


class _Windows:
    """Every stretch of T + 1 tokens of an array, without a copy of it."""

    def __init__(self, data: Corpus | Tokens, part: Part, sequence: int) -> None:
        self.name = f"the {part} part of {data.name}" if isinstance(data, Corpus) else "the array"
        tokens = np.asarray(getattr(data, part) if isinstance(data, Corpus) else data)
        if tokens.ndim != 1 or tokens.dtype.kind not in "ui":
            raise OptionError(
                f"{self.name} is {tokens.dtype} of shape {tokens.shape}. Pass whole numbers in one "
                "row."
            )
        if len(tokens) <= sequence:
            raise DimensionError(
                f"{self.name} has {len(tokens)} tokens, and sequence={sequence} needs "
                f"{sequence + 1}: each token and "
                f"the one that follows. Choose a sequence of at most {max(len(tokens) - 1, 0)}, or "
                "a larger corpus."
            )
        self.apart = (len(tokens) - 1) // sequence
        self._views = sliding_window_view(tokens, sequence + 1)
        fits = isinstance(data, Corpus) and np.iinfo(tokens.dtype).max >= data.vocabulary
        self._vocabulary = data.vocabulary if isinstance(data, Corpus) and fits else None

    def __len__(self) -> int:
        return len(self._views)

    def read(self, starts: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Batch:
        windows = self._views[starts]
        # A file too large to be checked when it was opened: here an index out of range would be far
        # from its cause.
        if self._vocabulary is not None and windows.max() >= self._vocabulary:
            raise OptionError(
                f"{self.name} holds the token {windows.max()}, and the vocabulary ends at "
                f"{self._vocabulary - 1}. "
                "Set vocab= to what the tokens were made with."
            )
        inputs, targets = windows[:, :-1].astype(np.int64), windows[:, 1:].astype(np.int64)
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets))


def _rows(batch: int, rank: int, ranks: int, micro: int, micros: int) -> slice:
    for name, value, total_name, total in (
        ("rank", rank, "ranks", ranks),
        ("micro", micro, "micros", micros),
    ):
        if total < 1 or not 0 <= value < total:
            raise OptionError(
                f"{name}={value} of {total_name}={total}: must be from 0 to {total_name} - 1."
            )
    if batch % (ranks * micros):
        parts = f"ranks={ranks}" + (f" × micros={micros}" if micros > 1 else "")
        raise DimensionError(
            f"batch={batch} is not a multiple of {parts}. Choose a batch of "
            f"{-(-batch // (ranks * micros)) * ranks * micros}, or other shares."
        )
    size = batch // (ranks * micros)
    first = (rank * micros + micro) * size
    return slice(first, first + size)


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DimensionError(f"{name}={value!r} is not a positive whole number. Choose at least 1.")
    return value


def _word(name: str, value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < _WORD:
        raise OptionError(
            f"{name}={value!r} is not a whole number from 0 to 2**64 - 1. Choose one that is."
        )
    return number
