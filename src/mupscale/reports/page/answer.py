"""The answer in words, with intervals, seeds and numbers of runs; "better" only where a comparison
says so.
"""

from dataclasses import dataclass
from typing import Literal

from mupscale.analysis.families import CellAnalysis, Comparison, Regret, RuleTransfer, StudyAnalysis
from mupscale.analysis.verdicts import DriftVerdict, Movement
from mupscale.reports.page.data import PageData
from mupscale.reports.words import (
    AXES,
    decimal,
    interval,
    listed,
    many,
    power,
    with_interval,
)
from mupscale.studies.trials import FAILED

Tone = Literal["still", "moves", "open"]
_TONES: dict[Movement, tuple[Tone, str]] = {
    "still": ("still", "the best rate stays still"),
    "moves": ("moves", "the best rate moves"),
    "no significant drift": ("open", "no significant drift, but not shown to be still"),
    "unknown": ("open", "these runs do not show whether it transfers"),
}


@dataclass(frozen=True)
class Saying:
    """A sentence or two on one rule: whether its optimum holds still, moves, or cannot be told."""

    tone: Tone
    rule: str
    verdict: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What stands at the top of the page."""

    lead: tuple[str, ...]
    sayings: tuple[Saying, ...]
    comparisons: tuple[str, ...]


def answer(data: PageData) -> Answer:
    analysis = data.analysis
    if not any(cell.lowest for cell in analysis.cells):
        return Answer((_nothing(data),), (), ())
    sayings = tuple(_saying(one, analysis) for one in analysis.transfers)
    return Answer(_lead(data, sayings), sayings, _told_apart(analysis))


def _nothing(data: PageData) -> str:
    ended = len(data.trials)
    if not ended:
        return "No trial has ended yet, so there is nothing to say. mupscale sweep runs the study."
    failed = sum(1 for trial in data.trials if trial["status"] in FAILED)
    diverged = sum(1 for trial in data.trials if trial["status"] == "diverged")
    fix = (
        "Lower the rates"
        if diverged
        else "See the errors below, mend them, and run with --retry-failed"
    )
    what = f"{diverged:,} diverged, {failed:,} failed"
    return f"Not one of {many(ended, 'trial')} finished ({what}): nothing is recommended. {fix}."


def _lead(data: PageData, sayings: tuple[Saying, ...]) -> tuple[str, ...]:
    so_far = "" if data.progress.done else f"So far ({data.progress.text}): "
    by_tone = {
        tone: [one.rule for one in sayings if one.tone == tone]
        for tone in ("still", "moves", "open")
    }
    axis = _axis(data.analysis)
    parts: list[str] = []
    if by_tone["moves"]:
        parts.append(f"under {listed(by_tone['moves'])} the best rate moves with {axis}")
    if by_tone["still"]:
        parts.append(f"under {listed(by_tone['still'])} the best rate stays still over {axis}")
    if by_tone["open"] and len(sayings) > len(by_tone["open"]):
        parts.append(f"under {listed(by_tone['open'])} these runs do not decide it")
    text = so_far + "; ".join(parts)
    return (text[:1].upper() + text[1:] + ".",) if parts else (_single(data, so_far),)


def _single(data: PageData, so_far: str) -> str:
    """Of a study that cannot say anything about transfer: the best rate it knows."""
    found = [
        cell for cell in data.analysis.cells if "lr" in cell.found and cell.found["lr"].bounded
    ]
    best = min(found, key=lambda cell: cell.loss or 0.0, default=None)
    if best is None:
        return _lowest(data, so_far)
    rate = best.found["lr"]
    where = f"{best.rule}{'' if len(data.analysis.cells) == 1 else f' on {best.member.label}'}"
    evidence = f"{many(best.runs, 'run')}, {many(len(best.seeds), 'seed')}"
    return (
        f"{so_far}Best base lr {power(rate.value)} = {decimal(2**rate.value)} under {where}, with "
        "a loss of "
        f"{best.loss:.4f} nats ({data.analysis.confidence:.0%} interval of log2 {interval(rate)}; "
        f"{evidence}). "
        "Whether it holds from model to model cannot be said from these runs."
    )


def _lowest(data: PageData, so_far: str) -> str:
    cells = [cell for cell in data.analysis.cells if cell.lowest is not None]
    best = min(
        (cell.lowest for cell in cells if cell.lowest is not None), key=lambda run: run.loss or 0.0
    )
    rate = f"lr {decimal(best.params['lr'])} = {power(best.log2('lr'))}"
    return (
        f"{so_far}No optimum is known yet. The lowest loss, {best.loss:.4f} nats, was reached by "
        "one run of "
        f"{best.rule} on {best.member.label} at {rate}."
    )


def _saying(transfer: RuleTransfer, analysis: StudyAnalysis) -> Saying:
    cells = [
        cell for cell in analysis.cells if cell.rule == transfer.rule and cell.lowest is not None
    ]
    judged = analysis.drift_verdict(transfer.rule)
    tone, verdict = _TONES[judged.movement]
    lines = [
        line
        for line in (
            _where(transfer, cells, analysis),
            _drift(transfer, analysis, judged),
            _costs(transfer),
        )
        if line
    ]
    return Saying(tone, transfer.rule, verdict, tuple(lines))


def _where(transfer: RuleTransfer, cells: list[CellAnalysis], analysis: StudyAnalysis) -> str:
    if transfer.mean is None:
        return ""
    seeds = sorted({seed for cell in cells for seed in cell.seeds})
    evidence = f"{many(sum(cell.runs for cell in cells), 'run')}, {many(len(seeds), 'seed')}"
    mean = transfer.mean
    bounds = f"{analysis.confidence:.0%} interval of log2 {interval(mean)}"
    count = len(transfer.members)
    over = (
        f"mean of {many(count, 'model')}, sd {with_interval(transfer.sd)} octaves; "
        if count > 1
        else ""
    )
    return (
        f"Best base lr {power(mean.value)} = {decimal(2**mean.value)} ({over}{bounds}; {evidence})."
    )


def _drift(transfer: RuleTransfer, analysis: StudyAnalysis, judged: DriftVerdict) -> str:
    if transfer.drift is None:
        return _too_few(transfer)
    drift = f"{with_interval(transfer.drift)} octaves per doubling of {_axis(analysis)}"
    return f"Drift {drift} ({judged.sentence})."


def _too_few(transfer: RuleTransfer) -> str:
    if not transfer.members:
        return "No optimum is known here yet; the notes in the table below say why."
    if len(transfer.members) == 1:
        return (
            f"Only {transfer.members[0].label} has an optimum: nothing can be said of other models."
        )
    return "The models stand on no common axis, so that there is no drift to give; the spread is above."


def _costs(transfer: RuleTransfer) -> str:
    if not transfer.regrets:
        return ""
    worst: Regret = max(transfer.regrets, key=lambda one: one.loss.value)
    return (
        f"Training with the rate of {worst.proxy.label} costs most on {worst.member.label}: "
        f"{with_interval(worst.loss, 4)} nats above its own best."
    )


def _told_apart(analysis: StudyAnalysis) -> tuple[str, ...]:
    told = [_comparison(one) for one in analysis.comparisons if one.better is not None]
    if not told and analysis.comparisons:
        return ("No two rules are told apart by these runs: every paired interval holds zero.",)
    rest = len(analysis.comparisons) - len(told)
    more = (
        [f"{many(rest, 'comparison')} more, in the tables below, told no rules apart."]
        if rest
        else []
    )
    return (*told, *more)


def _comparison(one: Comparison) -> str:
    other = one.second if one.better == one.first else one.first
    return (
        f"{one.better} is better than {other} in {one.quantity}: {one.first} − {one.second} = "
        f"{with_interval(one.difference, 4)} {one.unit}, on the same seeds."
    )


def _axis(analysis: StudyAnalysis) -> str:
    return AXES.get(analysis.axis or "", analysis.axis or "the model")
