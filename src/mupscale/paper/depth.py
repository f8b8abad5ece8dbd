"""The paper's claim on depth: residual branches must be scaled by 1/L; 1/√L and 1 are not
enough.
"""

from collections.abc import Iterator, Mapping

from mupscale.analysis.verdicts import Movement
from mupscale.paper.experiment import Claim, Verdict
from mupscale.paper.sweeps import Sweep, SweepFinding, drift_words

BETAS: Mapping[str, tuple[str, Movement]] = {
    "beta-1": ("1", "moves"),
    "beta-1-over-sqrt-L": ("1/√L", "moves"),
    "complete-p": ("1/L", "still"),
}
"""Rules of the study: the factor on their branches, and what then follows for the rate, as the
paper has it.
"""


class Depth(Sweep):
    """The best rate over depth, for each scaling of the branches."""

    name = "depth"
    study = "depth"

    def claims(self, seen: SweepFinding) -> Iterator[Claim]:
        for rule, (beta, expected) in BETAS.items():
            judged = seen.analysis.drift_verdict(rule)
            verdict: Verdict = "cannot be decided at this scale"
            if judged.movement in ("moves", "still"):
                verdict = "agrees" if judged.movement == expected else "disagrees"
            holds = "holds still over depth" if expected == "still" else "moves with depth"
            says = f"With residual branches scaled by β = {beta}, the best rate {holds}"
            words = f"{drift_words(seen, rule)}; {judged.sentence}"
            yield Claim(self.name, says, words, seen.count(rule), verdict)


EXPERIMENT = Depth()
