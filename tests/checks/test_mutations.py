"""A wrong plan fails the check, and where it is wrong; a right one does not.
`drills/check_mutations.py` in small.
"""

import dataclasses

import pytest

from drills.check_mutations import CASES, EPS, Case, Place, Range, check, failing
from mupscale.checks import Setup

RANGES = {
    "r": Range(
        "gpt:cpu_96_r1,depth=1,n_heads=12,n_kv_heads=12,head_dim=16",
        {"n_kv_heads": (12, 4, 1)},
        Setup(batch=4, sequence=64),
        seeds=5,
        steps=1,
    ),
    "width": Range(
        "gpt:cpu_32_r1,depth=1,head_dim=8,n_heads=4,n_kv_heads=4",
        {"width": (32, 64, 128)},
        Setup(batch=4, sequence=64),
        seeds=4,
        steps=1,
    ),
    "depth": Range(
        "gpt:cpu_32_r1", {"depth": (1, 2, 4)}, Setup(batch=2, sequence=32), seeds=3, steps=1, base=1
    ),
}
LARGE_EPS = 1e-3
"""As large as most gradients, so that three small widths and four seeds show what it does."""


def run(case: Case) -> tuple[str, set[Place]]:
    over = RANGES[case.over]
    small = dataclasses.replace(case, eps=LARGE_EPS) if case.eps == EPS else case
    result = check(small, over, range(1, over.seeds + 1))
    return result.verdict, failing(result)


def name(case: Case) -> str:
    return f"{case.name} over {case.over}"


@pytest.mark.parametrize("case", [case for case in CASES if case.wrong], ids=name)
def test_a_wrong_plan_fails_where_it_is_wrong(case: Case) -> None:
    verdict, places = run(case)
    assert verdict == "fail"
    assert places & set(case.expected)


@pytest.mark.parametrize("case", [case for case in CASES if not case.wrong], ids=name)
def test_a_right_plan_does_not_fail(case: Case) -> None:
    verdict, places = run(case)
    assert verdict != "fail", places
