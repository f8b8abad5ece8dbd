"""Reading: what each parameter of a model is."""

from mupscale.reading.facts import BRANCH_OUTPUTS, ROLES, Block, ModelFacts, ParameterFact, Role
from mupscale.reading.reader import read

__all__ = ["BRANCH_OUTPUTS", "ROLES", "Block", "ModelFacts", "ParameterFact", "Role", "read"]
