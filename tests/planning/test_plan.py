"""What a plan says, to whom it is relative, and what it refuses."""

import json
import math
from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn

import mupscale as mu
from mupscale.errors import (
    DimensionError,
    NotExactError,
    OptionError,
    PlanMismatchError,
    UnknownNameError,
    UnreadableModelError,
)
from mupscale.planning import showing, storing, units
from mupscale.planning.base import few
from mupscale.planning.showing import Difference
from mupscale.theory import OPTIMIZERS, RULES, derivation
from tests.planning.models import SETTINGS, Fusable, hugging_face, model_and_base


def llama(width=64, depth=4, heads=8, kv_heads=2, **settings) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=depth,
        num_attention_heads=heads, num_key_value_heads=kv_heads, **settings,
    )  # fmt: skip
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config)


def by_role(plan):
    return {p.role: p for p in plan.parameters.values()}


class TestTheBase:
    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("name", SETTINGS)
    def test_planned_onto_itself_is_the_identity(self, name, rule):
        model, _ = model_and_base(name)
        plan = mu.plan(model, base=model, rule=rule)
        assert plan.hooks == ()
        for p in plan.parameters.values():
            decay = 0 if p.role in ("gain", "bias") else 1
            assert (p.lr, p.weight_decay, p.eps, p.folded, p.multiplier) == (1, decay, 1, 1, 1), (
                p.name
            )
            assert p.init_std == (1 if p.drawn else 0)
            assert p.start == (
                None if p.drawn else p.start if p.start is None else (p.role == "gain") - p.offset
            )

    def test_may_be_a_model_a_config_or_dimensions(self):
        model = llama(64, 4, 8, 2)
        base = llama(32, 2, 4, 1)
        plans = [
            mu.plan(model, base=b)
            for b in (base, base.config, {"width": 32, "depth": 2}, mu.read(base))
        ]
        assert all(plan.parameters == plans[0].parameters for plan in plans[1:])
        assert plans[0].base == {
            "width": 32,
            "depth": 2,
            "heads": 4,
            "kv_heads": 1,
            "head_dim": 8,
            "r": 4,
        }

    def test_leaves_unsaid_what_is_the_models_own(self):
        model = llama(64, 4, 8, 2)
        plan = by_role(mu.plan(model, base={"depth": 2}))
        assert plan["query"].lr == 1
        assert plan["attention_output"].folded == 0.5
        shared = by_role(mu.plan(model, base={"r": 1}))
        assert shared["key"].lr == 1.5 == shared["value"].lr
        assert shared["query"].lr == 1

    def test_fewer_heads_of_the_same_size(self):
        plan = mu.plan(llama(64, 2, 16, 4, head_dim=8), base={"inner": 64})
        same = mu.plan(llama(64, 2, 16, 4, head_dim=8), base=llama(64, 2, 8, 2, head_dim=8))
        assert plan.base == same.base
        assert plan.parameters == same.parameters
        assert by_role(plan)["attention_output"].lr == 1 / 2

    def test_heads_of_another_size(self):
        """A base may be narrower than one head of the model, if its own heads are smaller."""
        model, base = llama(64, 2, 2, 1, head_dim=32), llama(16, 2, 4, 2, head_dim=4)
        plan = mu.plan(model, base={"width": 16, "inner": 16, "head_dim": 4})
        same = mu.plan(model, base=base)
        assert (
            plan.base
            == same.base
            == {"width": 16, "depth": 2, "heads": 4, "kv_heads": 2, "head_dim": 4, "r": 2}
        )
        attention = [p for p in plan.parameters if "self_attn" in p]
        assert {p: plan.parameters[p] for p in attention} == {
            p: same.parameters[p] for p in attention
        }
        assert any("head_dim differs (4 → 32)" in warning for warning in plan.warnings)
        with pytest.raises(
            DimensionError,
            match=r"the number of heads would be 0\.5 instead of 2, which is not whole",
        ):
            mu.plan(model, base={"width": 16, "inner": 16})
        with pytest.raises(
            DimensionError, match="heads × head_dim is 16, not a multiple of head_dim=5"
        ):
            mu.plan(model, base={"width": 16, "inner": 16, "head_dim": 5})
        with pytest.raises(DimensionError, match="2 heads of 8 cannot be shared by r=4"):
            mu.plan(model, base={"width": 16, "inner": 16, "head_dim": 8, "r": 4})

    def test_dimensions_of_a_fused_matrix(self):
        plan = mu.plan(Fusable(64, 8, 2, fused=True), base={"width": 32, "r": 2})
        same = mu.plan(Fusable(64, 8, 2, fused=True), base=Fusable(32, 4, 2, fused=True))
        assert plan.parameters == same.parameters
        assert plan.hooks

    def test_ratios_are_of_a_parameters_own_fan_in(self):
        model, base = (
            llama(64, heads=16, kv_heads=4, head_dim=8),
            llama(32, heads=4, kv_heads=1, head_dim=8),
        )
        plan = by_role(mu.plan(model, base=base, rule="complete-p"))
        assert plan["query"].lr == 1 / 2
        assert plan["attention_output"].lr == 1 / 4  # 16 × 8 over 4 × 8
        down = by_role(mu.plan(model, base={"d_ff": 48}))["mlp_out"]
        assert down.lr == 1 / 4
        assert down.eps == 1  # epsilon follows the embedding width, which is the same

    @pytest.mark.parametrize(
        ("dimensions", "error", "message"),
        [
            ({"widht": 32}, UnknownNameError, "Did you mean 'width'"),
            ({"width": 0}, DimensionError, "width=0"),
            ({"width": 2.5}, DimensionError, r"width=2\.5"),
            ({"width": True}, DimensionError, "width=True"),
            ({"width": 33}, DimensionError, "heads would be 4.125"),
            ({"width": 40}, DimensionError, r"5 heads .* r=4"),
            ({"r": 3}, DimensionError, "r=3"),
        ],
    )
    def test_that_cannot_be(self, dimensions, error, message):
        with pytest.raises(error, match=message):
            mu.plan(llama(), base=dimensions)

    def test_of_another_kind_is_refused(self):
        with pytest.raises(OptionError, match="is not a base"):
            mu.plan(llama(), base="llama")
        with pytest.raises(UnreadableModelError, match="same architecture"):
            mu.plan(llama(), base=Fusable(fused=True))
        with pytest.raises(
            OptionError, match="LlamaForCausalLM cannot be built from the base's GPT2Config"
        ):
            mu.plan(llama(), base=transformers.GPT2Config())
        with pytest.raises(
            UnreadableModelError, match="tied to the embedding in the model and not in the base"
        ):
            mu.plan(llama(tie_word_embeddings=True), base=llama(32))

    def test_dimensions_are_refused_where_the_forward_pass_has_constants(self):
        model, _ = model_and_base("gemma2 (tied, post-norm, 1 + gain, scaled embedding)")
        with pytest.raises(
            UnreadableModelError, match=r"multiplies model\.embed_tokens\.weight by .*proxy"
        ):
            mu.plan(model, base={"width": 16})
        assert mu.plan(model, base={"r": 2}).parameters

    def test_constants_of_the_forward_pass_are_counted_once(self):
        """What the model multiplies by itself, relative to the base, is not multiplied by again:
        biases included.
        """
        model, base = model_and_base("granite (multipliers)")
        plan = mu.plan(model, base=base, rule=RULES["gqa-mup"].with_(depth="none"))
        folded = {
            p.template.removeprefix("model.layers.*."): p.folded for p in plan.parameters.values()
        }
        assert folded["model.embed_tokens.weight"] == pytest.approx(2 / 3)
        assert folded["lm_head.weight"] == pytest.approx(
            2 * 16 / 32
        )  # divided by 2 already, of 1/2 wanted
        for end in (
            "self_attn.o_proj.weight",
            "self_attn.o_proj.bias",
            "mlp.down_proj.weight",
            "mlp.down_proj.bias",
        ):
            assert folded[end] == pytest.approx(0.2 / 0.5)
        assert folded["mlp.up_proj.weight"] == 1

    def test_the_logit_scale_of_a_tied_readout_is_counted_once(self):
        model, base = model_and_base("cohere (tied, logit scale)")
        final = mu.plan(model, base=base).parameters["model.norm.weight"]
        assert final.folded == (16 / 32) / (0.0625 / 0.25)

    def test_roles_for_layers_that_only_the_model_has(self):
        model, base = Fusable(depth=3, fused=False), Fusable(depth=2, fused=False)
        plan = mu.plan(model, base=base, roles={"blocks.2.mlp.fc1.weight": "mlp_in"})
        assert plan.parameters["blocks.2.mlp.fc1.weight"].role == "mlp_in"
        with pytest.raises(OptionError, match="matches no parameter"):
            mu.plan(model, base=base, roles={"blocks.7.*": "mlp_in"})

    def test_layers_of_several_shapes_need_the_same_depth(self):
        model, base = Fusable(depth=2, fused=False), Fusable(depth=2, fused=False)
        base.blocks[1].mlp.fc1 = nn.Linear(32, 64)
        base.blocks[1].mlp.fc2 = nn.Linear(64, 32)
        assert mu.plan(model, base=base).parameters["blocks.1.mlp.fc2.weight"].lr == 64 / 96
        with pytest.raises(UnreadableModelError, match="several shapes in the base"):
            mu.plan(Fusable(depth=3, fused=False), base=base)


