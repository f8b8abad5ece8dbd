"""Tune a small model, train the large one: scaling rules for transformers, including grouped-query
attention.

    import mupscale as mu
    print(mu.derive(mu.theory.KeyValue("n", "r"), "adamw"))

Names are loaded on first use, so that importing mupscale costs nothing beyond torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mupscale import analysis, checks, engines, norms, optim, planning  # isort: skip
    from mupscale import reading, recipes, studies, targets, theory  # isort: skip
    from mupscale.checks import coordinate_check
    from mupscale.errors import MupscaleError
    from mupscale.norms import expected_operator_norm, repeat, rms_operator_norm, spectral_norm
    from mupscale.planning import START_FACTORS, Plan, plan, start_std
    from mupscale.reading import Reading, read
    from mupscale.recipes import Recipe, TargetRun, TunedBase, transfer
    from mupscale.studies import Study
    from mupscale.targets import proxy
    from mupscale.theory import Rule, RunSize, Scaling, derive

__version__ = "0.1.0"

# fmt: off
__all__ = [
    "START_FACTORS", "MupscaleError", "Plan", "Reading", "Recipe", "Rule", "RunSize", "Scaling",
    "Study", "TargetRun", "TunedBase", "analysis", "checks", "coordinate_check", "derive",
    "engines", "expected_operator_norm", "norms", "optim", "plan", "planning", "proxy", "read",
    "reading", "recipes", "repeat", "rms_operator_norm", "spectral_norm", "start_std", "studies",
    "targets", "theory", "transfer",
]
_HOMES = {
    "checks": ["coordinate_check"],
    "errors": ["MupscaleError"],
    "norms": ["expected_operator_norm", "repeat", "rms_operator_norm", "spectral_norm"],
    "planning": ["START_FACTORS", "Plan", "plan", "start_std"],
    "reading": ["Reading", "read"],
    "recipes": ["Recipe", "TargetRun", "TunedBase", "transfer"],
    "studies": ["Study"],
    "targets": ["proxy"],
    "theory": ["Rule", "RunSize", "Scaling", "derive"],
}
# fmt: on


def __getattr__(name: str) -> Any:
    for room, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"mupscale.{room}"), name)
    if name in __all__:
        return importlib.import_module(f"mupscale.{name}")
    raise AttributeError(f"module 'mupscale' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
