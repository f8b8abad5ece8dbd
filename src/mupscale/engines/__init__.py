"""Engines run many jobs side by side, each exactly once, and resume where they were stopped."""

from mupscale.engines.cluster import Ray
from mupscale.engines.jobs import run_jobs
from mupscale.engines.local import Local
from mupscale.engines.named import engine_named
from mupscale.engines.session import Engine, Failure, Outcome, Session

__all__ = ["Engine", "Failure", "Local", "Outcome", "Ray", "Session", "run_jobs", "engine_named"]
