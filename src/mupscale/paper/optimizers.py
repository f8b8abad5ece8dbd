"""Beyond the paper: does the best rate hold over r under other optimizers, with the factor derived
for them?
"""

from collections.abc import Iterator

from mupscale.paper.experiment import Claim
from mupscale.paper.sweeps import Sweep, SweepFinding, drift_words, with_ends


class OtherOptimizer(Sweep):
    """The rate over r with the derived key/value factor (gqa-mup) and without (complete-p)."""

    optimizer: str

    def claims(self, seen: SweepFinding) -> Iterator[Claim]:
        words = [drift_words(seen, rule) for rule in ("complete-p", "gqa-mup")]
        for quantity, digits in (("drift", 2), ("loss at the optimum", 4)):
            found = seen.comparison(quantity, "gqa-mup", "complete-p")
            if found is not None:
                words.append(
                    f"gqa-mup minus complete-p, {quantity}: {with_ends(found.difference, digits)}"
                )
        question = f"Does the best rate hold over r under {self.optimizer}, with the derived factor and without?"
        yield Claim(self.name, question, "; ".join(words), seen.count(), "ours")


class MuonStudy(OtherOptimizer):
    name = "muon"
    study = "muon"
    optimizer = "Muon"


class SgdStudy(OtherOptimizer):
    name = "sgd"
    study = "sgd"
    optimizer = "SGD with momentum"
