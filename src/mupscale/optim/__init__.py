"""Optimizers that torch lacks: Lion, and a Muon for tensors that hold several matrices."""

from mupscale.optim.lion import Lion
from mupscale.optim.muon import Muon

__all__ = ["Lion", "Muon"]
