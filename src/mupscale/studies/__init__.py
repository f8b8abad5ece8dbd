"""Studies: what to run, which points to try next, and where the results are kept.

Names are loaded on first use: a worker that trains needs no search, no analysis and no database.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mupscale.studies.config import StudyConfig
    from mupscale.studies.study import Snapshot, Study, retry_failed
    from mupscale.studies.trials import TrialRecord

__all__ = ["Snapshot", "Study", "StudyConfig", "TrialRecord", "retry_failed"]
_HOMES = {"StudyConfig": "config", "TrialRecord": "trials"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mupscale.studies' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mupscale.studies.{_HOMES.get(name, 'study')}"), name)
