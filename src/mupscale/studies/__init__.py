"""Studies: what to run, which points to try next, and where the results are kept."""

from mupscale.studies.config import StudyConfig
from mupscale.studies.study import Snapshot, Study, retry_failed
from mupscale.studies.trials import TrialRecord

__all__ = ["Snapshot", "Study", "StudyConfig", "TrialRecord", "retry_failed"]
