"""The paper's claim on depth: residual branches need a factor 1/L; 1/√L and 1 do not suffice."""

from collections.abc import Iterator, Mapping

from mupscale.analysis.verdicts import Movement
from mupscale.paper.claims import Claim, combined, decided
from mupscale.paper.sweeps import Sweep, SweepFinding, drift_words, movement_words, with_ends

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
            judged = [one.movement for one in finding.movements(rule).values()]
            verdict = combined(
                [decided(one == expected, one in ("moves", "still")) for one in judged]
            )
            holds = "stays still over depth" if expected == "still" else "moves with depth"
            says = f"With residual branches scaled by β = {beta}, the best learning rate {holds}"
            words = [
                drift_words(finding, rule),
                movement_words(finding, rule),
                _given_up(finding, rule),
            ]
            seen = f"{'; '.join(filter(None, words))} ({finding.seeds} seeds)"
            yield Claim(self.name, "best rates", says, seen, finding.count(rule), verdict)


def _given_up(finding: SweepFinding, rule: str) -> str:
    """What deeper models lose at the best rate of the shallowest."""
    transfer = finding.transfer(rule)
    if transfer is None or not transfer.regrets:
        return ""
    words = [f"{with_ends(one.loss, 3)} ({one.member.label})" for one in transfer.regrets]
    return (
        f"nats given up at the best rate of {transfer.regrets[0].proxy.label}: {', '.join(words)}"
    )


EXPERIMENT = Depth()
