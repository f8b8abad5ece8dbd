"""torchtitan's Llama 3, which `make test` installs beside the rest: see
tests/recipes/torchtitan.txt.

Its one matrix for queries, keys and values holds them by group, which no name says. `make test`
runs this file once more with torchtitan in sight; there a missing piece is a failure.
"""

import importlib
import os

import pytest

from tests.foreign.cases import TORCHTITAN
from tests.foreign.judging import faults
from tests.foreign.test_plans import BASE, DEEPER, TARGET

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True, scope="module")
def _titan():
    name = "torchtitan.models.llama3.model"
    if "TORCHTITAN" in os.environ:
        importlib.import_module(name)
    else:
        pytest.importorskip(
            name, exc_type=ImportError, reason="run with torchtitan in sight, by make test"
        )


@pytest.mark.parametrize(
    ("target", "base"),
    [
        (TARGET, BASE),
        (DEEPER, BASE),
        (TARGET | {"n_kv_heads": 2}, TARGET | {"n_kv_heads": 8}),
        (TARGET | {"n_kv_heads": 2}, TARGET | {"n_kv_heads": 4}),
    ],
)
def test_every_number_is_what_the_formulas_give(target, base):
    assert faults(TORCHTITAN, target, base) == []