class TestTheRule:
    def test_without_sharing_gqa_mup_is_complete_p_to_the_bit(self):
        model, base = llama(96, 3, 12, 12), llama(32, 2, 4, 4)
        assert (
            mu.plan(model, base=base).parameters
            == mu.plan(model, base=base, rule="complete-p").parameters
        )

    def test_rate_times_decay_is_the_same_for_all_that_decays(self):
        plan = mu.plan(llama(96, 3, 12, 3), base=llama(32, 2, 4, 4))
        products = [p.lr * p.weight_decay for p in plan.parameters.values() if p.weight_decay]
        assert products == pytest.approx([1] * len(products), rel=1e-15)

    def test_sharing_is_relative_to_the_base_unless_asked_otherwise(self):
        model, base = llama(64, 2, 8, 2), llama(64, 2, 8, 2)
        assert by_role(mu.plan(model, base=base))["key"].lr == 1
        assert by_role(mu.plan(model, base=base, reference_r=1))["key"].lr == 1.5

    def test_sp_changes_nothing(self):
        plan = mu.plan(llama(64, 4), base=llama(32, 2, 4, 1), rule="sp")
        assert {p.lr for p in plan.parameters.values()} == {1.0}
        assert {p.init_std for p in plan.parameters.values() if p.drawn} == {1.0}

    def test_muon_steps_hidden_matrices_and_adamw_the_rest(self):
        plan = by_role(mu.plan(llama(64, 2), base=llama(32, 2, 4, 1), optimizer="muon"))
        assert {role for role, p in plan.items() if p.optimizer == "muon"} == {
            "query", "key", "value", "attention_output", "mlp_in", "mlp_out"}  # fmt: skip
        assert {role for role, p in plan.items() if p.optimizer == "adamw"} == {
            "embedding",
            "readout",
            "gain",
        }

    def test_the_share_of_active_experts_is_exact_up_to_65536_experts(self):
        fact = mu.read(llama()).parameters["model.layers.0.mlp.up_proj.weight"]
        for active, experts in [(3, 160), (1, 65536)]:
            expert = replace(fact, role="expert_in", active=active / experts)
            sizes = units.dimensions(expert)
            assert (sizes["active"], sizes["experts"]) == (active, experts)

    def test_routers_and_experts(self):
        settings = {
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 61,
        }
        model = hugging_face("mixtral", hidden_size=64, intermediate_size=96, **settings)
        base = hugging_face("mixtral", hidden_size=32, intermediate_size=48, **settings)
        plan = mu.plan(model, base=base)
        parts = by_role(plan)
        assert parts["router"].folded == 1 / 2
        assert parts["expert_in"].lr == parts["expert_out"].lr == 1 / 2
        assert any("router" in warning and "extrapolated" in warning for warning in plan.warnings)
        with pytest.raises(NotExactError, match="may not be linear in its weight"):
            mu.plan(model, base=base, multipliers="hook").initialize_(model, std=0.02, seed=0)

    def test_stacked_experts_cannot_be_hooked(self):
        settings = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
                    "num_key_value_heads": 2, "vocab_size": 61}  # fmt: skip
        model, base = (
            hugging_face("mixtral", num_hidden_layers=depth, **settings) for depth in (3, 2)
        )
        with pytest.raises(NotExactError, match=r"stacks several matrices.*multipliers='fold'"):
            mu.plan(model, base=base, multipliers="hook")

    def test_biases_of_stacked_experts_end_the_branch_with_them(self):
        settings = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 8,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 61,
                    "num_local_experts": 4}  # fmt: skip
        model, base = (
            hugging_face("gpt_oss", num_hidden_layers=depth, **settings) for depth in (4, 2)
        )
        plan = mu.plan(model, base=base)
        folded = {
            name.split("layers.0.")[1]
            for name, p in plan.parameters.items()
            if p.folded != 1 and ".0." in name
        }
        attention = {"self_attn.o_proj.weight", "self_attn.o_proj.bias"}
        assert folded == attention | {"mlp.experts.down_proj", "mlp.experts.down_proj_bias"}


