"""What a name stands for: dimensions as published, settings that arrive, and errors that say what
to do.
"""

import itertools
import json
import sys
import textwrap

import pytest
import torch
from torch import nn

from mupscale.errors import (
    DimensionError,
    MissingExtraError,
    MupscaleError,
    OptionError,
    UnknownNameError,
)
from mupscale.reading import read
from mupscale.targets import SHAPES, Target, build, resolve


def parameters(target: Target) -> int:
    return sum(parameter.numel() for parameter in target.model.parameters())


# The number of parameters that each model was published with, counted in its weights.
PUBLISHED = {
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b": 7_241_732_096,
    "command-r-plus": 103_810_674_688,
}


class TestShapes:
    @pytest.mark.parametrize("name", SHAPES)
    def test_a_shape_has_the_published_number_of_parameters_and_no_memory(self, name):
        target = resolve(name)
        assert parameters(target) == PUBLISHED[name]
        assert {tensor.device.type for tensor in target.model.parameters()} == {"meta"}
        assert target.name == name
        assert target.config.model_type == SHAPES[name].model_type

    @pytest.mark.parametrize(
        ("name", "heads", "kv_heads", "head_dim", "tied"),
        [
            ("llama-3-70b", 64, 8, 128, False),
            ("qwen3-32b", 64, 8, 128, False),
            ("command-r-plus", 96, 8, 128, True),
        ],
    )
    def test_a_shape_is_read_whole(self, name, heads, kv_heads, head_dim, tied):
        facts = read(resolve(f"{name},num_hidden_layers=2").model)
        assert (facts.heads, facts.kv_heads, facts.head_dim, facts.tied_readout) == (
            heads,
            kv_heads,
            head_dim,
            tied,
        )

    def test_every_setting_of_a_shape_is_one_that_its_config_has(self):
        for name, shape in SHAPES.items():
            config = resolve(f"{name},num_hidden_layers=1").config
            for key, value in shape.settings.items():
                if key not in ("num_hidden_layers", "rope_parameters"):
                    assert getattr(config, key) == value, (name, key)

    @pytest.mark.parametrize(
        "name", ["LLAMA-3-8B", "llama_3_8b", "Llama.3-8b", "llama3-8b", " llama-3-8b "]
    )
    def test_case_and_separators_do_not_matter(self, name):
        assert resolve(name).config.hidden_size == 4096

    def test_a_shape_takes_settings(self):
        config = resolve("llama-3-8b,num_hidden_layers=2,rope_theta=1e4").config
        assert (
            config.num_hidden_layers,
            config.rope_parameters["rope_theta"],
            config.vocab_size,
        ) == (2, 1e4, 128256)


