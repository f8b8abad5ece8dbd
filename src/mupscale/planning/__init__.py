"""Planning: what each parameter of a model gets, and applying that without touching the model's
code.
"""

from mupscale.planning.plan import Plan
from mupscale.planning.planner import plan
from mupscale.planning.values import Hook, PlannedParameter, RowBlock

__all__ = ["Hook", "Plan", "PlannedParameter", "RowBlock", "plan"]
