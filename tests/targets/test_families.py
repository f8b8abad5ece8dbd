"""A family is one model at several sizes, with memory for its weights; what it cannot vary it
says.
"""

import textwrap

import pytest
import torch

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.models import GPT
from mupscale.reading import read
from mupscale.targets.families import Family

LLAMA = (
    "hf:llama,hidden_size=64,intermediate_size=96,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=61"
)
OWN = """
    import torch
    from torch import nn
    from transformers import LlamaConfig
    from mupscale.models import GPT, GPTConfig

    def gpt(depth, heads=2):
        return GPT(GPTConfig(width=32, depth=depth, n_heads=heads, vocabulary=61, context=8))

    def config(size):
        return LlamaConfig(hidden_size=size, intermediate_size=64, num_hidden_layers=1,
                           num_attention_heads=2, vocab_size=61)

    def number(width):
        return width
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "mine_of_families.py").write_text(textwrap.dedent(OWN), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "mine_of_families"


def logits(model: torch.nn.Module) -> torch.Tensor:
    output = model(torch.zeros(1, 4, dtype=torch.long))
    return output if isinstance(output, torch.Tensor) else output.logits


class TestBuilt:
    @pytest.mark.parametrize(
        "name", ["gpt:cpu_64_r2", LLAMA, "hf:gpt2,n_embd=32,n_head=2,n_layer=1,vocab_size=61"]
    )
    def test_a_model_has_numbers_in_all_its_tensors(self, name):
        model = Family(name)(depth=3)
        tensors = [*model.parameters(), *model.buffers()]
        assert {tensor.device.type for tensor in tensors} == {"cpu"}
        assert logits(model).isfinite().all()
        assert read(model).depth == 3

    def test_a_new_width_of_the_reference_model_keeps_head_size_r_and_depth(self):
        model = Family("gpt:cpu_64_r2")(width=128)
        small, large = read(Family("gpt:cpu_64_r2")(width=64)), read(model)
        assert isinstance(model, GPT)
        assert (large.width, large.heads) == (128, 2 * (small.heads or 0))
        assert (large.repetitions, large.head_dim, large.depth) == (
            small.repetitions,
            small.head_dim,
            small.depth,
        )

    def test_a_new_width_of_a_hugging_face_model_keeps_head_size_r_and_the_ratio_of_feed_forward(
        self,
    ):
        config = Family(LLAMA)(width=128).config
        assert (config.hidden_size, config.intermediate_size, config.head_dim) == (128, 192, 16)
        assert (config.num_attention_heads, config.num_key_value_heads) == (8, 4)

    @pytest.mark.parametrize("name", ["gpt:cpu_64_r2", LLAMA])
    @pytest.mark.parametrize("kv_heads", [1, 2, 4])
    def test_r_and_key_value_heads_are_two_names_of_one_thing(self, name, kv_heads):
        by_heads, by_r = (
            read(Family(name)(n_kv_heads=kv_heads)),
            read(Family(name)(r=4 // kv_heads)),
        )
        assert by_heads.kv_heads == by_r.kv_heads == kv_heads
        assert by_heads.repetitions == by_r.repetitions == 4 // kv_heads
        assert by_heads.width == by_r.width == 64

    def test_a_well_known_shape_can_be_varied(self):
        family = Family(
            "llama-3-8b,hidden_size=64,intermediate_size=96,num_attention_heads=4,num_key_value_heads=2,"
            "head_dim=16,num_hidden_layers=4,vocab_size=61"
        )
        assert read(family(depth=1)).depth == 1

    def test_a_function_gets_the_dimension_under_its_own_name_beside_its_settings(self, own):
        model = Family(f"{own}:gpt,heads=4")(depth=3)
        assert isinstance(model, GPT)
        assert (model.config.depth, model.config.n_heads) == (3, 4)
        assert next(model.parameters()).device.type == "cpu"

    def test_a_function_may_return_a_config(self, own):
        model = Family(f"{own}:config")(size=32)
        assert read(model).width == 32
        assert logits(model).isfinite().all()


class TestRefused:
    @pytest.mark.parametrize("name", ["gpt:cpu_64_r2", LLAMA])
    def test_an_unknown_dimension(self, name):
        with pytest.raises(
            UnknownNameError, match=r"unknown dimension to vary 'widht'\. Did you mean 'width'\?"
        ):
            Family(name)(widht=128)

    @pytest.mark.parametrize("value", [0, -4, True, 2.0])
    @pytest.mark.parametrize("name", ["gpt:cpu_64_r2", LLAMA])
    def test_a_size_that_is_not_a_positive_whole_number(self, name, value):
        with pytest.raises(
            DimensionError, match=rf"n_kv_heads={value!r} is not a positive whole number"
        ):
            Family(name)(n_kv_heads=value)

    @pytest.mark.parametrize(
        ("name", "heads"), [("gpt:cpu_64_r2", r"n_heads=4"), (LLAMA, r"num_attention_heads=4")]
    )  # fmt: skip
    def test_key_value_heads_that_do_not_divide_the_heads(self, name, heads):
        with pytest.raises(
            DimensionError, match=rf"{heads} is not a multiple of \w+=3. Choose a divisor of 4"
        ):
            Family(name)(n_kv_heads=3)

    @pytest.mark.parametrize(
        ("name", "heads"), [("gpt:cpu_64_r2", r"n_heads=4"), (LLAMA, r"num_attention_heads=4")]
    )  # fmt: skip
    def test_repetitions_that_do_not_divide_the_heads(self, name, heads):
        with pytest.raises(DimensionError, match=f"r=3 does not divide {heads}. Choose 1, 2 or 4."):
            Family(name)(r=3)

    def test_a_config_without_key_value_heads(self):
        with pytest.raises(
            OptionError,
            match=r"GPT2Config has no number of key/value heads.*Vary the width or the depth",
        ):
            Family("hf:gpt2,n_layer=1,vocab_size=61")(n_kv_heads=2)

    def test_a_width_that_no_number_of_heads_fits(self):
        with pytest.raises(
            DimensionError, match=r"width=33 is not a multiple of head_dim=16.*32 or 48"
        ):
            Family("hf:gpt2,n_layer=1,n_head=2,n_embd=32,vocab_size=61")(width=33)

    def test_a_function_that_returns_no_model(self, own):
        with pytest.raises(
            OptionError, match=r":number returned a value of type int\. It must return a model"
        ):
            Family(f"{own}:number")(width=32)

    def test_a_function_without_such_an_argument(self, own):
        with pytest.raises(
            UnknownNameError, match="unknown argument of mine_of_families:gpt 'width'"
        ):
            Family(f"{own}:gpt")(width=32)
