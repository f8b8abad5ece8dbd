"""The paper's claim on depth: residual branches need a factor 1/L; 1/√L and 1 do not suffice."""

from collections.abc import Iterator, Mapping

from mupscale.analysis.verdicts import Movement
from mupscale.paper.claims import Claim, decided
from mupscale.paper.sweeps import Sweep, SweepFinding, drift_words

BETAS: Mapping[str, tuple[str, Movement]] = {
    "beta-1": ("1", "moves"),
    "beta-1-over-sqrt-L": ("1/√L", "moves"),
    "complete-p": ("1/L", "still"),
}
"""Rules of the study: the factor on their branches, and what the paper says of the rate then."""


class Depth(Sweep):
    """The best learning rate over depth, for each scaling of the branches."""

    name = "depth"
    study = "depth"

    def claims(self, finding: SweepFinding) -> Iterator[Claim]:
        for rule, (beta, expected) in BETAS.items():
            judged = finding.analysis.drift_verdict(rule)
            known = judged.movement in ("moves", "still")
            verdict = decided(judged.movement == expected, known)
            holds = "stays still over depth" if expected == "still" else "moves with depth"
            says = f"With residual branches scaled by β = {beta}, the best learning rate {holds}"
            seen = f"{drift_words(finding, rule)}; {judged.sentence}"
            yield Claim(self.name, "best rates", says, seen, finding.count(rule), verdict)


EXPERIMENT = Depth()
