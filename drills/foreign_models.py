"""Are models of other projects planned correctly, and does the coordinate check agree?

    python drills/foreign_models.py [MODEL …]

For each model of `tests/foreign/cases.py`: how many roles the user has to name, how many numbers of
its plans equal those of the hand-written tables (over the width, the depth and r), and the verdict
of the coordinate check on the plan over each of them and on the standard parameterization over the
width. Seeds are added while a check is inconclusive. Exits with 1 on a wrong number, a failed
check, or a check that passes the standard parameterization.
"""

import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import nn

HERE = Path(__file__).parent.parent
sys.path.insert(0, str(HERE))

from mupscale import Reading  # noqa: E402
from mupscale.checks import CheckResult, Finding, Setup, coordinate_check  # noqa: E402
from mupscale.engines import Local  # noqa: E402
from mupscale.errors import MupscaleError  # noqa: E402
from tests.foreign.cases import CASES, TORCHTITAN, Case  # noqa: E402
from tests.foreign.judging import count_numbers, faults, planned  # noqa: E402
from tests.foreign.packages import HEAD  # noqa: E402
from tests.foreign.training import training  # noqa: E402

BASE, TARGET = {"width": 32, "depth": 2}, {"width": 128, "depth": 2}
NUMBERS: Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]] = {
    "width": (TARGET, BASE),
    "depth": (TARGET | {"depth": 4}, BASE),
    "r": (TARGET | {"n_kv_heads": 2}, TARGET | {"n_kv_heads": 8}),
    "r from 2": (TARGET | {"n_kv_heads": 2}, TARGET | {"n_kv_heads": 4}),
}
"""Target and base of the plans whose numbers are compared."""

SHAPES: Mapping[str, Mapping[str, int]] = {
    "width": {"depth": 2},
    "depth": {"width": 96},
    "r": {"width": 192, "depth": 2},
}
"""What is not varied in a check."""
VALUES: Mapping[str, Mapping[str, Sequence[int]]] = {
    "width": {"width": (96, 192, 384)},
    "depth": {"depth": (2, 4, 8)},
    "r": {"n_kv_heads": (12, 6, 3)},
}
NARROW = {"timm's ResNet": (32, 64, 128)}
"""Widths of what would take long: its fans are 9 times as large."""
KNOWN = {
    (
        name,
        "depth",
    ): "x0_lambdas adds a tenth of the first stream in every block, at any depth; the plan warns "
    "of it"
    for name in ("nanochat", "nanochat, no value tables")
}
"""Checks that must fail, with the reason: the stream grows with the depth by a constant of the
model's own.
"""
SETUP = Setup(batch=4, sequence=128)
STEPS = 2
SEEDS = (3, 6, 12)
SEEDS_OF_SP = (3,)
COLUMNS = (27, 12, 7, 11, 24, 24, 24, 0)


@dataclass(frozen=True)
class Building:
    """Builds a case's model at the sizes of a check."""

    name: str
    quantity: str

    def __call__(self, **varied: int) -> nn.Module:
        return _case(self.name).model(**SHAPES[self.quantity], **varied)


@dataclass(frozen=True)
class Row:
    """The results for one model."""

    case: Case
    parameters: int
    numbers: int
    wrong: Sequence[str]
    checks: Mapping[str, CheckResult]
    sp: CheckResult

    def cells(self) -> list[str]:
        right = f"{self.numbers - len(self.wrong)}/{self.numbers}"
        checks = [_verdict(self.checks.get(name)) for name in VALUES]
        return [
            self.case.name,
            str(self.parameters),
            str(len(self.case.roles)),
            right,
            *checks,
            _verdict(self.sp),
        ]

    def faults(self) -> Iterator[str]:
        yield from self.wrong
        for name, result in self.checks.items():
            known = (self.case.name, name) in KNOWN
            if result.verdict == "fail" and not known:
                yield f"the check over {name} fails: {_worst(result)}"
            if result.verdict != "fail" and known:
                yield f"the check over {name} must fail: {KNOWN[self.case.name, name]}"
        if self.sp.verdict != "fail":
            yield f"the check does not fail with standard parametrization: {_worst(self.sp)}"

    def remarks(self) -> Iterator[str]:
        for name, result in self.checks.items():
            if result.verdict == "inconclusive":
                yield f"inconclusive over {name}: {_worst(result)}"
            if (self.case.name, name) in KNOWN:
                yield f"over {name}: {_worst(result)}. {KNOWN[self.case.name, name]}"


