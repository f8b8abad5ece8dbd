"""20 tokens per parameter: does a proxy, with shared heads or without, find the best learning rate
of a larger target with r = 4?
"""

import dataclasses
import re
from collections.abc import Iterator

from mupscale.analysis import analyse
from mupscale.analysis.families import Regret
from mupscale.analysis.measurements import Measurement, Member
from mupscale.paper.claims import UNDECIDED, Claim, Verdict, decided
from mupscale.paper.sweeps import Sweep, SweepFinding, drift_words, with_ends

COINCIDES = 0.25
"""Octaves: two optima nearer than this are the same point of the paper's grid of half powers."""

RULES = ("mup", "gqa-mup")


class Horizon(Sweep):
    """The best learning rates of proxies and target, under each rule."""

    name = "horizon"
    study = "horizon"

    def lines(self, finding: SweepFinding) -> Iterator[str]:
        yield (
            "proxy minus target, log2 of the best base learning rate, and the loss that the target "
            "gives up at the proxy's:"
        )
        for rule in finding.rules:
            for r, one in to_target(finding, rule).items():
                octaves, nats = with_ends(one.octaves), with_ends(one.loss, 4)
                yield f"  {rule:<11} r = {r}: {octaves} octaves, {nats} nats"

    def claims(self, finding: SweepFinding) -> Iterator[Claim]:
        found = {rule: to_target(finding, rule) for rule in RULES}
        counts = "; ".join(
            f"{rule}: {sum(abs(one.octaves.value) < COINCIDES for one in proxies.values())} of 4 "
            "within a quarter power of the target"
            for rule, proxies in found.items()
        )
        distances = "; ".join(
            f"{rule} proxies minus target "
            + ", ".join(f"{with_ends(one.octaves)} (r = {r})" for r, one in proxies.items())
            for rule, proxies in found.items()
        )
        together = sum(map(len, found.values()))
        yield Claim(
            self.name,
            "best rates",
            "More proxies find the target's learning rate under GQA-μP (two of four) than under "
            "vanilla μP (one of four)",
            f"{counts}; {distances}",
            finding.count(*RULES),
            _judged(*(to_target(finding, rule, together) for rule in RULES)),
        )
        proxies = seen_over_r(finding)
        drift = proxies.comparison("drift", "gqa-mup", "mup")
        words = [drift_words(proxies, rule) for rule in finding.rules]
        if drift is not None:
            words.append(f"gqa-mup drifts {with_ends(drift.difference)} further than mup")
        better = drift.better if drift else None
        yield Claim(
            self.name,
            "best rates",
            "GQA-μP reduces the residual dependence on r at this horizon (its own proxies vary "
            "more over r: 0.063 against 0.047)",
            "; ".join(words),
            proxies.count(),
            decided(better == "gqa-mup", better is not None),
        )


def _judged(vanilla: dict[int, Regret], derived: dict[int, Regret]) -> Verdict:
    """Decided only where simultaneous intervals separate more proxies from the target under one
    rule than under the other.
    """
    apart = [sum(one.octaves.excludes(0) for one in found.values()) for found in (vanilla, derived)]
    if not vanilla or not derived:
        return UNDECIDED
    return decided(apart[1] < apart[0], apart[1] > apart[0])


def to_target(finding: SweepFinding, rule: str, together: int = 1) -> dict[int, Regret]:
    """By the proxy's r: how far its best learning rate is above the target's, and the loss there.

    `together` intervals hold simultaneously with 95 % confidence.
    """
    confidence = 1 - 0.05 / max(1, together)
    runs = [run for run in finding.runs if run.rule == rule]
    target = [run for run in runs if _proxy_r(run.member) is None]
    found: dict[int, Regret] = {}
    for r in sorted({r for run in finding.runs if (r := _proxy_r(run.member))}):
        proxy = [run for run in runs if _proxy_r(run.member) == r]
        pair = analyse([*_placed(proxy, 1), *_placed(target, 2)], confidence=confidence)
        if pair.transfers and pair.transfers[0].regrets:
            found[r] = pair.transfers[0].regrets[0]
    return found


def seen_over_r(finding: SweepFinding) -> SweepFinding:
    """The proxies alone, as a family over r."""
    proxies = [(run, _proxy_r(run.member)) for run in finding.runs]
    runs = [placed for run, r in proxies if r for placed in _placed([run], r)]
    return SweepFinding(analyse(runs, axis="r"), runs)


def _placed(runs: list[Measurement], position: float) -> list[Measurement]:
    return [
        dataclasses.replace(run, member=dataclasses.replace(run.member, position=position))
        for run in runs
    ]


def _proxy_r(member: Member) -> int | None:
    """R of a proxy by its name, None for the target.

    >>> [_proxy_r(Member(label=label)) for label in ("proxy-r8", "136m_r4", "target-r4")]
    [8, 4, None]
    """
    found = re.fullmatch(r"(?:proxy-|136m_)r(\d+)", member.label)
    return int(found[1]) if found else None


EXPERIMENT = Horizon()
