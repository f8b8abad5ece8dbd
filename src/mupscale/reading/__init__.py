"""Reading: what each parameter of a model is."""

from mupscale.reading.facts import (
    BRANCH_OUTPUTS,
    NOT_DRAWN,
    ROLES,
    BlockFact,
    ModelFacts,
    ParameterFact,
    Role,
)
from mupscale.reading.reader import read
from mupscale.reading.running import run_once
from mupscale.reading.saying import Inputs, Reading, TensorSpec

__all__ = [
    "BRANCH_OUTPUTS",
    "NOT_DRAWN",
    "ROLES",
    "BlockFact",
    "Inputs",
    "ModelFacts",
    "ParameterFact",
    "Reading",
    "Role",
    "TensorSpec",
    "read",
    "run_once",
]
