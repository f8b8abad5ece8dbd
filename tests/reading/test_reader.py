"""Facts about models nobody here has written: every parameter has one role, and it is the right
one.
"""

from collections import Counter, defaultdict

import pytest
import torch
from torch import nn

from mupscale.errors import OptionError, UnknownNameError, UnreadableModelError
from mupscale.planning import plan, planner
from mupscale.reading import read, read_with_base, reader
from mupscale.reading.running import follow
from mupscale.reading.structure import bare_name

# Each with key/value heads shared where the architecture can, and small enough to look at.
SHARED = {"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 3}
SEPARATE = {
    "llama": SHARED | {"hidden_size": 256, "intermediate_size": 512},
    "mistral": SHARED | {"hidden_size": 256, "head_dim": 64},
    "qwen2": SHARED | {"hidden_size": 256},
    "qwen3": SHARED | {"hidden_size": 256, "head_dim": 64},
    "gemma2": SHARED | {"hidden_size": 256, "head_dim": 32},
    "gemma3_text": SHARED | {"hidden_size": 256, "head_dim": 32},
    "olmo2": SHARED | {"hidden_size": 256},
    "starcoder2": SHARED | {"hidden_size": 256},
    "cohere": SHARED | {"hidden_size": 256},
    "mixtral": SHARED | {"hidden_size": 256, "intermediate_size": 320},
    "qwen3_moe": SHARED | {"hidden_size": 256, "head_dim": 32},
    "gpt_oss": SHARED | {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64},
}
FUSED = {
    "phi3": SHARED | {"hidden_size": 256},
    "gpt2": {"n_embd": 256, "n_head": 8, "n_layer": 3},
    "gpt_neox": {"hidden_size": 256, "num_attention_heads": 8, "num_hidden_layers": 3},
    "falcon": {"hidden_size": 256, "num_attention_heads": 8, "num_hidden_layers": 3},
    "gpt_bigcode": {"n_embd": 256, "n_head": 8, "n_layer": 3},
}


def by_role(facts):
    roles = defaultdict(list)
    for fact in facts.parameters.values():
        roles[fact.role].append(fact)
    return roles


@pytest.mark.parametrize("kind", [*SEPARATE, *FUSED, "deepseek_v3"])
def test_every_parameter_has_one_fact_and_the_readout_is_the_readout(kind, build):
    model = build(kind, **({**SEPARATE, **FUSED}.get(kind, {"num_hidden_layers": 4})))
    facts = read(model)
    assert set(facts.parameters) == {name for name, _ in model.named_parameters()}
    roles = by_role(facts)
    readout = model.get_output_embeddings().weight
    if readout is model.get_input_embeddings().weight:
        assert facts.tied_readout
        assert len(roles["embedding"][0].tied) == 1
    else:
        assert [f.name for f in roles["readout"]] == [
            n for n, p in model.named_parameters() if p is readout
        ]
        assert roles["readout"][0].fan_in == facts.width
    assert facts.depth == len({f.name.split(".")[2] for f in roles["attention_output"]})


@pytest.mark.parametrize("kind", SEPARATE)
def test_keys_and_values_are_found_in_every_layer_with_the_configs_repetitions(kind, build):
    roles = by_role(read(build(kind, **SEPARATE[kind])))
    for role in ("query", "key", "value", "attention_output"):
        assert len(roles[role]) == 3, role
    for fact in roles["key"] + roles["value"]:
        assert fact.repetitions == 4
        assert fact.inner == 4 * fact.fan_out == roles["query"][0].fan_out
        assert fact.fan_in == 256
    assert roles["attention_output"][0].fan_in == roles["query"][0].fan_out
    assert all(f.output for f in roles["attention_output"] + roles["mlp_out"] + roles["expert_out"])
    assert not any(
        f.output for f in roles["query"] + roles["key"] + roles["mlp_in"] + roles["expert_in"]
    )


@pytest.mark.parametrize(
    ("kind", "repetitions"),
    [("phi3", 4), ("gpt2", 1), ("gpt_neox", 1), ("falcon", 8), ("gpt_bigcode", 8)],
)
def test_fused_rows_add_up_and_share_as_the_config_says(kind, repetitions, build):
    for fact in by_role(read(build(kind, **FUSED[kind])))["fused_qkv"]:
        q, k, v = fact.blocks
        assert fact.repetitions == repetitions
        assert q.outputs == 256 == repetitions * k.outputs == repetitions * v.outputs
        rows = sorted(row for block in fact.blocks for row in block.slices)
        assert [stop for _, stop in rows[:-1]] == [start for start, _ in rows[1:]]
        assert (rows[0][0], rows[-1][1]) == (0, fact.fan_out)
        assert fact.shape[fact.out_axis] == fact.fan_out


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_grouped_rows_are_those_that_falcon_itself_splits_off(kv_heads, build):
    model = build(
        "falcon", hidden_size=256, num_attention_heads=8, num_hidden_layers=1,
        new_decoder_architecture=True, num_kv_heads=kv_heads,
    )  # fmt: skip
    fact = by_role(read(model))["fused_qkv"][0]
    attention = model.transformer.h[0].self_attention
    rows = torch.arange(fact.fan_out, dtype=torch.float32)[None, None]
    for block, theirs in zip(fact.blocks, attention._split_heads(rows), strict=True):
        mine = torch.cat([torch.arange(start, stop) for start, stop in block.slices])
        # falcon repeats keys and values for their queries while splitting
        assert sorted(set(theirs.flatten().long().tolist())) == sorted(mine.tolist()), block.role


def test_rows_are_those_that_bigcode_splits_off_when_heads_are_not_shared(build):
    """Its code views each head as (q, k, v), where GPT-2's c_attn holds one after the other."""
    shared = by_role(read(build("gpt_bigcode", n_embd=64, n_head=4, n_layer=1, multi_query=True)))[
        "fused_qkv"
    ][0]
    apart = by_role(read(build("gpt_bigcode", n_embd=64, n_head=4, n_layer=1, multi_query=False)))[
        "fused_qkv"
    ][0]
    assert [block.slices for block in shared.blocks] == [((0, 64),), ((64, 80),), ((80, 96),)]
    assert apart.blocks[1].slices == ((16, 32), (64, 80), (112, 128), (160, 176))


def test_a_layout_that_no_table_has_is_followed_to_the_attention(build):
    """CodeGen holds each part as queries, values, keys, in this order."""
    fact = by_role(read(build("codegen", n_embd=64, n_head=4, n_layer=1, rotary_dim=8)))[
        "fused_qkv"
    ][0]
    rows = {block.role: block.slices for block in fact.blocks}
    assert fact.repetitions == 1
    assert rows["query"] == ((0, 16), (48, 64), (96, 112), (144, 160))
    assert rows["value"] == ((16, 32), (64, 80), (112, 128), (160, 176))
    assert rows["key"] == ((32, 48), (80, 96), (128, 144), (176, 192))


def test_transposed_and_stacked_weights_have_their_fans_the_right_way_round(build):
    gpt2 = by_role(read(build("gpt2", n_embd=256, n_head=8, n_layer=1)))
    assert (gpt2["mlp_in"][0].fan_in, gpt2["mlp_in"][0].fan_out, gpt2["mlp_in"][0].out_axis) == (
        256,
        1024,
        1,
    )
    mixtral = by_role(read(build("mixtral", **SEPARATE["mixtral"])))["expert_in"][0]
    assert (mixtral.fan_in, mixtral.fan_out, mixtral.out_axis, mixtral.active) == (
        256,
        640,
        1,
        2 / 8,
    )
    gpt_oss = by_role(read(build("gpt_oss", **SEPARATE["gpt_oss"])))
    assert (
        gpt_oss["expert_in"][0].fan_in,
        gpt_oss["expert_in"][0].fan_out,
        gpt_oss["expert_in"][0].out_axis,
    ) == (
        256,
        512,
        2,
    )
    assert gpt_oss["expert_out"][0].out_axis == 2
    assert {f.fan_out for f in gpt_oss["router"]} == {gpt_oss["expert_in"][0].shape[0]}


def test_low_rank_attention_is_read_factor_by_factor(build):
    roles = by_role(read(build("deepseek_v3", num_hidden_layers=4)))
    assert Counter(f.name.split(".")[-2] for f in roles["low_rank_down"]) == {
        "q_a_proj": 4,
        "kv_a_proj_with_mqa": 4,
    }
    assert Counter(f.name.split(".")[-2] for f in roles["low_rank_up"]) == {
        "q_b_proj": 4,
        "kv_b_proj": 4,
    }


def test_a_norm_that_has_a_gain_for_each_head_is_still_a_norm(build):
    """Command R+ norms queries and keys head by head: (heads, head_dim) gains."""
    facts = read(build("cohere", **SEPARATE["cohere"], use_qk_norm=True)).parameters
    gain = facts["model.layers.0.self_attn.q_norm.weight"]
    assert (gain.shape, gain.role, gain.start) == ((8, 32), "gain", 1.0)


class TestVectorsThatDoNotGrow:
    def test_gains_that_all_heads_share(self, build):
        facts = read(build("qwen3", **SEPARATE["qwen3"])).parameters
        assert facts["model.layers.0.self_attn.q_norm.weight"].fixed
        assert not facts["model.layers.0.input_layernorm.weight"].fixed
        assert not facts["model.norm.weight"].fixed

    def test_gains_over_all_heads_and_biases_of_hidden_matrices_do(self, build):
        assert (
            not read(build("olmo2", **SEPARATE["olmo2"]))
            .parameters["model.layers.0.self_attn.k_norm.weight"]
            .fixed
        )
        gpt2 = read(build("gpt2", **FUSED["gpt2"])).parameters
        assert not any(fact.fixed for fact in gpt2.values())

    def test_biases_of_logits_and_scores(self, build):
        assert (
            read(build("phi", hidden_size=64, num_attention_heads=4))
            .parameters["lm_head.bias"]
            .fixed
        )
        facts = read(build("gpt_oss", **SEPARATE["gpt_oss"])).parameters
        assert facts["model.layers.0.mlp.router.bias"].fixed
        assert not facts["model.layers.0.mlp.experts.down_proj_bias"].fixed


class TestConstantsOfTheForwardPass:
    def test_gemma_scales_its_embedding_by_the_root_of_the_width(self, build):
        facts = by_role(read(build("gemma2", **SEPARATE["gemma2"])))
        assert facts["embedding"][0].forward_multiplier == 16
        assert facts["gain"][0].offset == 1

    def test_granite_divides_the_logits_and_hyperclovax_multiplies_them(self, build):
        settings = {
            "logits_scaling": 4.0,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.5,
            "num_hidden_layers": 2,
        }
        for kind, readout in (("granite", 1 / 4), ("hyperclovax", 4)):
            roles = by_role(read(build(kind, **settings)))
            assert roles["readout"][0].forward_multiplier == readout
            assert roles["embedding"][0].forward_multiplier == 12
            assert {f.forward_multiplier for f in roles["mlp_out"] + roles["attention_output"]} == {
                0.5
            }
            assert {f.forward_multiplier for f in roles["mlp_in"] + roles["query"]} == {1}

    def test_minicpm_scales_its_branches_by_the_root_of_the_depth(self, build):
        roles = by_role(read(build("minicpm3", num_hidden_layers=4)))
        assert roles["mlp_out"][0].forward_multiplier == pytest.approx(1.4 / 2)
        assert roles["embedding"][0].forward_multiplier == 12

    def test_cohere_has_a_logit_scale(self, build):
        facts = read(build("cohere", **SEPARATE["cohere"], tie_word_embeddings=False))
        assert by_role(facts)["readout"][0].forward_multiplier == facts.readout_multiplier == 0.0625
        assert (
            read(build("cohere", **SEPARATE["cohere"], tie_word_embeddings=True)).readout_multiplier
            == 0.0625
        )

    def test_one_that_nobody_knows_is_refused_unless_the_user_vouches_for_it(self, build):
        model = build("llama", **SEPARATE["llama"], secret_scale=3.0)
        with pytest.raises(
            UnreadableModelError, match=r"secret_scale=3\.0.*ignore=\['secret_scale'\]"
        ):
            read(model)
        assert len(read(model, ignore=["secret_scale"]).parameters)
        with pytest.raises(UnknownNameError, match=r"secret_skale.*Did you mean 'secret_scale'"):
            read(model, ignore=["secret_skale"])


class Own(nn.Module):
    """A model without a config, with names of its own."""

    def __init__(self, width: int = 48, heads: int = 6, kv_heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        head_dim = 8
        self.tokens = nn.Embedding(100, width)
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            block = nn.ModuleDict(
                {"attn": nn.Module(), "mlp": nn.Module(), "norm": nn.LayerNorm(width)}
            )
            block["attn"].wq = nn.Linear(width, heads * head_dim, bias=False)
            block["attn"].wk = nn.Linear(width, kv_heads * head_dim, bias=False)
            block["attn"].wv = nn.Linear(width, kv_heads * head_dim, bias=False)
            block["attn"].wo = nn.Linear(heads * head_dim, width)
            block["mlp"].fc1 = nn.Linear(width, 4 * width)
            block["mlp"].fc2 = nn.Linear(4 * width, width)
            self.blocks.append(block)
        self.final = nn.LayerNorm(width)
        self.head = nn.Linear(width, 100, bias=False)


class TestModelsOfOnesOwn:
    def test_repetitions_come_from_the_rows_where_there_is_no_config(self):
        facts = read(Own())
        key = facts.parameters["blocks.1.attn.wk.weight"]
        assert (key.role, key.repetitions, key.inner, key.depth, key.template) == (
            "key",
            3,
            48,
            2,
            "blocks.*.attn.wk.weight",
        )
        assert facts.parameters["head.weight"].role == "readout"
        assert facts.final_gain == "final.weight"

    def test_a_bias_of_a_branch_output_ends_the_branch_too(self):
        facts = read(Own()).parameters
        assert facts["blocks.0.attn.wo.bias"].output
        assert facts["blocks.0.mlp.fc2.bias"].output
        assert not facts["blocks.0.mlp.fc1.bias"].output

    def test_tied_weights_are_one_parameter_with_two_names(self):
        model = Own()
        model.head.weight = model.tokens.weight
        facts = read(model)
        assert facts.tied_readout
        assert facts.parameters["tokens.weight"].tied == ("head.weight",)

    def test_wrappers_do_not_change_a_name(self):
        plain = read(Own())
        compiled = Own()
        compiled.blocks[0]["mlp"] = torch.compile(compiled.blocks[0]["mlp"])
        assert read(compiled) == plain
        assert read(torch.compile(Own())) == plain
        assert bare_name("_orig_mod.blocks.0._fsdp_wrapped_module.w") == "blocks.0.w"

    def test_what_is_not_understood_is_named_with_the_way_to_say_it(self):
        model = Own()
        model.blocks[0]["attn"].mystery = nn.Linear(48, 7, bias=False)
        with pytest.raises(
            UnreadableModelError, match=r'(?s)blocks\.\*\.attn\.mystery\.weight.*roles=\{"blocks'
        ):
            read(model)
        facts = read(model, roles={"blocks.*.attn.mystery.weight": "hidden"})
        assert facts.parameters["blocks.0.attn.mystery.weight"].role == "hidden"

    @pytest.mark.parametrize(
        ("roles", "error", "message"),
        [
            ({"nothing.*": "hidden"}, OptionError, "matches no parameter"),
            (
                {"*.wq.weight": "query", "blocks.0.*.wq.weight": "hidden"},
                OptionError,
                "both .* match",
            ),
            ({"*.wq.weight": "quary"}, UnknownNameError, "Did you mean 'query'"),
        ],
    )
    def test_a_role_that_cannot_be_meant_is_refused(self, roles, error, message):
        with pytest.raises(error, match=message):
            read(Own(), roles=roles)

    def test_rows_that_do_not_fit_are_refused(self):
        model = Own()
        model.blocks[0]["attn"].wk = nn.Linear(48, 20, bias=False)
        with pytest.raises(
            UnreadableModelError, match="20 outputs and 48 query outputs, not a multiple"
        ):
            read(model)

    def test_a_model_without_embedding_or_readout_is_refused(self):
        with pytest.raises(UnreadableModelError, match="no token embedding"):
            read(nn.Linear(3, 3))
        model = Own()
        model.head = nn.Identity()
        with pytest.raises(UnreadableModelError, match="no readout"):
            read(model)


def test_a_config_that_contradicts_the_weights_is_an_error(build):
    model = build("llama", **SEPARATE["llama"])
    model.config.num_key_value_heads = 4
    with pytest.raises(
        UnreadableModelError,
        match="has 64 outputs, but the config says 4 key/value heads of 32, that is 128",
    ):
        read(model)
    fused = build("phi3", **FUSED["phi3"])
    fused.config.num_key_value_heads = 4
    with pytest.raises(UnreadableModelError, match=r"config has 8 \+ 2·4 heads"):
        read(fused)


@pytest.mark.parametrize("kind", ["mamba2", "rwkv", "jamba", "recurrent_gemma"])
def test_state_space_and_recurrent_models_are_refused(kind, build):
    with pytest.raises(UnreadableModelError, match="not understood"):
        read(build(kind))


class TestPostNorms:
    """Where a branch ends in a norm, by watching one forward pass; names would mislead."""

    @pytest.mark.parametrize("kind", ["llama", "mixtral", "gpt2", "falcon"])
    def test_a_pre_norm_model_has_none(self, kind, build):
        facts = read(build(kind, **{**SEPARATE, **FUSED}[kind]))
        assert facts.followed
        assert not any(fact.normed_by for fact in facts.parameters.values())

    @pytest.mark.parametrize(
        ("kind", "attention", "mlp"),
        [
            ("olmo2", "post_attention_layernorm", "post_feedforward_layernorm"),
            ("gemma2", "post_attention_layernorm", "post_feedforward_layernorm"),
            ("glm4", "post_self_attn_layernorm", "post_mlp_layernorm"),
        ],
    )
    def test_a_post_norm_model_has_one_for_each_branch(self, kind, attention, mlp, build):
        facts = read(build(kind, **SHARED, hidden_size=256, head_dim=32)).parameters
        for layer in range(3):
            prefix = f"model.layers.{layer}"
            assert facts[f"{prefix}.self_attn.o_proj.weight"].normed_by == f"{prefix}.{attention}"
            assert facts[f"{prefix}.mlp.down_proj.weight"].normed_by == f"{prefix}.{mlp}"
            assert facts[f"{prefix}.self_attn.q_proj.weight"].normed_by is None

    def test_a_branch_of_experts_is_normed_after_they_are_mixed(self, build):
        facts = read(
            build("flex_olmo", **SHARED, hidden_size=256, intermediate_size=320)
        ).parameters
        experts = facts["model.layers.1.mlp.experts.down_proj"]
        assert experts.normed_by == "model.layers.1.post_feedforward_layernorm"

    def test_a_module_that_adds_the_residual_stream_itself_is_no_post_norm(self, build):
        facts = read(build("bloom"))
        assert facts.followed
        assert not any(fact.normed_by for fact in facts.parameters.values())

    def test_reading_changes_nothing_about_the_model(self):
        model = Own().train()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state = torch.get_rng_state()
        assert not read(model).followed  # it has no forward
        assert model.training
        assert model.blocks[0]["mlp"].fc1.training
        assert not any(
            module._forward_hooks or module._forward_pre_hooks for module in model.modules()
        )
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), state)


class TestReadWithBase:
    def test_a_plan_of_facts_equals_the_plan_of_the_models_and_reads_nothing(
        self, build, monkeypatch
    ):
        model = build("llama", **SEPARATE["llama"])
        base = build("llama", **SEPARATE["llama"] | {"hidden_size": 128})
        expected = plan(model, base=base)
        facts, base_facts = read_with_base(model, base)
        monkeypatch.setattr(planner, "read", None)
        monkeypatch.setattr(planner, "read_with_base", None)
        assert plan(facts, base=base_facts) == expected

    def test_each_model_is_followed_once(self, build, monkeypatch):
        model, base = (build("gpt2", **FUSED["gpt2"] | {"n_embd": n}) for n in (256, 128))
        followed = []
        monkeypatch.setattr(
            reader, "follow", lambda model, *rest: followed.append(model) or follow(model, *rest)
        )
        facts, base_facts = read_with_base(model, base)
        assert (len(followed), facts.width, base_facts.width) == (2, 256, 128)
