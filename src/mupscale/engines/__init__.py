"""Engines: many jobs carried out side by side, each once, and again where they stopped."""

from mupscale.engines.carrying import Engine, carry_out
from mupscale.engines.local import Local

__all__ = ["Engine", "Local", "carry_out"]
