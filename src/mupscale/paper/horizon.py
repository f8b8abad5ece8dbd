"""20 tokens per parameter: does a proxy, with shared heads or without, find the best learning rate
of a larger target with r = 4?
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence

from mupscale.analysis import Estimate, analyse
from mupscale.analysis.families import Regret
from mupscale.analysis.measurements import Measurement, Member
from mupscale.paper.claims import UNDECIDED, Claim, Verdict, combined, decided
from mupscale.paper.sweeps import (
    Sweep,
    SweepFinding,
    difference_words,
    drift_words,
    less_drift,
    with_ends,
)

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
        apart = apart_by_fit(finding, together)
        separated = ", ".join(
            f"{fit} {'not located' if one is None else f'{one[0]} and {one[1]}'}"
            for fit, one in apart.items()
        )
        yield Claim(
            self.name,
            "best rates",
            "More proxies find the target's learning rate under GQA-μP (two of four) than under "
            "vanilla μP (one of four)",
            f"estimates: {counts}; {distances}; proxies that simultaneous intervals separate from "
            f"the target, under {' and '.join(RULES)}: {separated} ({finding.seeds} seeds)",
            finding.count(*RULES),
            combined([_judged(one) for one in apart.values()]),
        )
        proxies = seen_over_r(finding)
        words = [drift_words(proxies, rule) for rule in finding.rules]
        words.append(difference_words(proxies, "gqa-mup", "mup"))
        yield Claim(
            self.name,
            "best rates",
            "GQA-μP reduces the residual dependence on r at this horizon (its own proxies vary "
            "more over r: 0.063 against 0.047)",
            f"{'; '.join(filter(None, words))} ({finding.seeds} seeds)",
            proxies.count(),
            less_drift(proxies, "gqa-mup", "mup"),
        )


def _judged(apart: tuple[int, int] | None) -> Verdict:
    """Decided only where simultaneous intervals separate more proxies from the target under one
    rule than under the other.
    """
    return UNDECIDED if apart is None else decided(apart[1] < apart[0], apart[1] > apart[0])


def apart_by_fit(finding: SweepFinding, together: int) -> dict[str, tuple[int, int] | None]:
    """How many proxies intervals separate from the target under each rule, by fit; None where a fit
    does not locate them all. `together` intervals hold simultaneously.
    """
    own = [to_target(finding, rule, together) for rule in RULES]
    found: dict[str, tuple[int, int] | None] = {
        "one curve": _two([[one.octaves for one in proxies.values()] for proxies in own])
    }
    by_rule = [_distances(finding, rule, 1 - 0.05 / max(1, together)) for rule in RULES]
    for fit in finding.optima_by_fit.by_fit:
        found[fit] = _two([[proxy[fit] for proxy in proxies] for proxies in by_rule])
    return found


def _two(distances: Sequence[Sequence[Estimate | None]]) -> tuple[int, int] | None:
    known = [[one for one in own if one is not None] for own in distances]
    if any(not own or len(own) < len(every) for own, every in zip(known, distances, strict=True)):
        return None
    vanilla, derived = (sum(one.excludes(0) for one in own) for own in known)
    return vanilla, derived


def _distances(
    finding: SweepFinding, rule: str, confidence: float
) -> list[dict[str, Estimate | None]]:
    """Of each proxy from the target, by fit."""
    members = [cell.member for cell in finding.cells(rule)]
    target = next(one for one in members if _proxy_r(one) is None)
    optima = finding.optima_by_fit
    return [
        optima.contrast({(rule, one): 1, (rule, target): -1}, confidence)
        for one in members
        if _proxy_r(one) is not None
    ]


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
