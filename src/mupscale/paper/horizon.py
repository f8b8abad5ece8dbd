"""20 tokens a parameter: does a proxy, shared or not, find the best rate of a larger target with r
= 4?
"""

import dataclasses
import re
from collections.abc import Iterator

from mupscale.analysis import analyse
from mupscale.analysis.families import Regret, RuleTransfer
from mupscale.analysis.measurements import Measurement, Member
from mupscale.paper.experiment import Claim, Verdict
from mupscale.paper.sweeps import Sweep, SweepFinding, drift_words, with_ends

COINCIDES = 0.25
"""Octaves: nearer than this, two optima are at the same place of the paper's grid of half
powers.
"""


class Horizon(Sweep):
    """The proxies' best rates beside the target's, under each rule."""

    name = "horizon"
    study = "horizon"

    def lines(self, seen: SweepFinding) -> Iterator[str]:
        yield "proxy minus target, log2 of the best base rate, and what the target gives up at the proxy's:"
        for rule in seen.rules:
            for r, one in to_target(seen, rule).items():
                yield f"  {rule:<11} r = {r}: {with_ends(one.octaves)} octaves, {with_ends(one.loss, 4)} nats"

    def claims(self, seen: SweepFinding) -> Iterator[Claim]:
        vanilla, derived = (to_target(seen, rule) for rule in ("mup", "gqa-mup"))
        counts = {rule: sum(abs(one.octaves.value) < COINCIDES for one in found.values())
                  for rule, found in (("mup", vanilla), ("gqa-mup", derived))}  # fmt: skip
        words = "; ".join(
            f"{rule}: {n} of 4 within a quarter power of the target" for rule, n in counts.items()
        )
        yield Claim(
            self.name,
            "More proxies find the target's rate under GQA-μP (two of four) than under vanilla μP "
            "(one of four)",
            f"{words}; {_distances(vanilla, 'mup')}; {_distances(derived, 'gqa-mup')}",
            seen.count("mup", "gqa-mup"),
            _told(
                *(
                    to_target(seen, rule, together=len(vanilla) + len(derived))
                    for rule in ("mup", "gqa-mup")
                )
            ),
        )
        proxies = seen_over_r(seen)
        found = proxies.comparison("drift", "gqa-mup", "mup")
        verdict: Verdict = "cannot be decided at this scale"
        if found is not None and found.better is not None:
            verdict = "agrees" if found.better == "gqa-mup" else "disagrees"
        drifts = "; ".join(drift_words(proxies, rule) for rule in seen.rules)
        difference = (
            ""
            if found is None
            else f"; gqa-mup drifts {with_ends(found.difference)} further than mup"
        )
        yield Claim(
            self.name,
            "GQA-μP reduces the residual dependence on r at this horizon (its own proxies vary "
            "more over r: 0.063 "
            "against 0.047)",
            drifts + difference,
            proxies.count(),
            verdict,
        )


def _distances(found: dict[int, Regret], rule: str) -> str:
    words = [f"{with_ends(one.octaves)} (r = {r})" for r, one in found.items()]
    return f"{rule} proxies minus target {', '.join(words)}"


def _told(vanilla: dict[int, Regret], derived: dict[int, Regret]) -> Verdict:
    """Only where intervals that hold together place more proxies apart from the target under one
    rule.
    """
    apart = [sum(one.octaves.excludes(0) for one in found.values()) for found in (vanilla, derived)]
    if not vanilla or not derived or apart[0] == apart[1]:
        return "cannot be decided at this scale"
    return "agrees" if apart[1] < apart[0] else "disagrees"


def to_target(seen: SweepFinding, rule: str, together: int = 1) -> dict[int, Regret]:
    """By the proxy's r: how far its best rate lies above the target's, and what that costs there.

    So many intervals hold together with 95 %.
    """
    confidence = 1 - 0.05 / max(1, together)
    found: dict[int, Regret] = {}
    target = [run for run in seen.runs if run.rule == rule and _proxy_r(run.member) is None]
    for r in sorted({r for run in seen.runs if (r := _proxy_r(run.member))}):
        proxy = [run for run in seen.runs if run.rule == rule and _proxy_r(run.member) == r]
        (transfer,) = analyse(
            [*_placed(proxy, 1), *_placed(target, 2)], confidence=confidence
        ).transfers or (None,)
        if isinstance(transfer, RuleTransfer) and transfer.regrets:
            found[r] = transfer.regrets[0]
    return found


def seen_over_r(seen: SweepFinding) -> SweepFinding:
    """The proxies alone, with r as what is varied."""
    proxies = [run for run in seen.runs if _proxy_r(run.member)]
    runs = [placed for run in proxies for placed in _placed([run], _proxy_r(run.member) or 1)]
    return SweepFinding(analyse(runs, axis="r"), runs)


def _placed(runs: list[Measurement], position: float) -> list[Measurement]:
    return [
        dataclasses.replace(run, member=dataclasses.replace(run.member, position=position)) for run in runs
    ]  # fmt: skip


def _proxy_r(member: Member) -> int | None:
    """R of a proxy by its name, None for the target.

    >>> _proxy_r(Member(label="proxy-r8")), _proxy_r(Member(label="136m_r4")), _proxy_r(Member(label="target-r4"))
    (8, 4, None)
    """
    found = re.fullmatch(r"(?:proxy-|136m_)r(\d+)", member.label)
    return int(found[1]) if found else None


EXPERIMENT = Horizon()
