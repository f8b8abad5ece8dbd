"""Data: a corpus by name, and batches that are a pure function of seed and step."""

from mupscale.data.batches import Batch, Batches, ValidationBatches, validation_batches
from mupscale.data.corpus import Corpus
from mupscale.data.opening import open_corpus

__all__ = ["Batch", "Batches", "Corpus", "ValidationBatches", "open_corpus", "validation_batches"]
