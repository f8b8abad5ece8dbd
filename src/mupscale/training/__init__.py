"""Training: one run, from a config to a record."""

from mupscale.training.config import RunConfig
from mupscale.training.loop import RunProgress, RunRecord, run
from mupscale.training.preparation import lengths

__all__ = ["RunProgress", "RunConfig", "RunRecord", "lengths", "run"]
