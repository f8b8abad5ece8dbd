"""Tune small, train big: scaling rules for transformers, grouped-query attention included.

    import mupscale as mu
    print(mu.derive(mu.theory.KeyValue("n", "r"), "adamw"))

Names are loaded when they are used, so that importing mupscale costs nothing beyond torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mupscale import (
        analysis,
        checks,
        engines,
        norms,
        optim,
        planning,
        reading,
        recipes,
        studies,
        targets,
        theory,
    )
    from mupscale.checks import coordinate_check
    from mupscale.errors import MupscaleError
    from mupscale.norms import expected_operator_norm, repeat, rms_operator_norm, spectral_norm
    from mupscale.planning import Plan, plan
    from mupscale.reading import Reading, read
    from mupscale.recipes import Recipe, transfer
    from mupscale.studies import Study
    from mupscale.targets import proxy
    from mupscale.theory import Rule, Scaling, derive

__version__ = "0.1.0"

_HOME_OF = {
    "MupscaleError": "errors",
    "Plan": "planning",
    "Reading": "reading",
    "Recipe": "recipes",
    "Rule": "theory",
    "Scaling": "theory",
    "Study": "studies",
    "coordinate_check": "checks",
    "derive": "theory",
    "expected_operator_norm": "norms",
    "plan": "planning",
    "proxy": "targets",
    "read": "reading",
    "repeat": "norms",
    "rms_operator_norm": "norms",
    "spectral_norm": "norms",
    "transfer": "recipes",
}
_ROOMS = (
    "analysis",
    "checks",
    "engines",
    "norms",
    "optim",
    "planning",
    "reading",
    "recipes",
    "studies",
    "targets",
    "theory",
)

__all__ = [
    "MupscaleError",
    "Plan",
    "Reading",
    "Recipe",
    "Rule",
    "Scaling",
    "Study",
    "analysis",
    "checks",
    "coordinate_check",
    "derive",
    "engines",
    "expected_operator_norm",
    "norms",
    "optim",
    "plan",
    "planning",
    "proxy",
    "read",
    "reading",
    "recipes",
    "repeat",
    "rms_operator_norm",
    "spectral_norm",
    "studies",
    "targets",
    "theory",
    "transfer",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"mupscale.{name}")
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"mupscale.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'mupscale' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
