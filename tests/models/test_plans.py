"""`read` and `plan` understand the GPT with every option, and its own multipliers are not applied
twice.
"""

import math

import pytest
import torch

import mupscale as mu
from mupscale.models import CONFIGURATIONS, GPT, GPTConfig
from tests.models.test_gpt import OPTIONS, SMALL
from tests.planning.models import batch, train

BASE = {"width": 16, "depth": 1, "n_heads": 2, "vocabulary": 61, "context": 16}
MULTIPLIERS = {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logit_scale": 0.7}


def on_meta(**config) -> GPT:
    with torch.device("meta"):
        return GPT(GPTConfig(**config))


def base_of(options):
    """The base of a model with these options: half as wide, with its heads and the same ratio of
    its hidden units.
    """
    smaller = {"d_ff": 44} if "d_ff" in options else {}
    sharing = {"n_kv_heads": 1} if "n_kv_heads" in options else {}
    return BASE | options | smaller | sharing


class TestReading:
    def test_roles(self):
        facts = mu.read(on_meta(**SMALL, n_kv_heads=2))
        assert {fact.template: fact.role for fact in facts.parameters.values()} == {
            "tokens.weight": "embedding",
            "positions.weight": "position",
            "blocks.*.attention_norm.weight": "gain",
            "blocks.*.attention.q_proj.weight": "query",
            "blocks.*.attention.k_proj.weight": "key",
            "blocks.*.attention.v_proj.weight": "value",
            "blocks.*.attention.o_proj.weight": "attention_output",
            "blocks.*.mlp_norm.weight": "gain",
            "blocks.*.mlp.up_proj.weight": "mlp_in",
            "blocks.*.mlp.down_proj.weight": "mlp_out",
            "final_norm.weight": "gain",
            "readout.weight": "readout",
        }
        gated = mu.read(on_meta(**SMALL, feed_forward="swiglu", qk_norm=True)).parameters
        assert gated["blocks.1.mlp.gate_proj.weight"].role == "mlp_in"
        assert gated[
            "blocks.1.attention.k_norm.weight"
        ].fixed  # all heads share it, so it does not grow

    @pytest.mark.parametrize("name", OPTIONS)
    def test_dimensions(self, name):
        model = on_meta(**(SMALL | OPTIONS[name]))
        facts, config = mu.read(model), model.config
        assert (facts.width, facts.depth, facts.heads) == (32, 2, 4)
        assert (facts.kv_heads, facts.head_dim) == (config.kv_heads, config.head_size)
        assert facts.repetitions == config.repetitions
        assert (
            facts.parameters["blocks.0.attention.v_proj.weight"].repetitions == config.repetitions
        )
        assert facts.parameters["blocks.0.attention.q_proj.weight"].inner == 4 * config.head_size
        assert facts.tied_readout == config.tied
        assert facts.final_gain == "final_norm.weight"
        assert facts.followed
        assert not any(fact.normed_by for fact in facts.parameters.values())

    def test_multipliers(self):
        facts = mu.read(on_meta(**SMALL, **MULTIPLIERS, attention_multiplier=2.0))
        multipliers = {fact.template: fact.forward_multiplier for fact in facts.parameters.values()}
        assert {name: value for name, value in multipliers.items() if value != 1} == {
            "tokens.weight": 3.0,
            "blocks.*.attention.o_proj.weight": 0.3,
            "blocks.*.mlp.down_proj.weight": 0.3,
            "readout.weight": 0.7,
        }
        assert facts.readout_multiplier == 0.7
        assert facts.settings == {"attention_multiplier": 2 / math.sqrt(8)}
        assert mu.read(on_meta(**SMALL)).settings == {}
        assert mu.read(on_meta(**SMALL, attention_scale="1/d")).settings == {
            "attention_multiplier": 1 / 8
        }

    @pytest.mark.parametrize("name", CONFIGURATIONS)
    def test_named_configurations(self, name):
        config = CONFIGURATIONS[name].model
        facts = mu.read(on_meta(**vars(config)))
        assert (facts.width, facts.depth, facts.repetitions) == (
            config.width,
            config.depth,
            config.repetitions,
        )


@pytest.mark.parametrize("name", OPTIONS)
def test_a_plan_on_the_meta_device_from_a_model_or_its_config(name):
    model, low = on_meta(**(SMALL | OPTIONS[name])), base_of(OPTIONS[name])
    plan = mu.plan(model, base=on_meta(**low))
    assert mu.plan(model, base=GPTConfig(**low)) == plan
    hidden = plan.parameters["blocks.1.attention.q_proj.weight"]
    assert hidden.lr == pytest.approx(0.5)
    assert plan.parameters["blocks.1.attention.o_proj.weight"].folded == pytest.approx(
        0.5
    )  # twice as deep
    last = plan.parameters["final_norm.weight" if model.config.tied else "readout.weight"]
    assert last.folded == pytest.approx(0.5)
    assert mu.plan(model, base=model).diff(plan)


def test_shared_heads_get_the_rate_of_the_paper():
    plan = mu.plan(on_meta(**SMALL, n_kv_heads=1), base=on_meta(**SMALL))
    factors = {p.role: p.lr for p in plan.parameters.values()}
    assert factors["key"] == factors["value"] == pytest.approx((1 + math.sqrt(4)) / 2)
    assert factors["query"] == 1


def test_another_head_dim_is_warned_of_unless_scores_are_divided_by_it():
    def warned(**options):
        plan = mu.plan(
            on_meta(**SMALL, head_dim=16, **options), base=on_meta(**BASE, head_dim=8, **options)
        )
        return any("head_dim differs" in warning for warning in plan.warnings)

    assert warned()
    assert not warned(attention_scale="1/d")


def losses(plan, model):
    plan.initialize_(model, std=0.3, seed=1)
    groups = plan.param_groups(model, lr=0.01, weight_decay=0.1, eps=1e-3)
    clip = lambda: plan.clip_grad_norm_(model, 0.05)  # noqa: E731
    return torch.tensor(
        train(model, torch.optim.AdamW(groups), steps=12, before_step=clip), dtype=torch.float64
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_multipliers_in_the_constructor_or_folded_or_hooked_are_the_same_training(name):
    """The base has none. Whatever the model multiplies by, the plan makes up for, or leaves to
    it.
    """
    base = on_meta(**base_of(OPTIONS[name]))
    config = SMALL | OPTIONS[name]
    asked = {
        "residual_multiplier": 0.5,
        "logit_scale": 0.5,
    }  # by the rule, at twice the width and depth
    found = {}
    for label, own, way in [
        ("folded", {}, "fold"),
        ("hooked", {}, "hook"),
        ("constructor", asked, "fold"),
        ("any", MULTIPLIERS, "fold"),
        ("any, hooked", MULTIPLIERS, "hook"),
    ]:
        model = GPT(GPTConfig(**(config | own))).double()
        plan = mu.plan(model, base=base, multipliers=way)
        if label == "constructor":
            assert all(parameter.folded == 1 for parameter in plan.parameters.values())
        found[label] = losses(plan, model)
    for label, other in found.items():
        assert (found["folded"] - other).abs().max() < 1e-12, label
    assert found["folded"].std() > 1e-3  # it did train


def test_a_multiplier_that_the_plan_does_not_see_is_another_training():
    """What the test above would show if a constant were applied twice."""
    plan = mu.plan(on_meta(**SMALL), base=on_meta(**BASE))
    right = losses(plan, GPT(GPTConfig(**SMALL)).double())
    twice = losses(plan, GPT(GPTConfig(**SMALL, residual_multiplier=0.5)).double())
    assert (right - twice).abs().max() > 1e-4


def test_a_model_off_the_meta_device_takes_its_plan():
    config = GPTConfig(**(SMALL | OPTIONS["modern"]))
    with torch.device("meta"):
        model = GPT(config)
    plan = mu.plan(model, base=on_meta(**base_of(OPTIONS["modern"])))
    model.to_empty(device="cpu")
    plan.initialize_(model, std=0.02, seed=0)
    assert torch.isfinite(model(batch(0), batch(1)))