def _case(name: str) -> Case:
    return TORCHTITAN if name == TORCHTITAN.name else CASES[name]


def _verdict(result: CheckResult | None) -> str:
    return "–" if result is None else f"{result.verdict}, {len(result.about['seeds'])} seeds"


def _worst(result: CheckResult) -> str:
    """What is missing, and the finding furthest from flat."""
    rank = {"fail": 0, "inconclusive": 1, "pass": 2}
    missing = [f"{name} was not measured" for name in result.unjudged]

    def distance(one: Finding) -> tuple[int, float]:
        return rank[one.verdict or "pass"], -max(-one.flatness.low, one.flatness.high)

    worst = min(result.judged, key=distance, default=None)
    if worst is None or worst.verdict == "pass":
        return "; ".join(missing) or "nothing was judged"
    flat = worst.flatness
    slope = (
        f"{worst.label} of {worst.role} {flat.slope.value:+.3f} [{flat.low:+.3f}, {flat.high:+.3f}]"
    )
    return "; ".join([*missing, slope])


def numbers(case: Case) -> tuple[int, list[str]]:
    """The number of compared numbers, and the wrong ones."""
    total, wrong = 0, list[str]()
    for name, (target, base) in NUMBERS.items():
        if name in _quantities(case) or (name == "r from 2" and "r" in _quantities(case)):
            total += count_numbers(case, target, base)
            wrong += [f"over {name}: {fault}" for fault in faults(case, target, base)]
    return total, wrong


def _quantities(case: Case) -> list[str]:
    """The dimensions that can be varied."""
    return [
        "width",
        *(["depth"] if case.deepens else []),
        *(["r"] if case.shares or case.fused else []),
    ]


def check(case: Case, quantity: str, rule: str, reading: Reading, folder: Path) -> CheckResult:
    """With as many seeds as needed, up to a limit."""
    ((name, values),) = VALUES[quantity].items()
    values = NARROW.get(case.name, values) if quantity == "width" else values
    values = values[:2] if rule == "sp" else values  # that it fails is plain to see
    how = training(case.name)
    place = folder / f"{case.name}-{quantity}-{rule}"
    result: CheckResult | None = None
    for seeds in SEEDS_OF_SP if rule == "sp" else SEEDS:
        result = coordinate_check(
            Building(case.name, quantity), {name: values}, rule=rule, seeds=seeds, steps=STEPS,
            setup=SETUP, data=how.data, loss=how.loss, reading=reading, engine=Local(workers=0),
            folder=place,
        )  # fmt: skip
        if result.verdict != "inconclusive" or result.unjudged:
            break
    assert result is not None
    return result


def judged(case: Case, folder: Path) -> Row:
    plan = planned(case, case.model(**TARGET), case.model(**BASE))
    total, wrong = numbers(case)
    checks = {
        name: check(case, name, "gqa-mup", plan.reading, folder) for name in _quantities(case)
    }
    sp = check(case, "width", "sp", plan.reading, folder)
    return Row(case, len(plan.parameters), total, wrong, checks, sp)


def line(cells: Sequence[str]) -> str:
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, COLUMNS, strict=True)).rstrip()


def _titan_in_sight() -> None:
    """It comes last: what torchtitan depends on must not be visible to the others."""
    sys.path.append(str(Path(sys.prefix) / "torchtitan"))


def main() -> int:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    names = sys.argv[1:] or [*CASES, TORCHTITAN.name]
    began, wrong = time.perf_counter(), 0
    widths, depths, heads = (", ".join(map(str, *values.values())) for values in VALUES.values())
    print(
        f"widths {widths}; depths {depths}; key/value heads {heads} of "
        f"{SHAPES['r']['width'] // HEAD}"
    )
    print(f"AdamW, lr {SETUP.lr:.3g}, {STEPS} steps; flat is within ±0.1\n")
    print(
        line(
            [
                "model",
                "parameters",
                "roles",
                "numbers",
                "over width",
                "over depth",
                "over r",
                "SP over width",
            ]
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if name == TORCHTITAN.name:
                _titan_in_sight()
            try:
                row = judged(_case(name), Path(folder))
            except MupscaleError as error:
                wrong += 1
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                continue
            found = list(row.faults())
            wrong += len(found)
            print(line(row.cells()), flush=True)
            for fault in found:
                print(f"  WRONG: {fault}", flush=True)
            for remark in row.remarks():
                print(f"  {remark}", flush=True)
    print(f"\n{wrong} faults ({time.perf_counter() - began:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
