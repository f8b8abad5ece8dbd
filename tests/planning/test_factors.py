"""Factors by kind of weight: each reaches its weights and nothing else, and one without effect is
refused.
"""

import math
from functools import cache

import pytest
import torch

import mupscale as mu
from mupscale.errors import OptionError, UnknownNameError
from mupscale.models import GPT, GPTConfig
from mupscale.planning import Plan
from mupscale.planning.factors import GROUPS, QUANTITIES, factor_names, roles_of
from mupscale.reading import ROLES

BASE = GPTConfig(width=16, depth=1, n_heads=4, n_kv_heads=2, vocabulary=32, context=8)
TARGET = BASE.resized(width=32)


@cache
def planned(optimizer: str = "adamw") -> Plan:
    return mu.plan(GPT(TARGET), base=GPT(BASE), optimizer=optimizer)


def test_every_role_but_frozen_ones_belongs_to_one_group():
    count = {role: sum(role in roles for roles in GROUPS.values()) for role in ROLES}
    assert count == {role: 0 if role == "frozen" else 1 for role in ROLES}


@pytest.mark.parametrize("name", factor_names())
def test_a_factor_multiplies_its_quantity_for_its_roles_alone(name: str):
    before = planned()
    quantity, roles = roles_of(name)
    try:
        after = before.with_factors({name: 4.0})
    except OptionError:
        assert not any(
            p.role in roles and getattr(p, QUANTITIES[quantity]) and (p.drawn or quantity != "std")
            for p in before.parameters.values()
        )
        return
    assert after.factors == {name: 4.0}
    for key, p in before.parameters.items():
        for field in ("init_std", "lr", "weight_decay", "eps", "start", "multiplier", "folded"):
            ratio = 4.0 if p.role in roles and field == QUANTITIES[quantity] else 1.0
            value = getattr(p, field)
            expected = None if value is None else value * ratio
            assert getattr(after.parameters[key], field) == expected, (key, field)


def test_groups_weights_and_files_have_the_factors(tmp_path):
    plan = planned().with_factors({"lr.embedding": 2, "std.readout": 4.0})
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    model, plain = GPT(TARGET), GPT(TARGET)
    plan.initialize_(model, std=0.1, seed=0)
    planned().initialize_(plain, std=0.1, seed=0)
    for name, drawn in plain.named_parameters():
        assert torch.equal(model.get_parameter(name), drawn * (4 if "readout" in name else 1))
    rates = {
        name: group["lr"]
        for group in plan.param_groups(model, lr=0.01)
        for name in group["param_names"]
    }
    embedding = next(p.name for p in plan.parameters.values() if p.role == "embedding")
    assert rates[embedding] == 0.01 * 2 * planned().parameters[embedding].lr
    plan.verify(torch.optim.AdamW(plan.param_groups(model, lr=0.01)), model=model, lr=0.01, std=0.1)


def test_factors_on_the_same_weight_are_multiplied():
    plan = planned().with_factors({"lr.hidden": 2.0}).with_factors({"lr.key": 3.0, "lr.hidden": 5})
    before = planned()
    ratio = {p.role: p.lr / before.parameters[n].lr for n, p in plan.parameters.items()}
    assert (ratio["key"], ratio["query"], ratio["embedding"]) == (30, 10, 1)
    assert plan.factors == {"lr.hidden": 10, "lr.key": 3}


def test_a_plan_without_factors_is_stored_as_before():
    assert "factors" not in planned().to_dict()
    assert "factors" not in planned().with_factors({}).to_dict()


def test_the_table_and_the_explanation_name_them():
    plan = planned().with_factors({"lr.embedding": 2, "std.readout": 4.0})
    assert "tuned factors, included above: lr.embedding × 2, std.readout × 4" in str(plan)
    name = next(p.name for p in plan.parameters.values() if p.role == "readout")
    assert "× 4 on std: std.readout was tuned" in plan.explain(name)
    assert "lr.embedding" not in plan.explain(name)
    assert any("factors" in str(one) for one in plan.diff(planned()))


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"lr.router": 2.0}, "lr.router: the model has no such weights. It has embedding, "),
        ({"std.gains": 2.0}, "std.gains: gain starts at a constant, not at random"),
        ({"weight_decay.gains": 2.0}, "gain is not decayed by the rules"),
        ({"lr.embedding": 0}, "lr.embedding = 0 must be a finite number above 0"),
        ({"lr.embedding": math.nan}, "must be a finite number above 0"),
        ({"lr.embedding": -1.0}, "must be a finite number above 0"),
        ({"lr.embedding": True}, "must be a finite number above 0"),
    ],
)
def test_what_cannot_be_is_one_clear_line(factors: dict, message: str):
    with pytest.raises(OptionError) as error:
        planned().with_factors(factors)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrong_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"lr\.embeding.*Did you mean 'lr\.embedding'"):
        planned().with_factors({"lr.embeding": 2.0})


def test_an_optimizer_without_epsilon_takes_no_factor_on_it():
    with pytest.raises(OptionError, match="optimizer without epsilon"):
        planned("lion").with_factors({"eps.hidden": 2.0})
