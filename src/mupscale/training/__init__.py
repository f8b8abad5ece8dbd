"""Training: one run, from a config to a record."""

from mupscale.training.config import RunConfig
from mupscale.training.loop import Progress, RunRecord, run
from mupscale.training.preparation import lengths

__all__ = ["Progress", "RunConfig", "RunRecord", "lengths", "run"]
