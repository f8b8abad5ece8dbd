"""The same runs as the sweep of rate and decay, seen over τ_epoch = 1/(ηλ·steps), the time scale of
decay in runs.
"""

from collections.abc import Iterator

from mupscale.paper.experiment import Claim
from mupscale.paper.sweeps import Sweep, SweepFinding, with_ends
from mupscale.paper.weight_decay import compared, drifts, variance_lines


class TauEpoch(Sweep):
    """Where the best rate and τ_epoch are, by size, under each rule."""

    name = "tau-epoch"
    study = "weight-decay"

    def lines(self, seen: SweepFinding) -> Iterator[str]:
        yield from variance_lines(seen)
        yield ""
        yield "drift of the best τ_epoch, octaves for each doubling of the parameters:"
        for drift in drifts(seen, ("tau_epoch",)):
            yield f"  {drift.rule:<11} {with_ends(drift.estimate)}, {drift.sizes} of 3 sizes bounded"

    def claims(self, seen: SweepFinding) -> Iterator[Claim]:
        says = "The best τ_epoch holds over sizes better under μP with scaled decay than under {}"
        for against, words in (("sp", "SP"), ("mup", "vanilla μP")):
            yield compared(self.name, seen, "tau_epoch", against, says.format(words))


EXPERIMENT = TauEpoch()
