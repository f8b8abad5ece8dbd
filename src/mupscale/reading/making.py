"""How a model made its tensors: drawn at random, set to a constant, or frozen.

A plan draws again only what the model drew. Projections that start at zero, sinusoidal positions
and pretrained weights under an adapter stay as they are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mupscale.norms.matrices import is_sharded
from mupscale.reading.facts import Made
from mupscale.reading.roles import Role
from mupscale.reading.structure import Entry

_SAMPLE = 4096
_SENSIBLE = 1e4
"""Larger numbers and NaN come from uninitialized memory."""
_FEW = 3
"""The most values in an identity matrix, a mask or a one-hot table; random numbers have more."""


def made(entry: Entry) -> Made:
    """How a parameter was made, by its numbers."""
    tensor = entry.tensor
    if not tensor.requires_grad:
        return "frozen"
    if tensor.is_meta or is_sharded(tensor):
        return "unknown"
    return "constant" if constant(tensor) is not None or _few_values(tensor) else "drawn"


@torch.no_grad()
def constant(tensor: Tensor) -> float | None:
    """The value of a tensor whose entries are all equal; otherwise None."""
    if tensor.is_meta or is_sharded(tensor) or tensor.numel() == 0:
        return None
    sample = _sample(tensor)
    if bool((sample != sample[0]).any()):
        return None
    low, high = torch.aminmax(tensor)
    return float(low) if low == high else None


def is_zero(tensor: Tensor) -> bool:
    """Whether a tensor is zero everywhere; False if its numbers are not visible here."""
    return constant(tensor) == 0


def _few_values(tensor: Tensor) -> bool:
    sample = _sample(tensor)
    return sample.numel() > 4 * _FEW and torch.unique(sample).numel() <= _FEW


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.detach().flatten()
    return flat[:: max(1, flat.numel() // _SAMPLE)]


def has_numbers(found: Sequence[Entry]) -> bool:
    """Whether the model has numbers: it is not on the meta device or in uninitialized memory."""
    kinds = ("linear", "embedding")
    matrices = [e.tensor for e in found if len(e.shape) > 1 and e.kind in kinds]
    if any(tensor.is_meta or is_sharded(tensor) for tensor in matrices):
        return False
    samples = [_sample(tensor) for tensor in matrices]
    if not all(bool((sample.abs() < _SENSIBLE).all()) for sample in samples):
        return False
    return not samples or any(bool((sample != sample[0]).any()) for sample in samples)


def start_of(
    entry: Entry, role: Role, offset: float, *, of_norm: bool, numbers: bool
) -> float | None:
    """What a parameter acts as at the start, if that is one number; None if it is drawn or left
    as it is.

    This is the constant that the model set it to. If its numbers vary or are not known: 1 for the
    gain of a norm, and 0 for the bias of a linear layer, which torch draws from ±1/√fan_in, a range
    that shrinks with the width.
    """
    value = constant(entry.tensor) if numbers else None
    if value is not None:
        return value + offset
    if role == "gain":
        return 1.0 if of_norm else None
    if role != "bias" or "dt" in entry.leaf.split("_") or ".dt_" in f".{entry.inside}":
        return None  # the time step of a state-space layer starts at a value of its own
    drawn_by_torch = entry.kind in ("linear", "convolution", "norm")
    return 0.0 if drawn_by_torch or (not numbers and entry.leaf.endswith("bias")) else None