class TestTypes:
    def test_settings_arrive_with_their_type(self):
        target = resolve(
            "hf:qwen3,hidden_size=1024,num_hidden_layers=4,tie_word_embeddings=false,rms_norm_eps=1e-5"
        )
        config = target.config
        assert (config.hidden_size, config.num_hidden_layers) == (1024, 4)
        assert (config.tie_word_embeddings, config.rms_norm_eps) == (False, 1e-5)
        assert read(target.model).depth == 4

    def test_other_names_of_a_setting_are_understood(self):
        config = resolve("hf:gpt2,hidden_size=128,num_attention_heads=2,n_layer=1").config
        assert (config.n_embd, config.n_head) == (128, 2)

    def test_a_head_dim_that_only_the_attention_knows_is_a_setting(self):
        assert read(resolve("hf:qwen2,num_hidden_layers=1,head_dim=64").model).head_dim == 64
        with pytest.raises(UnknownNameError, match="unknown setting of gpt2 'head_dim'"):
            resolve("hf:gpt2,head_dim=64")

    @pytest.mark.parametrize(
        ("name", "error", "message"),
        [
            ("hf:lama", UnknownNameError, "'lama'. Did you mean 'llama'"),
            ("hf:", UnknownNameError, "unknown type of transformers ''"),
            ("hf:vit", OptionError, "'vit' is not a causal language model"),
            (
                "hf:llama,hiden_size=64",
                UnknownNameError,
                "'hiden_size'. Did you mean 'hidden_size'",
            ),
            ("hf:llama,hidden_size", OptionError, "'hidden_size' is not a setting"),
            (
                "hf:llama,hidden_size=wide",
                OptionError,
                "LlamaConfig rejects .* expected int, got str",
            ),
            (
                "hf:llama,hidden_size=0",
                DimensionError,
                "hidden_size=0 is not a positive whole number",
            ),
            ("hf:llama,num_hidden_layers=-1", DimensionError, "num_hidden_layers=-1"),
            ("hf:llama,hidden_size=1e3", DimensionError, r"hidden_size=1000\.0"),
            ("hf:llama,num_attention_heads=true", DimensionError, "num_attention_heads=True"),
            (
                "hf:llama,num_key_value_heads=5",
                DimensionError,
                "32 is not a multiple .*=5. .*: 1, 2, 4, 8, 16 or 32",
            ),
            ("hf:llama,hidden_size=100", OptionError, r"hidden size \(100\) is not a multiple"),
            ("hf:gpt2,n_embd=100", OptionError, "GPT2LMHeadModel cannot be built: .*divisible"),
        ],
    )
    def test_a_mistake_is_named_in_one_line(self, name, error, message):
        with pytest.raises(error, match=message) as caught:
            resolve(name)
        assert "\n" not in str(caught.value)

    def test_without_transformers_the_line_that_installs_it_is_shown(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        for name in ("hf:llama", "llama-3-8b"):
            with pytest.raises(MissingExtraError, match=r"pip install 'mupscale\[hf\]'"):
                resolve(name)


class TestFiles:
    @pytest.fixture(autouse=True)
    def _in_a_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        self.folder = tmp_path

    def write(self, values, name="config.json"):
        (self.folder / name).write_text(
            values if isinstance(values, str) else json.dumps(values), encoding="utf-8"
        )

    def test_a_config_comes_back_as_it_was_saved(self, config_of):
        saved = config_of("gemma3_text", num_hidden_layers=7, hidden_size=256, head_dim=32)
        saved.save_pretrained(self.folder / "model")
        for name in ("hf:model", "hf:model/", "hf:./model/config.json", "model/config.json"):
            loaded = resolve(name).config
            assert type(loaded) is type(saved)
            assert (loaded.hidden_size, loaded.layer_types) == (256, saved.layer_types)

    def test_a_type_wins_over_a_folder_of_its_name(self, config_of):
        config_of("gpt2").save_pretrained(self.folder / "llama")
        assert resolve("hf:llama").config.model_type == "llama"
        assert resolve("hf:./llama").config.model_type == "gpt2"

    def test_a_path_with_a_comma_is_a_path(self, config_of):
        config_of("gpt2").save_pretrained(self.folder / "lr=1,wd=2")
        assert resolve("hf:lr=1,wd=2").config.model_type == "gpt2"
        assert resolve("lr=1,wd=2/config.json").config.model_type == "gpt2"

    def test_settings_go_on_top_and_lists_of_layers_follow_the_depth(self, config_of):
        config_of(
            "gemma3_text", num_hidden_layers=12, hidden_size=256, head_dim=32
        ).save_pretrained(self.folder)
        config = resolve("config.json,num_hidden_layers=4,hidden_size=128").config
        assert (config.hidden_size, len(config.layer_types), config.head_dim) == (128, 4, 32)

    def test_old_files_are_read_as_transformers_reads_them(self):
        self.write(
            {
                "model_type": "llama",
                "rope_theta": 5e5,
                "torch_dtype": "bfloat16",
                "num_hidden_layers": 1,
                "some_key_of_the_future": 3,
            }
        )
        assert resolve("config.json").config.rope_parameters["rope_theta"] == 5e5
        assert resolve("config.json,rope_theta=7.0").config.rope_parameters["rope_theta"] == 7

    def test_a_setting_that_another_key_of_the_file_undoes_is_an_error(self):
        self.write({"model_type": "bloom", "n_embed": 64, "n_layer": 1})
        assert resolve("config.json").config.hidden_size == 64
        with pytest.raises(OptionError, match="hidden_size=32 has no effect: BloomConfig has 64"):
            resolve("config.json,hidden_size=32")

    @pytest.mark.parametrize(
        ("content", "error", "message"),
        [
            ("{nope", OptionError, "config.json cannot be read as JSON: .*line 1"),
            ("\x00", OptionError, "cannot be read as JSON"),
            ("[" * 100_000, OptionError, "cannot be read as JSON"),
            ("[1]", OptionError, "type list, not an object"),
            ("{}", OptionError, "has no model_type"),
            ({"model_type": 3}, OptionError, "has no model_type"),
            ({"model_type": "lama"}, UnknownNameError, "Did you mean 'llama'"),
            ({"model_type": "vit"}, OptionError, "not a causal language model"),
            (
                {"model_type": "mine", "auto_map": {"AutoConfig": "a.B"}},
                OptionError,
                "never run.*module:function",
            ),
            (
                {"model_type": "llama", "num_attention_heads": 0},
                DimensionError,
                "num_attention_heads=0",
            ),
            ({"model_type": "llama", "num_key_value_heads": 5}, DimensionError, "not a multiple"),
            ({"model_type": "llama", "hidden_size": "wide"}, OptionError, "expected int, got str"),
        ],
    )
    def test_a_file_that_is_wrong_says_how(self, content, error, message):
        self.write(content)
        with pytest.raises(error, match=message):
            resolve("hf:config.json")

    def test_code_that_comes_with_weights_is_not_run(self):
        (self.folder / "evil.py").write_text("raise SystemExit('run')")
        self.write({"model_type": "llama", "auto_map": {"AutoConfig": "evil.Config"}})
        assert type(resolve("hf:.").model).__module__.startswith("transformers.models.llama")
        assert "evil" not in sys.modules

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("missing.json", "there is no file missing.json"),
            ("hf:./nowhere", "there is no file nowhere"),
            ("hf:my-org/my-model", "there is no file my-org/my-model"),
            ("hf:meta-llama/Llama-3-8B", "Did you mean 'llama-3-8b'"),
            ("hf:mistralai/Mistral-7B-v0.1", "Did you mean 'mistral-7b'"),
            ("hf:" + "a/" * 3000 + "b", "there is no file"),
        ],
    )
    def test_nothing_is_downloaded(self, name, message, monkeypatch):
        def refuse(*_, **__):
            raise AssertionError("the network was asked")

        monkeypatch.setattr("socket.socket.connect", refuse)
        monkeypatch.setattr("socket.getaddrinfo", refuse)
        with pytest.raises(OptionError, match=message) as caught:
            resolve(name)
        assert "nothing is downloaded" in str(caught.value)
        assert "config.json" in str(caught.value)


