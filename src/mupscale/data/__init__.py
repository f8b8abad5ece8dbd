"""Data: corpora by name, and batches as a pure function of seed and step."""

from mupscale.data.batches import Batch, Batches, ValidationBatches
from mupscale.data.corpus import Corpus
from mupscale.data.opening import open_corpus

__all__ = ["Batch", "Batches", "Corpus", "ValidationBatches", "open_corpus"]