class NormedEmbedding(Fusable):
    """A tied model whose one norm outside of the blocks comes first, though it was made last."""

    def __init__(self, *dimensions: int) -> None:
        super().__init__(*dimensions, fused=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.final(self.tokens(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_a_norm_that_is_not_the_last_does_not_carry_the_readout():
    model = NormedEmbedding(32, 4, 4)
    plan = mu.plan(model, base=NormedEmbedding(16, 2, 2))
    assert plan.parameters["final.weight"].folded == 1
    assert [(hook.module, hook.where, hook.factor) for hook in plan.hooks] == [
        ("head", "input", 0.5)
    ]


class TestRefusals:
    def test_depth_where_branches_could_not_be_seen(self):
        class Blind(Fusable):
            def forward(self, tokens, mask):
                return super().forward(tokens)

        model, base = Blind(depth=3, fused=False), Blind(16, 2, 1, depth=2, fused=False)
        with pytest.raises(
            UnreadableModelError,
            match=r"depth differs \(2 → 3\).*missing 1 required.*'mask'.*inputs=",
        ):
            mu.plan(model, base=base)
        assert mu.plan(model, base=base, rule=RULES["gqa-mup"].with_(depth="none"))
        tokens = torch.zeros(1, 4, dtype=torch.long)
        assert mu.plan(model, base=base, inputs=(tokens, None)).parameters
        assert mu.plan(model, base=base, inputs={"tokens": tokens, "mask": None}).parameters
        with pytest.raises(
            UnreadableModelError,
            match=r"does not run with the inputs given: TypeError.*missing 1 required positional "
            r"argument",
        ):
            mu.plan(model, base=base, inputs=(tokens,))

    def test_rows_in_an_order_that_is_not_known(self):
        class Blind(transformers.CodeGenForCausalLM):
            def forward(self, *_, **__):
                raise NotImplementedError("a kernel that the meta device does not have")

        config = transformers.CodeGenConfig(n_embd=64, n_head=4, n_layer=1, rotary_dim=8)
        with torch.device("meta"):
            model = Blind(config)
        assert any(
            "a kernel that the meta" in w for w in mu.plan(model, base={"width": 32}).warnings
        )
        with pytest.raises(UnreadableModelError, match="in an unknown order"):
            mu.plan(model, base={"width": 32, "r": 2})

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"optimizer": "adamx"}, "optimizer"),
            ({"rule": "gqa"}, "rule"),
            ({"decay": "l3"}, "decay"),
            ({"multipliers": "folded"}, "Did you mean 'fold'"),
            ({"roles": {"*": "matrix"}}, "role"),
        ],
    )
    def test_unknown_names(self, options, message):
        with pytest.raises(UnknownNameError, match=message):
            mu.plan(llama(), base=llama(), **options)

    def test_an_optimizer_that_its_name_does_not_tell(self):
        adamw = OPTIMIZERS["adamw"]
        assert mu.plan(llama(), base=llama(), optimizer=adamw) == mu.plan(llama(), base=llama())
        with pytest.raises(UnknownNameError, match="optimizer 'mine'"):
            mu.plan(llama(), base=llama(), optimizer=replace(adamw, name="mine"))
        with pytest.raises(OptionError, match="differs from the built-in adamw"):
            mu.plan(llama(), base=llama(), optimizer=replace(adamw, decay="l2"))