class TestFunctions:
    FRESH = itertools.count()
    SOURCE = """
        import torch
        from torch import nn
        CONSTANT = 3
        MADE = nn.Linear(2, 2)
        def build_small(width=8, depth=2):
            return nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])
        def open_ended(**settings):
            return nn.Linear(**settings)
        def needs(width, *, heads):
            return nn.Linear(width, heads)
        def configured(layers=2):
            from transformers import GPT2Config
            return GPT2Config(n_layer=layers)
        def with_config():
            from mupscale.targets import build
            return build(configured())
        def lazy():
            import %s_other
            return nn.Linear(2, 2)
        def number():
            return 3
        def fails():
            raise RuntimeError("in two\\nlines")
        def looks():
            return torch.zeros(1).item()
        def made():
            return MADE
        def refuses():
            from mupscale.targets import proxy
            return proxy(configured(), width=100)
    """

    @pytest.fixture
    def module(self, tmp_path, monkeypatch):
        """A module in the current folder, under a name that no test before has imported."""
        name = f"own_models_{next(self.FRESH)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(self.SOURCE) % name)
        (tmp_path / f"{name}_other.py").touch()
        (tmp_path / f"{name}_broken.py").write_text("import a_package_that_is_not_there")
        (tmp_path / f"{name}_syntax.py").write_text("def (")
        monkeypatch.chdir(tmp_path)
        return name

    def test_a_function_of_the_current_folder_is_called_on_the_meta_device(self, module):
        before = list(sys.path)
        target = resolve(f"{module}:build_small,width=16,depth=4")
        assert (len(target.model), target.model[0].in_features, target.config) == (4, 16, None)
        assert target.model[0].weight.is_meta
        assert sys.path == before
        assert torch.empty(1).device.type == "cpu"

    def test_what_it_imports_while_it_runs_is_found_too(self, module):
        assert isinstance(resolve(f"{module}:lazy").model, nn.Linear)

    def test_it_may_return_a_config_or_a_model_with_one(self, module):
        assert resolve(f"{module}:configured,layers=3").config.n_layer == 3
        target = resolve(f"{module}:with_config")
        assert target.config is target.model.config

    def test_an_open_signature_takes_any_setting(self, module):
        assert resolve(f"{module}:open_ended,in_features=3,out_features=5").model.out_features == 5

    @pytest.mark.parametrize(
        ("rest", "error", "message"),
        [
            (":bild_small", UnknownNameError, "Did you mean 'build_small'"),
            (":CONSTANT", OptionError, "of type int, not a function"),
            (":build_small,widht=3", UnknownNameError, "'widht'. Did you mean 'width'"),
            (":needs,width=3", OptionError, r"needs heads. Write .*:needs,heads=…"),
            (":number", OptionError, "returned a value of type int"),
            (":fails", OptionError, "raised RuntimeError: in two lines. .* meta device"),
            (":looks", OptionError, "meta tensors. It is called on the meta device"),
            (":made", OptionError, r"weights on the cpu \(weight\)"),
            (":refuses", DimensionError, "width=100 is not a multiple"),
            (
                "_broken:build",
                OptionError,
                "importing .* failed: No module named 'a_package_that_is_not_there'",
            ),
            ("_syntax:build", OptionError, "raised SyntaxError"),
            ("_nowhere:build", OptionError, "there is no module own_models_.*_nowhere"),
            (".sub:build", OptionError, "there is no module own_models_.*sub"),
        ],
    )
    def test_a_mistake_is_named_in_one_line(self, rest, error, message, module):
        with pytest.raises(error, match=message) as caught:
            resolve(f"{module}{rest}")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["", "llama-3-9b", "my model", "https://example.org/model", "a:b:c", "folder/model"]
)
def test_any_other_name_is_answered_with_what_there_is(name):
    with pytest.raises(
        UnknownNameError, match=r"Known: llama-3-8b, .*, hf:TYPE, hf:PATH.*, module:function"
    ):
        resolve(name)


