"""Beyond the paper: is the best learning rate the same for every r under other optimizers?"""

from collections.abc import Iterator

from mupscale.paper.claims import Claim
from mupscale.paper.sweeps import Sweep, SweepFinding, difference_words, drift_words, with_ends


class OtherOptimizer(Sweep):
    """The rate over r with the derived key/value factor (gqa-mup) and without (complete-p)."""

    optimizer: str

    def claims(self, finding: SweepFinding) -> Iterator[Claim]:
        words = [drift_words(finding, rule) for rule in ("complete-p", "gqa-mup")]
        words.append(difference_words(finding, "gqa-mup", "complete-p"))
        found = finding.comparison("loss at the optimum", "gqa-mup", "complete-p")
        if found is not None and finding.whole("gqa-mup", "complete-p"):
            difference = with_ends(found.difference, 4)
            words.append(f"gqa-mup minus complete-p, loss at the optimum: {difference}")
        question = (
            f"Is the best learning rate the same for every r under {self.optimizer}, with the "
            "derived factor and without?"
        )
        seen = f"{'; '.join(filter(None, words))} ({finding.seeds} seeds)"
        yield Claim(self.name, "best rates", question, seen, finding.count(), "ours")


class MuonStudy(OtherOptimizer):
    name = study = "muon"
    optimizer = "Muon"


class SgdStudy(OtherOptimizer):
    name = study = "sgd"
    optimizer = "SGD with momentum"