class TestWarnings:
    def test_key_value_heads_that_stay_while_the_width_grows(self):
        plan = mu.plan(llama(64, 2, 8, 2), base=llama(32, 2, 4, 2))
        assert any("stays at 2" in w and "(2 → 4)" in w for w in plan.warnings)
        assert not any(
            "stays at" in w for w in mu.plan(llama(64, 2, 8, 2), base=llama(32, 2, 4, 1)).warnings
        )

    def test_another_r(self):
        assert any(
            "r differs (4 → 1)" in w
            for w in mu.plan(Fusable(32, 4, 4, fused=False), base={"r": 4}).warnings
        )

    def test_another_head_dim(self):
        plan = mu.plan(llama(64, 2, 8, 2), base=llama(32, 2, 8, 2))
        assert any("head_dim differs (4 → 8)" in w for w in plan.warnings)

    def test_the_same_head_dim_is_no_warning(self):
        plan = mu.plan(llama(64, 2, 8, 2), base=llama(32, 2, 4, 1))
        assert not any("head_dim" in w for w in plan.warnings)

    def test_a_model_that_scales_its_scores_itself_may_change_head_dim(self):
        """Granite's attention_multiplier takes the place of 1/√head_dim."""
        settings = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        model, base = (
            hugging_face(
                "granite",
                hidden_size=width,
                intermediate_size=2 * width,
                vocab_size=61,
                attention_multiplier=4 / width,
                **settings,
            )
            for width in (64, 32)
        )
        plan = mu.plan(model, base=base)
        assert (plan.target["head_dim"], plan.base["head_dim"]) == (16, 8)
        assert not any("head_dim" in w for w in plan.warnings)

    def test_a_long_list_of_parameters_names_four(self):
        """Policy: a warning names four templates and counts the others."""
        assert few(["a", "b", "a", "c", "d"]) == "a, b, c, d"
        assert few(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"

    def test_a_tied_readout_and_no_decay_on_norms(self):
        warnings = mu.plan(llama(tie_word_embeddings=True), base={"width": 32}).warnings
        assert any("tied" in w for w in warnings)
        assert not any("decay" in w for w in warnings)  # what holds for every plan is no warning

    def test_a_decay_that_torchs_optimizer_has_not(self):
        warnings = mu.plan(
            llama(), base={"width": 32}, optimizer="adam", decay="lr_coupled"
        ).warnings
        assert any("torch's adam decays by l2" in w for w in warnings)

    def test_constants_that_only_the_model_knows(self):
        settings = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 8,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
                    "vocab_size": 61}  # fmt: skip
        model = hugging_face("gpt_oss", **settings)
        plan = mu.plan(model, base=model)
        assert any("initialize_ leaves model.layers.*.self_attn.sinks" in w for w in plan.warnings)
        with torch.no_grad():
            model.model.layers[0].self_attn.sinks.fill_(7)
        plan.initialize_(model, std=0.02, seed=0)
        assert model.model.layers[0].self_attn.sinks.unique().item() == 7


