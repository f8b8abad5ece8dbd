"""Transfer over r under Muon."""

from mupscale.paper.optimizers import MuonStudy

EXPERIMENT = MuonStudy()
