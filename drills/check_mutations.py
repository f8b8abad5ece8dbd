"""Does the coordinate check catch wrong plans, and does it raise false alarms? Eight wrong plans
and four right ones, with new seeds each time.

    python drills/check_mutations.py [REPETITIONS] [FOLDER]

A wrong plan counts as detected if the verdict is fail; inconclusive is a miss. It should also fail
where it is wrong: `expected` names the statistics and roles. A right plan that fails is a false
alarm. With a folder, finished checks are kept there, and the drill continues where it was stopped.
Exits with 1 if fewer than nine of ten wrong plans of any kind are detected, or if more than one in
twenty right plans fails (the check's confidence is 95 %).
"""

import dataclasses
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from mupscale import Plan, coordinate_check, plan
from mupscale.checks import CheckResult, Setup
from mupscale.checks.probe import Planner
from mupscale.engines import Local, run_jobs
from mupscale.planning import PlannedParameter
from mupscale.targets import Family
from mupscale.theory import Rule, rule_named

RIGHT = rule_named("gqa-mup")
ATTENTION = ("query", "key")
MATRICES = ("query", "key", "value", "attention_output", "mlp_in", "mlp_out")
"""What theory calls hidden, K and V included."""
BRANCHES = (("map", "attention"), ("map", "mlp"))
EPS = 1e-5
"""A fifth of the query's gradients at the base's width, so that it matters there; other roles have
larger ones.

Theory's estimate of a step leaves ε out: it predicts a slope of 0 even where ε is unscaled. In
truth it lies between 0 and −1, where ε is far above the gradients.
"""

Place = tuple[str, str]
"""A statistic and a role."""


def planned(
    model: nn.Module, base: nn.Module, change: Callable[[PlannedParameter], PlannedParameter]
) -> Plan:
    """The right plan with one `change`."""
    right = plan(model, base=base, rule=RIGHT)
    return dataclasses.replace(
        right, parameters={name: change(p) for name, p in right.parameters.items()}
    )


def without_rate(model: nn.Module, base: nn.Module) -> Plan:
    """The hidden learning rate without its 1/n."""

    def change(p: PlannedParameter) -> PlannedParameter:
        return dataclasses.replace(p, lr=p.lr * _width_ratio(p)) if p.role in MATRICES else p

    return planned(model, base, change)


def with_small_init(model: nn.Module, base: nn.Module) -> Plan:
    """Hidden matrices start with σ ~ 1/n instead of 1/√n."""

    def change(p: PlannedParameter) -> PlannedParameter:
        return (
            dataclasses.replace(p, init_std=p.init_std / math.sqrt(_width_ratio(p)))
            if p.role in MATRICES
            else p
        )

    return planned(model, base, change)


def without_multiplier(model: nn.Module, base: nn.Module) -> Plan:
    """The readout without its multiplier: (σ, η, λ, ε) as before folding."""

    def change(p: PlannedParameter) -> PlannedParameter:
        if p.role != "readout":
            return p
        a = p.folded
        return dataclasses.replace(
            p,
            init_std=p.init_std / a,
            lr=p.lr / a,
            weight_decay=p.weight_decay * a,
            eps=p.eps * a,
            folded=1.0,
        )

    return planned(model, base, change)


def _width_ratio(p: PlannedParameter) -> float:
    return p.target["n"] / p.base["n"]


@dataclass(frozen=True)
class Case:
    """A plan, and where it is wrong (nowhere for a right plan)."""

    name: str
    over: str
    rule: Rule = RIGHT
    planner: Planner | None = None
    eps: float = Setup.eps or 0.0
    expected: tuple[Place, ...] = ()

    @property
    def wrong(self) -> bool:
        return bool(self.expected)


@dataclass(frozen=True)
class Range:
    """The sizes of a model, with the number of seeds and steps."""

    model: str
    vary: Mapping[str, Sequence[int]]
    setup: Setup
    seeds: int
    steps: int = 2
    base: int | None = None

    def __str__(self) -> str:
        ((name, values),) = self.vary.items()
        base = "" if self.base is None else f", base {self.base}"
        return (
            f"{self.model}, {name} = {', '.join(map(str, values))}{base}; {self.seeds} seeds × "
            f"{self.steps} steps, "
            f"{self.setup.batch} × {self.setup.sequence} tokens"
        )


def _update(roles: Sequence[str]) -> tuple[Place, ...]:
    return tuple(("update", role) for role in roles)


def _start(roles: Sequence[str]) -> tuple[Place, ...]:
    return tuple(("start", role) for role in roles)


