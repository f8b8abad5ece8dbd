"""Initialization: by seed and name alone; and the hooks that go with it."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import mupscale as mu
from mupscale.errors import NotExactError, OptionError, PlanMismatchError, UnknownNameError
from mupscale.models import GPT, GPTConfig
from mupscale.planning.initialization import initialize
from mupscale.theory import RULES
from tests.planning.models import Fusable, hugging_face, model_and_base


def test_weights_have_the_std_of_the_plan_and_constants_are_set():
    settings = {"num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 500}
    model, base = (
        hugging_face(
            "llama", hidden_size=n, intermediate_size=3 * n, num_key_value_heads=k, **settings
        )
        for n, k in ((256, 2), (64, 8))
    )
    plan = mu.plan(model, base=base)
    plan.initialize_(model, std=0.05, seed=3)
    for name, tensor in model.named_parameters():
        p = plan.parameters[name]
        if p.drawn:
            assert tensor.std().item() == pytest.approx(0.05 * p.init_std, rel=0.02), name
            assert abs(tensor.mean().item()) < 5 * 0.05 * p.init_std / tensor.numel() ** 0.5
            spread = (tensor / tensor.std()).pow(4).mean().item()
            assert spread == pytest.approx(3, rel=0.1)  # normal
        else:
            assert tensor.unique().item() == 1


def test_the_numbers_of_a_seed_and_a_name_never_change():
    """A plan and a seed are all that a checkpoint's start needs, also in later versions: chunks of
    2²² numbers, each with a generator seeded by sha256 of (seed, name, chunk).
    """
    model = Fusable(16, 2, 2, fused=False)
    parameter = mu.plan(model, base=model).parameters["head.weight"]
    parameter = replace(parameter, shape=(5, 1 << 20))
    tensor = torch.empty(parameter.shape)
    initialize(parameter, tensor, std=1.0, seed=3)
    second_chunk = torch.Generator().manual_seed(3470373744526684715)
    assert parameter.init_std == 1
    assert torch.equal(tensor[4], torch.empty(1 << 20).normal_(generator=second_chunk))


def test_with_width_init_weights_scale_as_those_of_torchs_own_linear_layers():
    def gpt(width: int) -> GPT:
        heads = {"n_heads": width // 16, "n_kv_heads": width // 64}
        modern = {"positions": "rope", "norm": "rms", "feed_forward": "swiglu"}
        return GPT(
            GPTConfig(
                width=width, depth=1, vocabulary=256, context=32, d_ff=3 * width, **heads, **modern
            )
        )

    def torch_std(layer: nn.Linear) -> float:
        return nn.Linear(layer.in_features, layer.out_features, bias=False).weight.std().item()

    torch.manual_seed(0)
    model, base = gpt(256), gpt(64)
    plan = mu.plan(model, base=base, rule=RULES["sp"].with_(width="init"))
    small = dict(base.named_modules())
    linears = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    assert len(linears) == 8
    for name, layer in linears.items():
        p = plan.parameters[f"{name}.weight"]
        assert p.init_std == pytest.approx(torch_std(layer) / torch_std(small[name]), rel=0.05), (
            name
        )
        assert (p.lr, p.weight_decay, p.eps, p.multiplier) == (1, 1, 1, 1)
    assert plan.parameters["tokens.weight"].init_std == 1


def test_rows_of_a_fused_matrix_have_stds_of_their_own():
    model = Fusable(256, 32, 4, fused=True)
    plan = mu.plan(model, base=Fusable(64, 8, 8, fused=True))
    plan.initialize_(model, std=0.1, seed=0)
    p = plan.parameters["blocks.0.attn.qkv_proj.weight"]
    for block in p.rows:
        start, stop = block.slices[0]
        rows = model.blocks[0].attn.qkv_proj.weight[start:stop]
        assert rows.std().item() == pytest.approx(0.1 * block.init_std, rel=0.03)
        assert block.init_std * block.multiplier == pytest.approx(0.5)


def test_a_parameter_depends_on_seed_and_name_alone():
    small, _ = model_and_base("llama")
    plan = mu.plan(small, base=small)
    plan.initialize_(small, std=0.1, seed=5)
    deeper = hugging_face(
        "llama", **{**small.config.to_dict(), "num_hidden_layers": 5, "layer_types": None}
    )
    mu.plan(deeper, base=deeper).initialize_(deeper, std=0.1, seed=5)
    theirs = dict(deeper.named_parameters())
    for name, tensor in small.named_parameters():
        assert torch.equal(tensor, theirs[name])
    matrices = [p.flatten()[:100] for p in small.parameters() if p.ndim > 1]
    assert len({tuple(m.tolist()) for m in matrices}) == len(matrices)
    before = {name: p.clone() for name, p in small.named_parameters()}
    plan.initialize_(small, std=0.1, seed=6)
    assert not torch.equal(before["lm_head.weight"], small.lm_head.weight)


def test_the_state_of_torchs_generator_is_left_alone():
    model, base = model_and_base("llama")
    state = torch.get_rng_state()
    mu.plan(model, base=base).initialize_(model, std=0.1, seed=0)
    assert torch.equal(state, torch.get_rng_state())


def test_lower_precision_holds_the_same_numbers_rounded():
    model, base = model_and_base("llama")
    plan = mu.plan(model, base=base)
    plan.initialize_(model.float(), std=0.1, seed=0)
    exact = {name: p.clone() for name, p in model.named_parameters()}
    plan.initialize_(model.bfloat16(), std=0.1, seed=0)
    for name, p in model.named_parameters():
        assert torch.equal(p, exact[name].bfloat16())


def test_padding_stays_zero_and_large_rows_are_drawn_in_pieces(monkeypatch):
    monkeypatch.setattr("mupscale.planning.initialization._CHUNK", 100)
    model, _ = model_and_base("llama")
    model.model.embed_tokens.padding_idx = 4
    plan = mu.plan(model, base=model)
    plan.initialize_(model, std=0.1, seed=0)
    table = model.model.embed_tokens.weight
    assert table[4].abs().max() == 0
    assert (table.abs().sum(1) > 0).sum() == len(table) - 1
    assert len({tuple(row.tolist()) for row in table}) == len(table)


def test_gains_that_act_as_one_plus_weight_start_at_what_gives_the_factor():
    model, base = model_and_base("gemma2 (tied, post-norm, 1 + gain, scaled embedding)")
    plan = mu.plan(model, base=base)
    plan.initialize_(model, std=0.1, seed=0)
    assert model.model.layers[0].input_layernorm.weight.unique().item() == 0
    assert model.model.layers[0].post_feedforward_layernorm.weight.unique().item() == pytest.approx(
        2 / 3 - 1
    )
    # the tied weight holds 1/√2 of the embedding's scale, so that the final gain has the rest of
    # 1/2
    assert plan.parameters["model.embed_tokens.weight"].folded == pytest.approx(2**-0.5)
    assert model.model.norm.weight.unique().item() == pytest.approx(2**-0.5 - 1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"std": -1, "seed": 0}, OptionError, "std: -1"),
        ({"std": {"embedding": 1.0}, "seed": 0}, OptionError, "std has no value for"),
        (
            {"std": {"default": 1.0, "gain": 1.0}, "seed": 0},
            OptionError,
            "no parameter has the role gain",
        ),
        ({"std": {"default": 1.0, "embed": 1.0}, "seed": 0}, UnknownNameError, "embedding"),
        ({"std": 0.1, "seed": 0.5}, OptionError, "seed=0.5"),
    ],
)
def test_wrong_values_are_named(options, error, message):
    model, base = model_and_base("llama")
    with pytest.raises(error, match=message):
        mu.plan(model, base=base).initialize_(model, **options)


def test_a_role_may_have_a_std_of_its_own():
    model, base = model_and_base("llama")
    mu.plan(model, base=base).initialize_(model, std={"default": 0.02, "embedding": 1.0}, seed=0)
    assert model.model.embed_tokens.weight.std().item() == pytest.approx(1.0, rel=0.1)


def test_the_meta_device_has_no_numbers():
    model, base = model_and_base("llama")
    plan = mu.plan(model, base=base)
    with pytest.raises(OptionError, match="to_empty"):
        plan.initialize_(model.to("meta"), std=0.1, seed=0)


class TestHooks:
    def make(self):
        model = Fusable(64, 8, 2, fused=True)
        return model, mu.plan(model, base=Fusable(32, 4, 4, fused=True))

    def test_are_required_before_groups_are_made(self):
        model, plan = self.make()
        with pytest.raises(PlanMismatchError, match=r"2 hooks .*attach_"):
            plan.param_groups(model, lr=0.1)
        plan.attach_(model)
        plan.attach_(model)
        assert sum(len(m._forward_hooks) for m in model.modules()) == 2
        plan.param_groups(model, lr=0.1)
        plan.detach_(model)
        assert sum(len(m._forward_hooks) for m in model.modules()) == 0

    def test_of_another_plan_are_in_the_way(self):
        model, plan = self.make()
        plan.attach_(model)
        other = mu.plan(model, base=Fusable(32, 4, 2, fused=True))
        with pytest.raises(OptionError, match="hooks of another plan"):
            other.attach_(model)
        plain = mu.plan(model, base=model)
        with pytest.raises(PlanMismatchError, match="hooks of another plan"):
            plain.param_groups(model, lr=0.1)

    def test_travel_with_a_copy_of_the_model(self):
        model, plan = self.make()
        plan.initialize_(model, std=0.1, seed=0)
        other = copy.deepcopy(model)
        tokens = torch.arange(6)[None]
        assert torch.equal(model(tokens), other(tokens))
        plan.param_groups(other, lr=0.1)

    def test_do_not_change_names_or_saved_weights(self):
        model, plan = self.make()
        names = set(model.state_dict())
        plan.initialize_(model, std=0.1, seed=0)
        assert set(model.state_dict()) == names

    def test_follow_the_model_in_precision(self):
        model, plan = self.make()
        plan.initialize_(model, std=0.1, seed=0)
        tokens = torch.arange(6)[None]
        exact = model.double()(tokens)
        torch.testing.assert_close(model.float()(tokens).double(), exact, rtol=1e-4, atol=1e-5)
        wide = copy.deepcopy(model).double()
        plan.bake_(wide)
        torch.testing.assert_close(wide(tokens), model.double()(tokens), rtol=1e-12, atol=1e-13)

    def test_come_before_compiling(self):
        model, plan = self.make()
        with pytest.raises(OptionError, match=r"before torch\.compile"):
            plan.attach_(torch.compile(model, backend="eager"))
        model.blocks[0].compile(backend="eager")
        with pytest.raises(OptionError, match=r"blocks\.0.*before torch.compile"):
            plan.attach_(model)

    def test_that_are_not_there_cannot_be_baked(self):
        model, plan = self.make()
        with pytest.raises(PlanMismatchError, match="does not have this plan's hooks"):
            plan.bake_(model)


def test_hooking_an_optimizer_that_cannot_fold():
    """Adafactor's steps are proportional to the weights, with a floor: its factors stay in the
    forward pass.
    """
    model, base = model_and_base("llama")
    plan = mu.plan(model, base=base, optimizer="adafactor")
    assert {hook.module for hook in plan.hooks} >= {"lm_head", "model.layers.0.mlp.down_proj"}
    assert all(p.folded == 1 for p in plan.parameters.values())
    plan.initialize_(model, std=0.1, seed=0)
    torch.optim.Adafactor(plan.param_groups(model, lr=0.01))


def test_a_module_of_ones_own_with_the_same_name_is_not_mistaken():
    model, base = model_and_base("llama")
    plan = mu.plan(model, base=base, multipliers="hook")
    model.lm_head = type("Odd", (nn.Module,), {"forward": lambda self, x: x @ self.weight.T})()
    model.lm_head.weight = nn.Parameter(torch.zeros(61, 32))
    with pytest.raises(mu.MupscaleError, match=r"lm_head is a Odd"):
        plan.attach_(model)


def test_hooks_do_not_hide_from_the_next_plan_what_follows_what():
    model, base = model_and_base("olmo2 (post-norm)")
    plan = mu.plan(model, base=base, multipliers="hook")
    plan.attach_(model)
    again = mu.plan(model, base=base, multipliers="hook")
    assert again == plan
    assert {hook.module.split(".")[-1] for hook in again.hooks} >= {"post_attention_layernorm"}
    plan.param_groups(model, lr=0.1)  # the hooks are still there


def test_what_the_model_did_not_draw_is_not_drawn():
    model, base = (Fusable(width, width // 8, 1, fused=False) for width in (64, 32))
    for block in (*model.blocks, *base.blocks):
        nn.init.zeros_(block.attn.o_proj.weight)
        nn.init.eye_(block.mlp.fc2.weight)
        block.attn.q_proj.weight.requires_grad_(requires_grad=False)
    plan = mu.plan(model, base=base, multipliers="hook")
    kept = {name: plan.parameters[name].kept for name in plan.parameters}
    whys = {"attn.o_proj": "0 everywhere", "mlp.fc2": "a fixed pattern", "attn.q_proj": "frozen"}
    expected = {f"blocks.{k}.{name}.weight": why for name, why in whys.items() for k in (0, 1)}
    assert {name: why for name, why in kept.items() if why} == expected
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    plan.initialize_(model, std=0.1, seed=0)
    for name, tensor in model.named_parameters():
        if plan.parameters[name].drawn:
            assert torch.equal(tensor, before[name]) is bool(kept[name]), name


def test_a_factor_cannot_be_folded_into_a_matrix_that_keeps_its_values():
    model, base = (Fusable(width, width // 8, 1, fused=False) for width in (64, 32))
    for one in (model, base):
        nn.init.eye_(one.head.weight)
    with pytest.raises(NotExactError, match=r"head\.weight needs a factor of 0\.5, but keeps"):
        mu.plan(model, base=base, multipliers="fold")
