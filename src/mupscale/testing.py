"""An assertion for your own test suite: a rule holds on your model.

from mupscale.testing import assert_transfers

def test_our_model_transfers_over_width():
    assert_transfers(build, vary={"width": [64, 128, 256]})
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mupscale.checks import CheckResult, coordinate_check
from mupscale.checks.probe import Build

__all__ = ["assert_transfers"]


def assert_transfers(
    build: Build,
    vary: Mapping[str, Sequence[int]],
    *,
    allow_inconclusive: bool = False,
    **options: Any,
) -> CheckResult:
    """Run a coordinate check and return its result; raise AssertionError with the whole table
    unless it passes.

    `options` are those of `mupscale.coordinate_check`. An inconclusive check does not pass: the
    message says how many more seeds would settle it. With `allow_inconclusive`, only a failure
    raises. A model with unusual names needs `reading=mupscale.Reading.load("mupscale.toml")`.
    """
    result = coordinate_check(build, vary, **options)
    if not (result.passed or (allow_inconclusive and result.verdict == "inconclusive")):
        raise AssertionError(f"the coordinate check says {result.verdict}.\n\n{result}")
    return result
