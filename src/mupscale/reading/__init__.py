"""Reading: what each parameter of a model is."""

from mupscale.reading.facts import BlockFact, ModelFacts, ParameterFact
from mupscale.reading.reader import read, read_with_base
from mupscale.reading.roles import (
    BRANCH_OUTPUTS,
    EXPERTS,
    NOT_DRAWN,
    ROLES,
    TABLES,
    Kind,
    Role,
    RoleRow,
    role_row,
)
from mupscale.reading.running import run_once
from mupscale.reading.user_reading import Inputs, Reading, TensorSpec

__all__ = [
    "BRANCH_OUTPUTS",
    "EXPERTS",
    "NOT_DRAWN",
    "ROLES",
    "TABLES",
    "BlockFact",
    "Inputs",
    "Kind",
    "ModelFacts",
    "ParameterFact",
    "Reading",
    "Role",
    "RoleRow",
    "TensorSpec",
    "read",
    "read_with_base",
    "role_row",
    "run_once",
]