CASES = (
    Case(
        "K and V as hidden",
        "r",
        rule=RIGHT.with_(kv_factor="hidden"),
        expected=_update(("key", "value")),
    ),
    Case("no 1/n in the hidden rate", "width", planner=without_rate, expected=_update(MATRICES)),
    Case(
        "no readout multiplier",
        "width",
        planner=without_multiplier,
        expected=_update(("readout",)) + _start(("readout",)),
    ),
    Case("residual multiplier 1", "depth", rule=RIGHT.with_(depth="none"), expected=BRANCHES),
    Case(
        "residual multiplier 1/√L", "depth", rule=RIGHT.with_(depth="1/sqrt(L)"), expected=BRANCHES
    ),
    Case("ε unscaled", "width", rule=RIGHT.with_(eps="none"), eps=EPS, expected=_update(ATTENTION)),
    Case(
        "init 1/n", "width", planner=with_small_init, expected=_start(MATRICES) + _update(MATRICES)
    ),
    Case(
        "SP",
        "width",
        rule=rule_named("sp"),
        expected=_start((*MATRICES, "readout")) + _update((*MATRICES, "readout")),
    ),
    Case("gqa-mup", "r"),
    Case("gqa-mup", "width"),
    Case("gqa-mup", "depth"),
    Case("gqa-mup, large ε", "width", eps=EPS),
)
RANGES = {
    "r": Range("gpt:check", {"n_kv_heads": (12, 4, 2, 1)}, Setup(batch=1, sequence=256), seeds=6),
    # Many key heads from the start: while their number grows from a few, the key's update loses
    # coherence, and so size.
    "width": Range(
        "gpt:cpu_64_r1,depth=2,head_dim=8,n_heads=8,n_kv_heads=8",
        {"width": (64, 128, 256, 512)},
        Setup(),
        seeds=7,
    ),
    # Base 1 makes branches small from the start; at base 2 the residual stream is not yet made of
    # many small ones.
    "depth": Range("gpt:cpu_64_r2", {"depth": (2, 4, 8, 16)}, Setup(), seeds=3, base=1),
}


def check(case: Case, over: Range, seeds: Sequence[int]) -> CheckResult:
    return coordinate_check(
        Family(over.model),
        over.vary,
        rule=case.rule,
        planner=case.planner,
        seeds=seeds,
        steps=over.steps,
        setup=dataclasses.replace(over.setup, eps=case.eps),
        base=over.base,
        engine=Local(workers=0),
    )


def failing(result: CheckResult) -> set[Place]:
    return {(one.statistic, one.role) for one in result.judged if one.verdict == "fail"}


def recorded(job: tuple[Case, int]) -> dict[str, Any]:
    """A check as a line of the ledger."""
    case, repetition = job
    torch.set_num_threads(1)
    over, began = RANGES[case.over], time.process_time()
    result = check(case, over, range(100 * repetition, 100 * repetition + over.seeds))
    findings = [
        {
            "statistic": one.statistic, "role": one.role, "verdict": one.verdict,
            "slope": one.flatness.slope.value, "low": one.flatness.low, "high": one.flatness.high,
            "predicted": one.predicted,
        }
        for one in result.judged
    ]  # fmt: skip
    return {"verdict": result.verdict, "findings": findings, "seconds": time.process_time() - began}


@dataclass(frozen=True)
class Tally:
    """All repetitions of a case."""

    case: Case
    checks: Sequence[Mapping[str, Any]]

    def count(self, verdict: str) -> int:
        return sum(one["verdict"] == verdict for one in self.checks)

    def share(self, verdict: str) -> str:
        return f"{self.count(verdict)}/{len(self.checks)}"

    def places(self, verdict: str) -> Counter[Place]:
        """How often each finding had that verdict, the most frequent first."""
        found = Counter(
            (f["statistic"], f["role"])
            for one in self.checks
            for f in one["findings"]
            if f["verdict"] == verdict
        )
        return Counter(dict(found.most_common()))

    def mean(self, place: Place, field: str) -> float | None:
        values = [
            f[field]
            for one in self.checks
            for f in one["findings"]
            if (f["statistic"], f["role"]) == place
        ]
        return None if None in values else fmean(values)

    @property
    def in_place(self) -> int:
        """Repetitions in which an expected finding failed."""
        return sum(
            any(
                f["verdict"] == "fail" and (f["statistic"], f["role"]) in self.case.expected
                for f in one["findings"]
            )
            for one in self.checks
        )

    @property
    def caught_by(self) -> Place:
        """The expected finding that failed most often; the first in a tie."""
        fails = self.places("fail")
        return max(self.case.expected, key=lambda place: fails[place])


