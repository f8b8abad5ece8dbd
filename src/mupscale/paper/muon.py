"""Transfer over r under Muon."""

from mupscale.paper.optimizers import Muon

EXPERIMENT = Muon()
