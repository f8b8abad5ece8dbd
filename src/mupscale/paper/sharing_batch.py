"""Is the key/value factor right where updates are less noisy? At four times the batch. Ours.

results/sharing-batch/README.md has the design, which was fixed before the runs.
"""

from pathlib import Path
from typing import ClassVar

from mupscale.paper.experiment import Scale
from mupscale.paper.rate_study import RateRuns
from mupscale.paper.rate_tables import FitAnswer, Question, above_at_rate, lower_or_higher
from mupscale.paper.sharing import EXPERIMENT as SMALL_BATCH
from mupscale.paper.sharing import WITH, WITHOUT, SharedHeads, Split, at, difference, lowest


class SharingBatch(SharedHeads):
    """The factor at r = 12, here and next to `sharing`."""

    name = "sharing-batch"
    split: ClassVar[Split] = {"1": ((WITHOUT,), (12,)), "12": ((WITHOUT, WITH), (1,))}

    def answers(self, scale: Scale, found: RateRuns, folder: Path) -> list[FitAnswer]:
        return [
            difference(found, WITH, 12),
            further(found, SMALL_BATCH.runs(scale, folder.parent / SMALL_BATCH.name)),
            lowest(found, WITH, 12),
        ]


def further(found: RateRuns, small: RateRuns) -> FitAnswer:
    """The difference that the factor makes, minus the one at the small batch: each at the best rate
    of r = 1 at its own batch.
    """
    question = Question(
        "change with the batch",
        "what the factor adds to the loss at r = 12, minus what it adds at a quarter of the batch",
        "Does {rule} gain more on " + WITHOUT + " at r = 12 with four times the batch?",
        "nats",
        lower_or_higher,
    )
    own, other = (
        (at(runs, WITHOUT, 1), (at(runs, WITH, 12), at(runs, WITHOUT, 12)))
        for runs in (found, small)
    )
    return above_at_rate(question, [own, other])


EXPERIMENT = SharingBatch()