def wrong_lines(tallies: Sequence[Tally]) -> Iterator[str]:
    yield (
        f"{'wrong plan':<27}{'over':<7}{'detected':>9}{'inconclusive':>14}{'in place':>10}   "
        f"{'caught by':<26}{'slope':>7}{'theory':>8}"
    )
    for tally in tallies:
        place = tally.caught_by
        yield (
            f"{tally.case.name:<27}{tally.case.over:<7}{tally.share('fail'):>9}"
            f"{tally.count('inconclusive'):>14}{f'{tally.in_place}/{len(tally.checks)}':>10}   "
            f"{named(place):<26}{number(tally.mean(place, 'slope')):>7}"
            f"{number(tally.mean(place, 'predicted')):>8}"
        )


def right_lines(tallies: Sequence[Tally]) -> Iterator[str]:
    yield (
        f"{'right plan':<27}{'over':<7}{'false alarms':>13}{'inconclusive':>14}{'pass':>6}   "
        "steepest on average"
    )
    for tally in tallies:
        places = [
            (f["statistic"], f["role"])
            for f in tally.checks[0]["findings"]
            if f["role"] not in GROWING
        ]
        place = max(places, key=lambda place: abs(tally.mean(place, "slope") or 0.0))
        yield (
            f"{tally.case.name:<27}{tally.case.over:<7}{tally.share('fail'):>13}"
            f"{tally.count('inconclusive'):>14}{tally.count('pass'):>6}   "
            f"{named(place)} {number(tally.mean(place, 'slope'))}"
        )


GROWING = ("block", "stream")
"""Maps of which only growth is a fault: their fall is left out of the steepest."""


def detail_lines(tallies: Sequence[Tally]) -> Iterator[str]:
    yield (
        "Every finding that failed: how often, its mean slope and theory's; * where it was not "
        "expected:"
    )
    for tally in tallies:
        yield f"  {tally.case.name}, over {tally.case.over}"
        yield from _places(tally, "fail") if tally.places("fail") else ["    none"]
    yield ""
    yield "Findings of right plans that were inconclusive:"
    for tally in tallies:
        if not tally.case.wrong and tally.places("inconclusive"):
            yield f"  {tally.case.name}, over {tally.case.over}"
            yield from _places(tally, "inconclusive")


def _places(tally: Tally, verdict: str) -> Iterator[str]:
    for place, times in tally.places(verdict).items():
        mark = "*" if verdict == "fail" and place not in tally.case.expected else " "
        slope, theory = (number(tally.mean(place, field)) for field in ("slope", "predicted"))
        yield f"   {mark}{named(place):<28}{times:>3}{slope:>9}{theory:>8}".rstrip()


def named(place: Place) -> str:
    return f"{place[0]} of {place[1]}"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}".replace("-", "−")


def carried_out(repetitions: int, folder: Path) -> list[Tally]:
    jobs = {
        f"{case.name} over {case.over}, {repetition}": (case, repetition)
        for repetition in range(1, repetitions + 1)
        for case in CASES
    }
    about = {
        "cases": [repr(dataclasses.replace(case, planner=None)) for case in CASES],
        "ranges": {over: repr(values) for over, values in RANGES.items()},
    }
    results = run_jobs(
        recorded,
        jobs,
        ledger=folder / "checks.jsonl",
        about=about,
        report=lambda done, total: print(f"{done} of {total} checks", file=sys.stderr),
    )
    return [
        Tally(case, [results[f"{case.name} over {case.over}, "
                             f"{k}"] for k in range(1, repetitions + 1)])
        for case in CASES
    ]  # fmt: skip


def main() -> int:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as scratch:
        tallies = carried_out(repetitions, Path(sys.argv[2] if len(sys.argv) > 2 else scratch))
    wrong, right = (
        [tally for tally in tallies if tally.case.wrong is side] for side in (True, False)
    )
    for lines in (wrong_lines(wrong), right_lines(right), detail_lines(tallies)):
        print("\n".join(lines), end="\n\n")
    for over, values in RANGES.items():
        print(f"over {over}: {values}")
    seconds = sum(one["seconds"] for tally in tallies for one in tally.checks)
    print(
        f"adamw, lr {Setup.lr:.3g}, std {Setup.std}, ε {Setup.eps} ({EPS} where large or "
        "unscaled); tolerance ±0.1 "
        f"at 95 % together\nrepetition k has seeds 100k, 100k + 1, …\n"
        f"python drills/check_mutations.py {len(tallies[0].checks)}: {seconds / 60:.0f} minutes of "
        "one core in all"
    )
    missed = any(tally.count("fail") < 0.9 * len(tally.checks) for tally in wrong)
    alarms = sum(tally.count("fail") for tally in right) > 0.05 * sum(
        len(tally.checks) for tally in right
    )
    return 1 if missed or alarms else 0


if __name__ == "__main__":
    sys.exit(main())
