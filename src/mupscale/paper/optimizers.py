"""Beyond the paper: is the best learning rate the same for every r under other optimizers?"""

from collections.abc import Iterator

from mupscale.paper.claims import Claim
from mupscale.paper.sweeps import Sweep, SweepFinding, drift_words, with_ends


class OtherOptimizer(Sweep):
    """The rate over r with the derived key/value factor (gqa-mup) and without (complete-p)."""

    optimizer: str

    def claims(self, finding: SweepFinding) -> Iterator[Claim]:
        words = [drift_words(finding, rule) for rule in ("complete-p", "gqa-mup")]
        for quantity, digits in (("drift", 2), ("loss at the optimum", 4)):
            found = finding.comparison(quantity, "gqa-mup", "complete-p")
            if found is not None:
                difference = with_ends(found.difference, digits)
                words.append(f"gqa-mup minus complete-p, {quantity}: {difference}")
        question = (
            f"Is the best learning rate the same for every r under {self.optimizer}, with the "
            "derived factor and without?"
        )
        yield Claim(self.name, "best rates", question, "; ".join(words), finding.count(), "ours")


class MuonStudy(OtherOptimizer):
    name = study = "muon"
    optimizer = "Muon"


class SgdStudy(OtherOptimizer):
    name = study = "sgd"
    optimizer = "SGD with momentum"
