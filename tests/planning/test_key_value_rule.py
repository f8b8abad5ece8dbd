"""The factor on keys, on values or on both, and what a plan says of it."""

import json

import pytest
import torch

import mupscale as mu
from mupscale.models import GPT, GPTConfig
from mupscale.theory import RULES, Rule
from tests.planning.models import Fusable, train
from tests.planning.test_groups import copy_fused

GQA = RULES["gqa-mup"]
FACTOR = 1.5
"""(1 + √4)/2, from a base without sharing."""


def reference(width=64, heads=8, kv_heads=2) -> GPT:
    return GPT(
        GPTConfig(
            width=width, depth=2, n_heads=heads, n_kv_heads=kv_heads, vocabulary=64, context=16
        )
    )


def plan_of(rule, **options):
    model = reference()
    return model, mu.plan(model, base={"width": 32, "r": 1}, rule=rule, **options)


@pytest.mark.parametrize(
    ("part", "on_keys", "on_values"),
    [("both", FACTOR, FACTOR), ("keys", FACTOR, 1), ("values", 1, FACTOR)],
)
def test_groups_of_the_reference_model(part, on_keys, on_values):
    model, plan = plan_of(GQA.with_(kv_part=part))
    found = {}
    for group in plan.param_groups(model, lr=0.1, weight_decay=0.2):
        for name in group["param_names"]:
            found[plan.parameters[name].role] = group["lr"], group["weight_decay"]
    rate, decay = found["query"]
    assert (rate, decay) == pytest.approx((0.05, 0.4))
    assert found["key"] == pytest.approx((rate * on_keys, decay / on_keys), rel=1e-15)
    assert found["value"] == pytest.approx((rate * on_values, decay / on_values), rel=1e-15)


def test_one_norm_gives_keys_and_values_the_hidden_rate():
    (_, one_norm), (_, hidden) = plan_of(GQA.with_(kv_factor="rms")), plan_of("complete-p")
    assert one_norm.parameters == hidden.parameters


@pytest.mark.parametrize("part", ["keys", "values"])
def test_rows_of_a_fused_matrix_train_as_matrices_of_their_own(part):
    """The fused model with its hooks against the separate one, under SGD, which has no epsilon."""
    rule, losses = GQA.with_(kv_part=part), []
    start = Fusable(64, 8, 2, fused=False).double()
    for fused in (True, False):
        model = Fusable(64, 8, 2, fused=fused).double()
        plan = mu.plan(model, base=Fusable(32, 4, 4, fused=fused), optimizer="sgd", rule=rule)
        copy_fused(start, model) if fused else model.load_state_dict(start.state_dict())
        if fused:
            with torch.no_grad():  # the hook multiplies these rows
                for p in plan.parameters.values():
                    for slices, factor in p.row_multipliers:
                        for begin, end in slices:
                            model.get_parameter(p.name)[begin:end] /= factor
            rows = plan.parameters["blocks.0.attn.qkv_proj.weight"].rows
            scaled = {block.role for block in rows if block.multiplier != 1}
            assert scaled == {part.removesuffix("s")}
        plan.attach_(model)
        optimizer = torch.optim.SGD(plan.param_groups(model, lr=0.5, weight_decay=0.1))
        losses.append(train(model, optimizer, steps=5))
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert losses[0][0] != pytest.approx(losses[0][-1], rel=1e-3)


@pytest.mark.parametrize(("part", "rates"), [("keys", (0.75, 1)), ("values", (1, 0.75))])
def test_muon_steps_the_rows_of_a_part_at_its_own_rate(part, rates):
    fused = Fusable(64, 8, 2, fused=True)
    base = Fusable(32, 4, 4, fused=True)
    plan = mu.plan(fused, base=base, optimizer="muon", rule=GQA.with_(kv_part=part))
    groups = plan.param_groups(fused, lr=0.1, optimizer="muon", split_rows=True)
    blocks = next(g["blocks"] for g in groups if "fused_qkv" in g["name"])
    assert [rate for _, rate, _ in blocks] == pytest.approx([1, *rates])


class TestTheFile:
    def test_of_a_rule_without_parts_is_as_before(self):
        _, plan = plan_of(GQA)
        assert "kv_part" not in json.dumps(plan.to_dict())
        assert "assum" not in json.dumps(plan.to_dict())

    def test_of_a_rule_for_keys_comes_back(self):
        _, plan = plan_of(GQA.with_(kv_part="keys"))
        assert plan.to_dict()["rule"]["kv_part"] == "keys"
        again = mu.Plan.from_json(plan.to_json())
        assert again == plan
        assert again.assumptions == plan.assumptions


class TestWhatItRestsOn:
    def test_the_factor_and_its_alternative(self):
        _, plan = plan_of(GQA)
        (words,) = plan.assumptions
        assert words.startswith("key, value: the factor (1 + √r)/2 on the hidden rate assumes")
        assert words.endswith("one norm for both gives 1")
        assert f"note: {words}" in plan.to_markdown()
        assert words in " ".join(plan.to_text().split())

    def test_an_explanation_says_it_too(self):
        _, plan = plan_of(GQA)
        for name, parameter in plan.parameters.items():
            said = "assumes coherent updates" in " ".join(plan.explain(name).split())
            assert said == (parameter.role in ("key", "value"))

    def test_a_factor_that_the_base_has_too_cancels(self):
        plan = mu.plan(reference(), base=reference(32, 4, 1))
        assert plan.assumptions[0].endswith("the base has the same factor, so it cancels")
        measured_from_1 = mu.plan(reference(), base=reference(32, 4, 1), reference_r=1)
        assert "cancels" not in measured_from_1.assumptions[0]

    @pytest.mark.parametrize("rule", ["complete-p", GQA.with_(kv_factor="rms")])
    def test_a_factor_of_1_is_mentioned_where_r_differs(self, rule):
        assert mu.plan(reference(), base={"r": 1}, rule=rule).assumptions
        assert mu.plan(reference(), base={"width": 32}, rule=rule).assumptions == []

    def test_without_repeated_heads_there_is_none(self):
        model = reference(kv_heads=8)
        assert mu.plan(model, base={"width": 32}).assumptions == []

    @pytest.mark.parametrize("fused", [True, False])
    def test_keys_and_values_apart(self, fused):
        model, base = Fusable(64, 8, 2, fused=fused), Fusable(32, 4, 4, fused=fused)
        key, value = mu.plan(model, base=base, rule=GQA.with_(kv_part="keys")).assumptions
        assert key.startswith("key: the factor (1 + √r)/2 on the hidden rate (on keys only)")
        assert value == (
            "value: the rule's factor is on keys only; values keep the hidden rate and decay"
        )

    def test_a_warning_of_another_r_fits_the_rule(self):
        for rule, words in (
            ("gqa-mup", "rest on a young rule"),
            (GQA.with_(kv_factor="rms"), "as any matrix of their shape"),
            (Rule("plain", kv_factor="hidden"), "plain gives keys and values no rate"),
        ):
            assert any(words in warning for warning in plan_of(rule)[1].warnings)
