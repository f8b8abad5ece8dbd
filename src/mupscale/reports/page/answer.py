"""The answer in words, with intervals and evidence; "better" only where a comparison shows it."""

from dataclasses import dataclass
from typing import Literal

from mupscale.analysis.families import CellAnalysis, Comparison, Regret, RuleTransfer, StudyAnalysis
from mupscale.analysis.verdicts import DriftVerdict, Movement
from mupscale.reports.page.data import PageData
from mupscale.reports.words import AXES, decimal, interval, listed, power, with_interval
from mupscale.studies.trials import FAILED
from mupscale.text import many

Tone = Literal["still", "moves", "open"]
_TONES: dict[Movement, tuple[Tone, str]] = {
    "still": ("still", "the best rate stays still"),
    "moves": ("moves", "the best rate moves"),
    "no significant drift": ("open", "no significant drift, but not shown to be still"),
    "unknown": ("open", "these runs do not show whether it transfers"),
}


@dataclass(frozen=True)
class RuleAnswer:
    """One rule: whether its optimum stays still, moves, or is undecided, and its numbers."""

    tone: Tone
    rule: str
    verdict: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """The top of the page."""

    lead: tuple[str, ...]
    rules: tuple[RuleAnswer, ...]
    comparisons: tuple[str, ...]


EXTRAPOLATED = "This is extrapolated: the fitted curve has no runs there."


def answer(data: PageData) -> Answer:
    analysis = data.analysis
    if not any(cell.lowest for cell in analysis.cells):
        return Answer((_nothing(data),), (), ())
    rules = tuple(_rule(one, analysis) for one in analysis.transfers)
    return Answer(_lead(data, rules), rules, _comparisons(analysis))


def _nothing(data: PageData) -> str:
    ended = len(data.trials)
    if not ended:
        return "No trial has finished yet. Run the study with mupscale sweep."
    statuses = [trial["status"] for trial in data.trials]
    failed = sum(status in FAILED for status in statuses)
    diverged = statuses.count("diverged")
    fix = "Lower the rates" if diverged else "Fix the errors below and run with --retry-failed"
    reasons = f"{diverged:,} diverged, {failed:,} failed"
    return f"None of {many(ended, 'trial')} finished ({reasons}): nothing is recommended. {fix}."


def _lead(data: PageData, rules: tuple[RuleAnswer, ...]) -> tuple[str, ...]:
    so_far = "" if data.progress.done else f"So far ({data.progress.text}): "
    if all(one.tone == "open" for one in rules):
        return (_single(data, so_far),)
    axis = _axis(data.analysis)
    words = {
        "moves": f"the best rate moves with {axis}",
        "still": f"the best rate stays still over {axis}",
        "open": "these runs do not decide it",
    }
    by_tone = {tone: [one.rule for one in rules if one.tone == tone] for tone in words}
    parts = [f"under {listed(own)} {words[tone]}" for tone, own in by_tone.items() if own]
    text = so_far + "; ".join(parts)
    return (text[:1].upper() + text[1:] + ".",)


def _single(data: PageData, so_far: str) -> str:
    """For a study that does not show whether a rate transfers: the best known rate."""
    cells = data.analysis.cells
    bounded = [cell for cell in cells if "lr" in cell.found and cell.found["lr"].bounded]
    best = min(bounded, key=lambda cell: cell.loss or 0.0, default=None)
    if best is None:
        return _lowest(data, so_far)
    rate = best.found["lr"]
    where = f"{best.rule}{'' if len(data.analysis.cells) == 1 else f' on {best.member.label}'}"
    evidence = f"{many(best.runs, 'run')}, {many(len(best.seeds), 'seed')}"
    return (
        f"{so_far}Best base learning rate {power(rate.value)} = {decimal(2**rate.value)} under "
        f"{where}, with a loss of {best.loss:.4f} nats ({data.analysis.confidence:.0%} interval of "
        f"log2 {interval(rate)}; {evidence}). These runs do not show whether it transfers to other "
        "models."
    )


