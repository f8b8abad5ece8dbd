"""Transfer over r under SGD."""

from mupscale.paper.optimizers import Sgd

EXPERIMENT = Sgd()
