"""Tune small, train big: scaling rules for transformers, grouped-query attention included.

    import mupscale as mu
    print(mu.derive(mu.theory.KeyValue("n", "r"), "adamw"))

Names are loaded when they are used, so that importing mupscale costs nothing beyond torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mupscale import norms, theory
    from mupscale.errors import MupscaleError
    from mupscale.norms import expected_operator_norm, repeat, rms_operator_norm, spectral_norm
    from mupscale.theory import Rule, Scaling, derive

__version__ = "0.1.0"

_HOME_OF = {
    "MupscaleError": "errors",
    "Rule": "theory",
    "Scaling": "theory",
    "derive": "theory",
    "expected_operator_norm": "norms",
    "repeat": "norms",
    "rms_operator_norm": "norms",
    "spectral_norm": "norms",
}
_ROOMS = ("norms", "theory")

__all__ = [
    "MupscaleError",
    "Rule",
    "Scaling",
    "derive",
    "expected_operator_norm",
    "norms",
    "repeat",
    "rms_operator_norm",
    "spectral_norm",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"mupscale.{name}")
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"mupscale.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'mupscale' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
