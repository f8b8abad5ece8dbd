"""A proxy is the same architecture, thinner and shallower: what the theory holds fixed is fixed."""

import copy
import re
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from mupscale.errors import DimensionError, MupscaleError, OptionError
from mupscale.reading import read
from mupscale.targets import build, proxy
from mupscale.targets.keys import STATE_HEADS
from mupscale.targets.widths import Heads, scaled_heads

# Each type with the width of its proxy, and a depth where the default is deep or too shallow to be
# cut.
SHALLOW = {"num_hidden_layers": 6}
GROUPED = SHALLOW | {"num_key_value_heads": 8}
TYPES = {
    "llama": (512, GROUPED | {"intermediate_size": 14336}),
    "mistral": (512, SHALLOW),
    "qwen2": (1024, GROUPED),
    "qwen3": (512, GROUPED),
    "gemma2": (576, SHALLOW),
    "gemma3_text": (576, SHALLOW),
    "phi3": (768, GROUPED),
    "gpt2": (256, {}),
    "gpt_neox": (768, SHALLOW),
    "falcon": (
        512,
        SHALLOW
        | {
            "new_decoder_architecture": True,
            "hidden_size": 4096,
            "num_attention_heads": 64,
            "num_kv_heads": 8,
        },
    ),
    "olmo2": (512, GROUPED),
    "starcoder2": (1536, SHALLOW),
    "cohere": (1024, GROUPED),
    "granite": (512, GROUPED),
    "mixtral": (512, SHALLOW),
    "qwen3_moe": (512, SHALLOW),
    "deepseek_v3": (1792, SHALLOW),
    "gpt_oss": (720, SHALLOW),
    "smollm3": (512, SHALLOW),
    "opt": (256, {}),
    "bloom": (32, {"n_layer": 4}),
    "gpt_neo": (512, {}),
    "llama4_text": (1280, SHALLOW | {"interleave_moe_layer_step": 2}),
    "ernie4_5_moe": (640, SHALLOW | {"moe_layer_end_index": 5}),
    "laguna": (512, SHALLOW),
}
DEPTH = 3


def templates(facts):
    return {fact.template for fact in facts.parameters.values()}


def feed_forward_ratios(facts):
    ratios = defaultdict(set)
    for fact in facts.parameters.values():
        if fact.role in ("mlp_in", "expert_in"):
            ratios[fact.template].add(fact.fan_out / facts.width)
        elif fact.role in ("mlp_out", "expert_out"):
            ratios[fact.template].add(fact.fan_in / facts.width)
    return ratios


@pytest.mark.parametrize("kind", TYPES)
def test_a_proxy_is_the_same_architecture_at_the_width_and_depth_asked_for(kind, config_of):
    width, settings = TYPES[kind]
    config = config_of(kind, **settings)
    large, small = read(build(config)), read(build(proxy(config, width=width, depth=DEPTH)))
    assert (small.width, small.depth) == (width, DEPTH)
    assert small.width < large.width
    assert (small.head_dim, small.repetitions) == (large.head_dim, large.repetitions)
    assert templates(small) == templates(large)
    ratios, exact = feed_forward_ratios(small), feed_forward_ratios(large)
    assert exact.keys() == ratios.keys() != set()
    for template, values in ratios.items():
        assert sorted(values) == pytest.approx(sorted(exact[template]), abs=4 / width), template


@pytest.mark.parametrize("kind", TYPES)
def test_a_copy_of_the_same_size_is_the_same_config(kind, config_of):
    config = config_of(kind, **TYPES[kind][1])
    facts = read(build(config))
    assert proxy(config, width=facts.width, depth=facts.depth).to_dict() == config.to_dict()


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "falcon", "gpt_neo", "deepseek_v3"])
def test_the_config_given_is_not_changed(kind, config_of):
    config = config_of(kind, **TYPES[kind][1])
    before = copy.deepcopy(config.to_dict())
    proxy(config, width=TYPES[kind][0], depth=2)
    assert config.to_dict() == before