def test_building_names_the_config_and_the_reason(config_of):
    with pytest.raises(
        OptionError, match=r"GPT2Config: GPT2LMHeadModel cannot be built: .*divisible"
    ):
        build(config_of("gpt2", n_embd=100))
    with pytest.raises(
        OptionError, match=r"no causal language model for ViTConfig.*build\(config, cls\)"
    ):
        build(config_of("vit"))


def test_building_takes_another_class_and_leaves_the_random_numbers_alone(config_of):
    import transformers

    state = torch.get_rng_state()
    model = build(config_of("llama", num_hidden_layers=1), transformers.LlamaModel)
    assert type(model) is transformers.LlamaModel
    assert torch.equal(torch.get_rng_state(), state)


def test_every_error_has_the_root_of_the_tree():
    for name in ("hf:lama", "hf:x/y", "nowhere:f", "what"):
        with pytest.raises(MupscaleError):
            resolve(name)


class TestTheReferenceModel:
    def test_is_named_by_its_configuration(self):
        target = resolve("gpt:kvr_4,depth=2")
        facts = read(target.model)
        assert (facts.width, facts.depth, facts.repetitions) == (768, 2, 3)
        assert next(target.model.parameters()).is_meta

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("gpt:kvr_5", "Did you mean 'kvr_"),
            ("gpt:kvr_4,widht=3", "Did you mean 'width'"),
            ("gpt:kvr_4,n_kv_heads=5", "divisor"),
        ],
    )
    def test_a_mistake_is_named(self, name, message):
        with pytest.raises(MupscaleError, match=message):
            resolve(name)
