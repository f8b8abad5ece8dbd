"""Batches as a pure function of seed and step: nothing to checkpoint, and the same for any number
of processes.

B: rows of the global batch, T: tokens per sequence.
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


class Batch(NamedTuple):
    """Tokens, and the token that follows each of them; both (B, T), int64, contiguous."""

    inputs: Tensor
    targets: Tensor


class Batches:
    """Random windows of the training part (or of an array of tokens).

    The starts at a step are Philox's raw output under the key (seed, step), modulo the number of
    windows. All starts are equally likely up to 1 part in 2⁶⁴ / windows, every step costs the
    same, and numpy guarantees that this stream never changes (`Generator.integers` has no such
    guarantee).

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
        """The rows of a step: one rank's share of `ranks`, and of that one of `micros` slices to
        accumulate over.

        Shares are consecutive rows: concatenated in order, they are the global batch.
        """
        rows = _rows(self.batch, rank, ranks, micro, micros)
        key = np.array([self.seed, _word("step", step)], dtype=np.uint64)
        raw = np.random.Philox(key=key).random_raw(self.batch)
        return self._windows.read((raw[rows] % np.uint64(len(self._windows))).astype(np.intp))


class ValidationBatches(Sequence[Batch]):
    """The validation part as a fixed sequence of batches of consecutive windows, read lazily; each
    token is a target at most once.

    With a `limit`, that many batches are spread evenly over the part. A last batch that is not
    full is dropped, so the mean over batches is the mean over tokens.

    >>> batches = ValidationBatches(np.arange(100, dtype=np.uint8), batch=2, sequence=8)
    >>> len(batches), batches[1].inputs[:, 0].tolist(), batches[-1].targets[-1, -1].item()
    (6, [16, 24], 96)
    """

    def __init__(
        self, data: Corpus | Tokens, batch: int, sequence: int, limit: int | None = None
    ) -> None:
        self.batch, self.sequence = _positive("batch", batch), _positive("sequence", sequence)
        self._windows = _Windows(data, "validation", self.sequence)
        self._available = self._windows.disjoint // self.batch
        if not self._available:
            raise DimensionError(
                f"{self._windows.name} has {self._windows.disjoint} windows of {sequence} tokens "
                f"that do not overlap, too few for batch={batch}. Choose a batch of at most "
                f"{self._windows.disjoint}, or a shorter sequence."
            )
        limit = self._available if limit is None else _positive("limit", limit)
        self._length = min(self._available, limit)

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


class _Windows:
    """Every window of T + 1 tokens of an array, without copying it."""

    def __init__(self, data: Corpus | Tokens, part: Part, sequence: int) -> None:
        self.name = f"the {part} part of {data.name}" if isinstance(data, Corpus) else "the array"
        tokens = np.asarray(getattr(data, part) if isinstance(data, Corpus) else data)
        if tokens.ndim != 1 or tokens.dtype.kind not in "ui":
            raise OptionError(
                f"{self.name} is {tokens.dtype} of shape {tokens.shape}. Pass a one-dimensional "
                "array of integers."
            )
        if len(tokens) <= sequence:
            raise DimensionError(
                f"{self.name} has {len(tokens)} tokens, but sequence={sequence} needs "
                f"{sequence + 1} (inputs, and targets one later). Choose a sequence of at most "
                f"{max(len(tokens) - 1, 0)}, or a larger corpus."
            )
        self.disjoint = (len(tokens) - 1) // sequence
        self._views = sliding_window_view(tokens, sequence + 1)
        fits = isinstance(data, Corpus) and np.iinfo(tokens.dtype).max >= data.vocabulary
        self._vocabulary = data.vocabulary if isinstance(data, Corpus) and fits else None

    def __len__(self) -> int:
        return len(self._views)

    def read(self, starts: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Batch:
        windows = self._views[starts]
        # Large files are only sampled when they are opened. Without this check, the first sign of
        # a token out of range would be an index error inside the model.
        if self._vocabulary is not None and windows.max() >= self._vocabulary:
            raise OptionError(
                f"{self.name} holds the token {windows.max()}, but the vocabulary ends at "
                f"{self._vocabulary - 1}. Set vocab= to the size of the tokenizer's vocabulary."
            )
        inputs, targets = windows[:, :-1].astype(np.int64), windows[:, 1:].astype(np.int64)
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets))


def _rows(batch: int, rank: int, ranks: int, micro: int, micros: int) -> slice:
    for name, value, total in (("rank", rank, ranks), ("micro", micro, micros)):
        if total < 1 or not 0 <= value < total:
            raise OptionError(f"{name}={value} of {name}s={total}: must be from 0 to {name}s - 1.")
    shares = ranks * micros
    if batch % shares:
        product = f"ranks={ranks}" + (f" × micros={micros}" if micros > 1 else "")
        raise DimensionError(
            f"batch={batch} is not a multiple of {product}. Choose batch="
            f"{-(-batch // shares) * shares}, or another number of shares."
        )
    size = batch // shares
    first = (rank * micros + micro) * size
    return slice(first, first + size)


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DimensionError(f"{name}={value!r} is not a positive integer. Choose at least 1.")
    return value


def _word(name: str, value: int) -> int:
    """A 64-bit word of Philox's key."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 2**64:
        raise OptionError(f"{name}={value!r} must be an integer from 0 to 2**64 - 1.")
    return number
