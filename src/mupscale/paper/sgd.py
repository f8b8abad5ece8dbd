"""Transfer over r under SGD."""

from mupscale.paper.optimizers import SgdStudy

EXPERIMENT = SgdStudy()
