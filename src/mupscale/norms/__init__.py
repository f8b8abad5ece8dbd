"""Norms of weight matrices and of their updates: spectral, expected, and of a repeated matrix."""

from mupscale.norms.expected import (
    Distribution,
    NormEstimate,
    expected_operator_norm,
    rms_operator_norm,
)
from mupscale.norms.repetition import repeat
from mupscale.norms.spectral import Method, SpectralNorm, spectral_norm

__all__ = [
    "Distribution",
    "NormEstimate",
    "Method",
    "SpectralNorm",
    "expected_operator_norm",
    "repeat",
    "rms_operator_norm",
    "spectral_norm",
]
