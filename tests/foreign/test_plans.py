"""Models of other projects: every number of their plans against a table that is written by hand, in
`cases`.
"""

import pytest
import torch

import mupscale as mu
from mupscale.errors import UnreadableModelError
from tests.foreign import packages
from tests.foreign.cases import CASES
from tests.foreign.judging import faults, planned

# transformers, timm and diffusers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

BASE, TARGET = {"width": 32, "depth": 2}, {"width": 128, "depth": 2}
DEEPER = TARGET | {"depth": 4}


@pytest.mark.parametrize("name", CASES)
def test_over_width(name):
    case = CASES[name]
    assert faults(case, TARGET, BASE) == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.deepens])
def test_over_width_and_depth(name):
    case = CASES[name]
    assert faults(case, DEEPER, BASE) == []


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.shares or case.fused]
)
@pytest.mark.parametrize("base_r", [1, 2])
def test_over_r(name, base_r):
    """From 8 heads that share 8 / base_r to 8 that share 2."""
    case = CASES[name]
    assert faults(case, TARGET | {"n_kv_heads": 2}, TARGET | {"n_kv_heads": 8 // base_r}) == []


@pytest.mark.parametrize("name", CASES)
def test_a_model_planned_onto_itself_changes_nothing(name):
    case = CASES[name]
    assert faults(case, BASE, BASE) == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.roles])
def test_roles_are_said_only_where_they_must_be(name):
    """Each of them: without one of the patterns the model is refused."""
    case = CASES[name]
    for left_out in case.roles:
        fewer = {pattern: role for pattern, role in case.roles.items() if pattern != left_out}
        with pytest.raises(UnreadableModelError):
            mu.plan(case.model(**TARGET), base=case.model(**BASE), inputs=case.inputs, roles=fewer)


def test_a_state_space_model_is_refused():
    model = packages.mamba(64, 2)
    with pytest.raises(UnreadableModelError):
        mu.plan(model, base=packages.mamba(32, 2))


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_neither_nothing_nor_constant(name):
    """After initialize_, unless the model itself starts with a readout of zeros."""
    case = CASES[name]
    model = case.model(**TARGET)
    plan = planned(case, model, case.model(**BASE))
    plan.initialize_(model, std=0.02, seed=0)
    arguments = case.inputs if case.inputs is not None else (torch.arange(32).reshape(2, 16),)
    with torch.no_grad():
        output = model(**arguments) if isinstance(arguments, dict) else model(*arguments)
    for key in ("logits", "sample", "logits_per_image"):
        output = getattr(output, key, output)
    assert output.isfinite().all()
    assert output.std() > 0
