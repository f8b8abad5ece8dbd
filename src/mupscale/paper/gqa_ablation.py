"""The paper's first figure: does the best rate stay where it is when key/value heads are shared?"""

from collections.abc import Iterator

from mupscale.analysis.families import Regret
from mupscale.paper.experiment import Claim, Verdict
from mupscale.paper.sweeps import Sweep, SweepFinding, drift_words, with_ends

RULES = ("sp", "mup", "complete-p", "gqa-mup")


class GqaAblation(Sweep):
    """Loss over rate for each r under each rule, with mean and standard deviation of the optima."""

    name = "gqa-ablation"
    study = "gqa-ablation"

    def lines(self, seen: SweepFinding) -> Iterator[str]:
        yield "mean and sd over r of the best base rate (log2), and what r = 12 gives up at the optimum of r = 1:"
        for rule in RULES:
            transfer = seen.transfer(rule)
            if transfer is None or transfer.mean is None:
                yield f"  {rule:<11} no optimum found"
                continue
            lost = regret_at_most_shared(seen, rule)
            given_up = "" if lost is None else f"  gives up {with_ends(lost.loss, 4)} nats"
            yield f"  {rule:<11} mean {with_ends(transfer.mean)}  sd {with_ends(transfer.sd)}{given_up}"

    def claims(self, seen: SweepFinding) -> Iterator[Claim]:
        judged = seen.analysis.drift_verdict("mup")
        yield self._claim(
            "Under vanilla μP the best rate shifts with r",
            f"{drift_words(seen, 'mup')}; {judged.sentence}",
            seen.count("mup"),
            {"moves": "agrees", "still": "disagrees"}.get(judged.movement),
        )
        yield self._narrower(seen)
        yield self._factor_alone(seen)
        words = [
            f"{rule} {with_ends(lost.loss, 4)}"
            for rule in RULES
            if (lost := regret_at_most_shared(seen, rule))
        ]
        question = "What does r = 12 give up, in nats, if it is trained at the best rate of r = 1?"
        yield Claim(self.name, question, "; ".join(words) or "not found", seen.count(), "ours")

    def _narrower(self, seen: SweepFinding) -> Claim:
        found = seen.comparison("drift", "gqa-mup", "mup")
        words = [drift_words(seen, rule) for rule in ("mup", "gqa-mup")]
        if found is not None:
            words.append(f"gqa-mup drifts {with_ends(found.difference)} further")
        verdict = (
            {"gqa-mup": "agrees", "mup": "disagrees"}.get(found.better or "") if found else None
        )
        runs = seen.count("mup", "gqa-mup")
        return self._claim(
            "GQA-μP brings the best rates into a much narrower region than vanilla μP",
            "; ".join(words),
            runs,
            verdict,
        )

    def _factor_alone(self, seen: SweepFinding) -> Claim:
        """Vanilla μP lacks more than the factor. complete-p lacks the factor alone."""
        drift = seen.comparison("drift", "gqa-mup", "complete-p")
        loss = seen.comparison("loss at the optimum", "gqa-mup", "complete-p")
        return Claim(
            self.name,
            "What does the key/value factor do by itself (gqa-mup against complete-p, which has "
            "all but it)?",
            f"drift {with_ends(drift.difference if drift else None)} further; loss at the optimum "
            f"{with_ends(loss.difference if loss else None, 4)} nats higher",
            seen.count("gqa-mup", "complete-p"),
            "ours",
        )

    def _claim(self, says: str, words: str, runs: int, verdict: str | None) -> Claim:
        known: dict[str | None, Verdict] = {"agrees": "agrees", "disagrees": "disagrees"}
        return Claim(
            self.name, says, words, runs, known.get(verdict, "cannot be decided at this scale")
        )


def regret_at_most_shared(seen: SweepFinding, rule: str) -> Regret | None:
    """From the optimum without sharing to the model that shares most."""
    transfer = seen.transfer(rule)
    known = transfer.regrets if transfer else ()
    return max(known, key=lambda one: one.member.position or 0.0, default=None)


EXPERIMENT = GqaAblation()