class TestShowing:
    plan = mu.plan(llama(64, 4, 8, 2), base=llama(32, 2, 4, 4))

    def test_the_table_has_a_line_for_each_role_and_value(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "160")
        text = str(self.plan)
        assert "key               model.layers.*.self_attn.k_proj.weight × 4" in text
        assert "lr (1 + √r)/(2n)" in text
        assert text.count("\ngain ") == 2
        assert "warning: " in text
        assert "39 parameters" in text

    @pytest.mark.parametrize("columns", [80, 100, 160])
    @pytest.mark.parametrize("multipliers", ["fold", "hook"])
    @pytest.mark.parametrize("kind", ["split", "fused"])
    def test_table_and_explanation_fit_the_terminal(self, columns, multipliers, kind, monkeypatch):
        monkeypatch.setenv("COLUMNS", str(columns))
        models = {
            "split": (llama(4096, 4, 32, 8), llama(512, 2, 4, 4)),
            "fused": (Fusable(64, 8, 2, fused=True), Fusable(32, 4, 4, fused=True)),
        }
        plan = mu.plan(models[kind][0], base=models[kind][1], multipliers=multipliers)
        lines = str(plan).splitlines()
        for text in (str(plan), *(plan.explain(name) for name in plan.parameters)):
            assert max(map(len, text.splitlines())) <= columns
        head = next(line for line in lines if line.startswith("role "))
        assert ("parameters" in head) == (columns == 160)
        for p in plan.parameters.values():  # no role and no name of a parameter is broken
            assert any(line.startswith(f"{p.role} ") for line in lines)
        for row in showing.rows(plan.parameters.values(), plan.rule, plan.decay):
            assert any(row[1] in line for line in lines)

    def test_columns_that_say_nothing_are_left_out(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        alone = mu.plan(llama(64, 4, 8, 2), base=llama(32, 2, 4, 1), multipliers="hook")
        assert "mult." in str(alone)
        assert "mult." not in str(self.plan)
        assert "multiplier" in self.plan.to_markdown()

    def test_a_start_that_is_not_drawn_is_shown_as_set_and_others_as_a_factor(self):
        head, _, *rows = (
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in self.plan.to_markdown().splitlines()
            if line.startswith("|")
        )
        starts = {row[0]: row[head.index("init std")] for row in rows}
        assert {role for role, start in starts.items() if start == "set"} == {"gain"}
        roles = by_role(self.plan)
        for role in starts.keys() - {"gain"}:
            assert starts[role] == f"{roles[role].init_std:.4g}"

    def test_markdown_is_a_table_whose_stars_are_not_emphasis(self):
        lines = [line for line in self.plan.to_markdown().splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1
        assert r"model.layers.\*.self_attn.k_proj.weight" in self.plan.to_markdown()

    def test_an_explanation_puts_the_numbers_in(self):
        text = self.plan.explain("model.layers.0.self_attn.k_proj.weight")
        assert "n = 64, r = 4" in text
        assert "(1 + √r)/(2n) = 0.0234375 here, 0.03125 in the base: factor 0.75" in text
        assert "Learning rate of the repeated matrix" in text
        assert "gets: init std × 0.707107, lr × 0.75, weight decay × 1.33333, eps × 0.25" in text
        assert "× 0.5 of the forward pass is folded" in self.plan.explain(
            "model.layers.0.mlp.down_proj.weight"
        )

    def test_an_explanation_of_an_unknown_parameter_names_the_nearest(self):
        with pytest.raises(UnknownNameError, match=r"Did you mean 'model\.norm\.weight'"):
            self.plan.explain("model.norm.weigth")

    def test_fused_rows_have_lines_of_their_own(self):
        plan = mu.plan(Fusable(64, 8, 2, fused=True), base=Fusable(32, 4, 4, fused=True))
        lines = str(plan).splitlines()
        assert sum(line.startswith(("· key", "· value", "· query")) for line in lines) == 3
        assert "a hook multiplies them by 1.5" in plan.explain("blocks.0.attn.qkv_proj.weight")

    def test_a_difference_is_said_once_for_all_layers(self):
        other = mu.plan(llama(64, 4, 8, 2), base=llama(32, 2, 4, 4), rule="complete-p")
        differences = self.plan.diff(other)
        assert Difference("model.layers.*.self_attn.k_proj.weight", "lr", 0.75, 0.5) in differences
        assert len(differences) == 1 + 4  # the rule; rate and decay of keys and values
        assert "self_attn.v_proj.weight: weight_decay 1.333 → 2" in str(differences)
        assert str(self.plan.diff(self.plan)) == "no difference"
        deeper = mu.plan(llama(64, 5, 8, 2), base=llama(32, 2, 4, 4))
        assert Difference(
            "model.layers.*.mlp.up_proj.weight", "present", False, True
        ) in self.plan.diff(deeper)


class TestDerivations:
    """One derivation per distinct unit and optimizer, whatever is done with the plan."""

    @pytest.fixture
    def derived(self, monkeypatch) -> list[tuple[str, str]]:
        """The units that are derived, with their optimizers."""
        calls: list[tuple[str, str]] = []
        scaling = derivation._Derivation.scaling

        def counted(self):
            calls.append((str(self.unit), self.optimizer.name))
            return scaling(self)

        units.scaling_for.cache_clear()
        monkeypatch.setattr(derivation._Derivation, "scaling", counted)
        yield calls
        units.scaling_for.cache_clear()

    @pytest.mark.parametrize("optimizer", ["adamw", "muon"])
    def test_showing_a_plan_derives_nothing_again(self, derived, optimizer):
        plan = mu.plan(llama(64, 4, 8, 2), base=llama(32, 2, 4, 4), optimizer=optimizer)
        assert len(derived) == len(set(derived)) == 7
        str(plan), plan.to_markdown()
        for name in plan.parameters:
            plan.explain(name)
        assert len(derived) == 7

    def test_a_loaded_plan_derives_each_unit_once_and_only_when_it_is_shown(self, derived):
        model = llama(64, 4, 8, 2)
        plan = mu.plan(model, base=llama(32, 2, 4, 4))
        shown = str(plan)
        units.scaling_for.cache_clear()
        derived.clear()
        loaded = mu.Plan.from_json(plan.to_json())
        assert loaded.param_groups(model, lr=0.01)
        assert derived == []
        assert str(loaded) == str(loaded) == shown
        assert len(derived) == len(set(derived)) == 7


class TestTheFile:
    def plan(self):
        return mu.plan(Fusable(64, 8, 2, fused=True), base=Fusable(32, 4, 4, fused=True))

    def test_comes_back_as_it_went(self, tmp_path):
        plan = self.plan()
        assert plan.hooks
        plan.save(tmp_path / "plan.json")
        assert mu.Plan.load(tmp_path / "plan.json") == plan
        assert mu.Plan.load(str(tmp_path / "plan.json")).diff(plan) == ()

    @pytest.mark.parametrize(
        "way", ["edited", "cut", "empty", "other", "version", "list", "not text"]
    )
    def test_that_was_changed_is_refused(self, tmp_path, way):
        text = self.plan().to_json()
        data = json.loads(text)
        data["parameters"]["head.weight"]["lr"] *= 2
        broken = {
            "edited": json.dumps(data),
            "cut": text[: len(text) // 2],
            "empty": "",
            "other": "{}",
            "version": text.replace('"version": 1', '"version": 99'),
            "list": "[1]",
        }
        path = tmp_path / "plan.json"
        path.write_bytes(b"\xff\xfe\x00" if way == "not text" else broken[way].encode())
        expected = {"edited": "checksum", "version": "version 99"}.get(way, "not a plan")
        with pytest.raises(PlanMismatchError, match=rf"plan\.json: .*{expected}"):
            mu.Plan.load(path)

    def test_that_is_missing(self, tmp_path):
        with pytest.raises(OptionError, match=r"nowhere\.json: No such file"):
            mu.Plan.load(tmp_path / "nowhere.json")

    def test_an_unchanged_one_may_be_reformatted(self):
        plan = self.plan()
        assert mu.Plan.from_json(json.dumps(json.loads(plan.to_json()), indent=4)) == plan


def test_a_plan_is_frozen():
    with pytest.raises(AttributeError):
        TestShowing.plan.optimizer = "sgd"


def test_factors_are_finite_and_positive_for_every_optimizer():
    for optimizer in (
        "adamw",
        "adam",
        "sgd",
        "momentum",
        "lion",
        "muon",
        "muon-match-rms",
        "adafactor",
    ):
        plan = mu.plan(llama(64, 4, 8, 2), base=llama(32, 2, 4, 4), optimizer=optimizer)
        for p in plan.parameters.values():
            assert all(math.isfinite(v) and v > 0 for v in (p.lr, p.eps, p.multiplier, p.folded)), (
                optimizer,
                p.name,
            )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_json_does_not_know_is_not_written(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        storing.to_json({"lr": value})
