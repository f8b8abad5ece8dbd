"""Planning: what each parameter of a model gets, and applying that without touching the model's
code.
"""

from mupscale.planning.plan import Plan
from mupscale.planning.planner import plan
from mupscale.planning.start import START_FACTORS, START_STD, start_std
from mupscale.planning.values import Hook, PlannedParameter, RowBlock

__all__ = [
    "START_FACTORS",
    "START_STD",
    "Hook",
    "Plan",
    "PlannedParameter",
    "RowBlock",
    "plan",
    "start_std",
]
