"""The paper's first figure: does the best learning rate stay the same when key/value heads are
shared?
"""

from collections.abc import Iterator

from mupscale.analysis.families import Regret
from mupscale.paper.claims import Claim, combined, decided
from mupscale.paper.sweeps import (
    Sweep,
    SweepFinding,
    difference_words,
    drift_words,
    less_drift,
    movement_words,
    with_ends,
)

RULES = ("sp", "mup", "complete-p", "gqa-mup")


class GqaAblation(Sweep):
    """Loss over learning rate for each r and rule, with mean and sd of the optima."""

    name = "gqa-ablation"
    study = "gqa-ablation"

    def lines(self, finding: SweepFinding) -> Iterator[str]:
        yield (
            "mean and sd over r of the best base learning rate (log2), and the loss that r = 12 "
            "gives up at the optimum of r = 1:"
        )
        for rule in RULES:
            transfer = finding.transfer(rule)
            if transfer is None or transfer.mean is None:
                yield f"  {rule:<11} no optimum found"
                continue
            lost = regret_at_most_shared(finding, rule)
            loss = "" if lost is None else f"  gives up {with_ends(lost.loss, 4)} nats"
            numbers = f"mean {with_ends(transfer.mean)}  sd {with_ends(transfer.sd)}"
            yield f"  {rule:<11} {numbers}{loss}"

    def claims(self, finding: SweepFinding) -> Iterator[Claim]:
        mup, derived = (drift_words(finding, rule) for rule in ("mup", "gqa-mup"))
        judged = [one.movement for one in finding.movements("mup").values()]
        yield Claim(
            self.name,
            "best rates",
            "Under vanilla μP the best learning rate shifts with r",
            f"{mup}; {movement_words(finding, 'mup')} ({finding.seeds} seeds)",
            finding.count("mup"),
            combined([decided(one == "moves", one == "still") for one in judged]),
        )
        more = [mup, derived, difference_words(finding, "gqa-mup", "mup")]
        yield Claim(
            self.name,
            "best rates",
            "GQA-μP brings the best learning rates into a much narrower region than vanilla μP",
            f"{'; '.join(filter(None, more))} ({finding.seeds} seeds)",
            finding.count("mup", "gqa-mup"),
            less_drift(finding, "gqa-mup", "mup"),
        )
        # Vanilla μP lacks more than the key/value factor; complete-p lacks only that.
        found = finding.comparison("loss at the optimum", "gqa-mup", "complete-p")
        loss = with_ends(found.difference if found else None, 4)
        drift = difference_words(finding, "gqa-mup", "complete-p") or "no drift known"
        yield Claim(
            self.name,
            "best rates",
            "What does the key/value factor do by itself (gqa-mup against complete-p, which lacks "
            "only the factor)?",
            f"{drift}; loss at the optimum {loss} nats higher ({finding.seeds} seeds)",
            finding.count("gqa-mup", "complete-p"),
            "ours",
        )
        words = [
            f"{rule} {with_ends(lost.loss, 4)}"
            for rule in RULES
            if (lost := regret_at_most_shared(finding, rule))
        ]
        question = "How much loss, in nats, does r = 12 give up at the best learning rate of r = 1?"
        seen = "; ".join(words) or "not found"
        yield Claim(self.name, "best rates", question, seen, finding.count(), "ours")


def regret_at_most_shared(finding: SweepFinding, rule: str) -> Regret | None:
    """From the optimum at r = 1 to the model with the largest r."""
    transfer = finding.transfer(rule)
    known = transfer.regrets if transfer else ()
    return max(known, key=lambda one: one.member.position or 0.0, default=None)


EXPERIMENT = GqaAblation()