def _lowest(data: PageData, so_far: str) -> str:
    lowest = (cell.lowest for cell in data.analysis.cells if cell.lowest is not None)
    best = min(lowest, key=lambda run: run.loss or 0.0)
    rate = f"lr {decimal(best.params['lr'])} = {power(best.log2('lr'))}"
    return (
        f"{so_far}No optimum is known yet. The lowest loss is {best.loss:.4f} nats, of one run of "
        f"{best.rule} on {best.member.label} at {rate}."
    )


def _rule(transfer: RuleTransfer, analysis: StudyAnalysis) -> RuleAnswer:
    cells = [
        cell for cell in analysis.cells if cell.rule == transfer.rule and cell.lowest is not None
    ]
    judged = analysis.drift_verdict(transfer.rule)
    tone, verdict = _TONES[judged.movement]
    where, drift = _where(transfer, cells, analysis), _drift(transfer, analysis, judged)
    lines = tuple(line for line in (where, drift, _costs(transfer)) if line)
    return RuleAnswer(tone, transfer.rule, verdict, lines)


def _where(transfer: RuleTransfer, cells: list[CellAnalysis], analysis: StudyAnalysis) -> str:
    if transfer.mean is None:
        return ""
    seeds = sorted({seed for cell in cells for seed in cell.seeds})
    evidence = f"{many(sum(cell.runs for cell in cells), 'run')}, {many(len(seeds), 'seed')}"
    mean = transfer.mean
    bounds = f"{analysis.confidence:.0%} interval of log2 {interval(mean)}"
    count = len(transfer.members)
    spread = f"mean of {many(count, 'model')}, sd {with_interval(transfer.sd)} octaves; "
    over = spread if count > 1 else ""
    rate = f"{power(mean.value)} = {decimal(2**mean.value)}"
    return f"Best base learning rate {rate} ({over}{bounds}; {evidence})."


def _drift(transfer: RuleTransfer, analysis: StudyAnalysis, judged: DriftVerdict) -> str:
    if transfer.drift is None:
        return _too_few(transfer)
    drift = f"{with_interval(transfer.drift)} octaves per doubling of {_axis(analysis)}"
    return f"Drift {drift}. Verdict: {judged.sentence.replace(':', ';', 1)}."


def _too_few(transfer: RuleTransfer) -> str:
    if not transfer.members:
        return "No optimum is known yet; the table below says why."
    if len(transfer.members) == 1:
        return f"Only {transfer.members[0].label} has an optimum, so transfer is not measured."
    return "The models have no common axis, so there is no drift; the spread is above."


def _costs(transfer: RuleTransfer) -> str:
    if not transfer.regrets:
        return ""
    worst: Regret = max(transfer.regrets, key=lambda one: one.loss.value)
    text = (
        f"Training at the optimum of {worst.proxy.label} costs most on {worst.member.label}: "
        f"{with_interval(worst.loss, 4)} nats more than its own optimum."
    )
    return f"{text} {EXTRAPOLATED}" if worst.extrapolated else text


def _comparisons(analysis: StudyAnalysis) -> tuple[str, ...]:
    clear = [_comparison(one) for one in analysis.comparisons if one.better is not None]
    if not clear and analysis.comparisons:
        return ("The rules are indistinguishable in these runs: every paired interval has zero.",)
    rest = len(analysis.comparisons) - len(clear)
    more = [f"{many(rest, 'more comparison')} in the tables below: no significant difference."]
    return (*clear, *(more if rest else []))


def _comparison(one: Comparison) -> str:
    other = one.second if one.better == one.first else one.first
    return (
        f"{one.better} is better than {other} in {one.quantity}: {one.first} − {one.second} = "
        f"{with_interval(one.difference, 4)} {one.unit}, on the same seeds."
    )


def _axis(analysis: StudyAnalysis) -> str:
    return AXES.get(analysis.axis or "", analysis.axis or "the model")
