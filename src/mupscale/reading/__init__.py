"""Reading: what each parameter of a model is."""

from mupscale.reading.facts import BRANCH_OUTPUTS, NOT_DRAWN, ROLES, Block, ModelFacts, ParameterFact, Role
from mupscale.reading.reader import read
from mupscale.reading.saying import Inputs, Reading, TensorSpec
from mupscale.reading.tracing import run_once

__all__ = [
    "BRANCH_OUTPUTS",
    "NOT_DRAWN",
    "ROLES",
    "Block",
    "Inputs",
    "ModelFacts",
    "ParameterFact",
    "Reading",
    "Role",
    "TensorSpec",
    "read",
    "run_once",
]