class TestWidth:
    def test_sizes_follow_the_width_and_the_rest_stays(self, config_of):
        large = config_of("deepseek_v3")
        small = proxy(large, width=1792)
        for key in (
            "intermediate_size",
            "moe_intermediate_size",
            "q_lora_rank",
            "kv_lora_rank",
            "num_attention_heads",
        ):
            assert getattr(small, key) * 4 == getattr(large, key), key
        for key in (
            "n_routed_experts",
            "num_experts_per_tok",
            "vocab_size",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "num_hidden_layers",
            "rope_parameters",
        ):
            assert getattr(small, key) == getattr(large, key), key

    def test_sizes_that_are_not_whole_are_multiples_of_eight(self, config_of):
        small = proxy(config_of("deepseek_v3"), width=512)
        assert small.moe_intermediate_size == 144  # 2048 · 512 / 7168 = 146.3
        assert small.intermediate_size == 1320  # 18432 · 512 / 7168 = 1316.6

    def test_a_size_that_is_whole_is_exact_whatever_it_is_a_multiple_of(self, config_of):
        assert (
            proxy(config_of("llama", intermediate_size=11002), width=2048).intermediate_size == 5501
        )

    def test_heads_counted_layer_by_layer_keep_their_sharing(self, config_of):
        large = config_of("laguna", num_hidden_layers=3, num_attention_heads_per_layer=[48, 64, 48])
        small = proxy(large, width=512)
        assert (small.num_key_value_heads, small.num_attention_heads_per_layer) == (2, [12, 16, 12])

    @pytest.mark.parametrize(
        ("width", "heads"), [(256, 8), (512, 8), (768, 8), (1024, 16), (10240, 128)]
    )
    def test_heads_are_a_multiple_of_r_and_at_least_r(self, width, heads, config_of):
        qwen = config_of("qwen3", hidden_size=5120, num_attention_heads=64, num_key_value_heads=8)
        small = proxy(qwen, width=width)
        assert (small.num_attention_heads, small.num_key_value_heads, small.head_dim) == (
            heads,
            heads // 8,
            128,
        )

    @given(r=st.integers(1, 16), groups=st.integers(1, 16), width=st.integers(1, 8192))
    def test_no_multiple_of_r_is_nearer_to_the_proportion(self, r, groups, width):
        heads = scaled_heads(
            Heads(r * groups, groups, 64, one_for_all=False), old=2048, width=width
        )
        wanted = r * groups * width / 2048
        assert heads >= r
        assert heads % r == 0
        assert abs(heads - wanted) <= min(
            abs(heads + r - wanted), abs(heads - r - wanted) if heads > r else heads + r
        )

    def test_a_head_dim_of_its_own_is_written_down_only_where_it_differs(self, config_of):
        """Olmo2's attention takes head_dim from a config whose class does not declare it."""
        olmo = config_of(
            "olmo2", num_hidden_layers=2, num_key_value_heads=2
        )  # r = 16, head_dim = 128
        small = proxy(olmo, width=512)
        assert (small.num_attention_heads, small.num_key_value_heads, small.head_dim) == (
            16,
            1,
            128,
        )
        assert read(build(small)).head_dim == 128
        assert not hasattr(proxy(olmo, width=2048), "head_dim")

    @pytest.mark.parametrize(
        ("kind", "width", "message"),
        [
            ("gpt2", 100, r"width=100 is not a multiple of head_dim=64.*: 64 or 128\."),
            ("gpt2", 50, r"width=50 .*: 64\."),
            ("falcon", 640, r"head_dim=64 × r=8.*: 512 or 1024\."),
        ],
    )
    def test_where_head_dim_is_width_by_heads_only_some_widths_work(
        self, kind, width, message, config_of
    ):
        with pytest.raises(DimensionError, match=message):
            proxy(config_of(kind, **TYPES[kind][1]), width=width)

    @pytest.mark.parametrize(("kind", "width"), [("falcon", 512), ("gpt_bigcode", 256)])
    def test_multi_query_attention_keeps_its_one_head_and_its_head_dim(
        self, kind, width, config_of
    ):
        small = read(build(proxy(config_of(kind), width=width, depth=2)))
        assert (small.kv_heads, small.head_dim, small.heads) == (1, 64, width // 64)

    def test_none_still_means_four_times_the_width(self, config_of):
        assert proxy(config_of("gpt2"), width=256).n_inner is None
        facts = read(build(proxy(config_of("gpt2", n_inner=1536), width=256, depth=1)))
        assert facts.parameters["transformer.h.0.mlp.c_fc.weight"].fan_out == 512

    def test_a_width_that_the_class_refuses_is_one_error_with_widths_that_fit(self, config_of):
        config = config_of("llama", hidden_size=3328, num_attention_heads=26)
        with pytest.raises(
            OptionError, match=r"width=832.*not a multiple.*Choose a width that fits: 768 or 896\."
        ):
            proxy(config, width=832)
        assert [proxy(config, width=width).hidden_size for width in (768, 896)] == [768, 896]

    def test_scalars_of_the_forward_pass_stay(self, config_of):
        assert proxy(config_of("gemma2"), width=576).query_pre_attn_scalar == 256
        assert proxy(config_of("cohere", logit_scale=0.5), width=1024).logit_scale == 0.5

    def test_a_fat_copy_is_allowed(self, config_of):
        fat = proxy(config_of("gemma2", num_key_value_heads=1), width=4608)
        assert (fat.num_attention_heads, fat.num_key_value_heads, fat.intermediate_size) == (
            16,
            2,
            18432,
        )


class TestDepth:
    def test_patterns_go_on_as_the_config_derives_them(self, config_of):
        large = config_of("gemma3_text")
        for depth in (6, 12, 40):
            layers = proxy(large, depth=depth).layer_types
            assert layers == config_of("gemma3_text", num_hidden_layers=depth).layer_types

    def test_a_pattern_of_the_users_own_is_cut_or_continued(self, config_of):
        own = ["full_attention", "sliding_attention", "sliding_attention"] * 2
        large = config_of("gemma3_text", num_hidden_layers=6, layer_types=own)
        assert proxy(large, depth=4).layer_types == own[:4]
        assert proxy(large, depth=8).layer_types == own + own[:2]

    @pytest.mark.parametrize("depth", [2, 3, 4, 5])
    @pytest.mark.parametrize(
        ("kind", "key"),
        [
            ("gemma3_text", "layer_types"),
            ("smollm3", "no_rope_layers"),
            ("deepseek_v32", "mlp_layer_types"),
            ("gpt_oss", "layer_types"),
            ("gpt_neo", "attention_layers"),
        ],
    )
    def test_every_kind_of_layer_remains(self, kind, key, depth, config_of):
        large = config_of(kind)
        layers = getattr(proxy(large, depth=depth), key)
        assert len(layers) == depth
        assert set(layers) == set(getattr(large, key))

    @pytest.mark.parametrize(
        ("kind", "settings"),
        [
            ("deepseek_v3", {"num_hidden_layers": 6}),
            ("qwen3_moe", {"num_hidden_layers": 6, "mlp_only_layers": [0, 1, 2]}),
            ("qwen3_moe", {"num_hidden_layers": 6, "decoder_sparse_step": 3}),
            (
                "ernie4_5_moe",
                {"num_hidden_layers": 6, "moe_layer_start_index": 2, "moe_layer_end_index": 5},
            ),
            ("llama4_text", {"num_hidden_layers": 6, "moe_layers": [3, 4, 5]}),
        ],
    )
    def test_dense_and_sparse_layers_remain(self, kind, settings, config_of):
        large = config_of(kind, **settings)
        kept = templates(read(build(proxy(large, depth=2))))
        assert kept == templates(read(build(large)))

    def test_a_list_of_tokens_is_no_list_of_layers(self, config_of):
        large = config_of("llama", num_hidden_layers=3, eos_token_id=[1, 2, 3])
        assert proxy(large, depth=2).eos_token_id == [1, 2, 3]


class TestEncoderAndDecoder:
    """proxy(T5Config()) said "Pass its text part: config.get_text_config()", which was refused in
    the same words.
    """

    KINDS = (
        (T5Config, T5ForConditionalGeneration),
        (BartConfig, BartForConditionalGeneration),
        (WhisperConfig, WhisperForConditionalGeneration),
    )

    @pytest.mark.parametrize(("kind", "model"), KINDS)
    def test_both_are_thinner_and_shallower(self, kind, model):
        large = kind()
        small = proxy(large, width=128, depth=2)
        assert (small.hidden_size, small.num_hidden_layers, small.num_attention_heads) == (
            128,
            2,
            2,
        )
        built = build(small, model)
        assert {
            len(built.get_encoder().block if kind is T5Config else built.get_encoder().layers)
        } == {2}
        assert {
            len(built.get_decoder().block if kind is T5Config else built.get_decoder().layers)
        } == {2}
        shapes = {name: tuple(p.shape) for name, p in build(large, model).named_parameters()}
        for name, p in built.named_parameters():
            whole = shapes[name]
            for old, new in zip(whole, p.shape, strict=True):
                assert new == old or new * large.hidden_size == old * 128, name

    def test_heads_of_another_size_in_each(self):
        small = proxy(BartConfig(encoder_attention_heads=16, decoder_attention_heads=8), width=256)
        assert (small.encoder_attention_heads, small.decoder_attention_heads) == (4, 2)

    def test_one_depth_for_two_that_differ_is_refused(self):
        with pytest.raises(
            DimensionError, match="encoder_layers=2, decoder_layers=12: one depth does not say"
        ):
            proxy(BartConfig(encoder_layers=2), width=128, depth=2)
        assert proxy(BartConfig(encoder_layers=2), width=128).encoder_layers == 2


class TestStateSpaces:
    """A Granite hybrid refused every width, and said of each that "multiples of 128 are widths that
    fit".
    """

    KINDS = ("granitemoehybrid", "bamba", "falcon_h1", "zamba2", "nemotron_h")

    @pytest.mark.parametrize("kind", KINDS)
    def test_state_heads_keep_their_size_and_follow_the_width(self, kind, config_of):
        """The others kept all of them: the state of a model an eighth as wide was as wide as
        before.
        """
        large = config_of(kind)
        width = large.hidden_size // 8
        small = proxy(large, width=width)
        values, before = small.to_dict(), large.to_dict()
        (heads,) = [name for name in STATE_HEADS if name in values]
        assert values[heads] * 8 == before[heads]
        (size,) = [
            name for name in ("mamba_d_head", "mamba_headdim", "mamba_head_dim") if name in values
        ]
        assert values[size] == before[size]
        shapes = {name: tuple(p.shape) for name, p in build(large).named_parameters()}
        thin = dict(build(small).named_parameters())
        out = next(
            name
            for name in thin
            if name.endswith(("mamba.out_proj.weight", "mixer.out_proj.weight"))
        )
        assert tuple(thin[out].shape) == tuple(n // 8 for n in shapes[out])

    @pytest.mark.parametrize("kind", [*KINDS, "gpt2", "falcon", "gpt_neox"])
    def test_every_width_that_a_message_proposes_works(self, kind, config_of):
        config, proposed = config_of(kind), set()
        for width in (40, 130, 500, 831, 1300):
            try:
                proxy(config, width=width)
            except MupscaleError as error:
                found = re.search(r"Choose a width that fits: ([\d or]+)\.$", str(error))
                assert found, error  # noqa: PT017
                proposed |= {int(number) for number in re.findall(r"\d+", found[1])}
        for width in proposed:
            build(
                proxy(
                    config, width=width, depth=1 if kind not in ("zamba2", "nemotron_h") else None
                )
            )
        assert proposed


class TestWhatMayBeGiven:
    def test_a_model_with_a_config_stands_for_it(self, config_of):
        config = config_of("llama", num_hidden_layers=2)
        assert proxy(build(config), width=512).to_dict() == proxy(config, width=512).to_dict()

    @pytest.mark.parametrize("value", [0, -8, 2.0, "512", True])
    @pytest.mark.parametrize("name", ["width", "depth"])
    def test_a_size_is_a_positive_whole_number(self, name, value, config_of):
        with pytest.raises(
            DimensionError, match=f"{name}={value!r} is not a positive whole number"
        ):
            proxy(config_of("llama"), **{name: value})

    def test_something_must_be_asked_for(self, config_of):
        with pytest.raises(OptionError, match="neither width nor depth"):
            proxy(config_of("llama"))

    @pytest.mark.parametrize("thing", [{"hidden_size": 64}, None, nn.Linear(2, 2), "llama"])
    def test_what_has_no_config_is_refused(self, thing):
        with pytest.raises(
            OptionError, match="neither a Hugging Face config nor a model that has one"
        ):
            proxy(thing, width=512)

    def test_a_config_of_several_modalities_is_refused_with_the_part_to_pass(self, config_of):
        gemma = config_of("gemma3")
        with pytest.raises(
            OptionError, match=r"Pass the part that you mean: config\.text_config\."
        ):
            proxy(gemma, width=576)
        assert proxy(gemma.text_config, width=576).hidden_size == 576

    def test_every_refusal_is_one_of_ours(self, config_of):
        for width in range(1, 200):
            for kind in ("gpt2", "llama"):
                try:
                    proxy(config_of(kind), width=width)
                except MupscaleError as error:
                    assert "\n" not in str(error)  # noqa: PT017
