"""Every decoder-only attention model that transformers has: read right, or refused. Never a wrong
answer.
"""

import re
import warnings

import pytest
import transformers

from drills.architecture_coverage import ARCHITECTURES, EXCLUDED, REFUSED, UNBUILT, build
from mupscale.errors import UnreadableModelError
from mupscale.reading import BRANCH_OUTPUTS, read

COUNTED = [kind for kind in ARCHITECTURES if kind not in EXCLUDED and kind not in UNBUILT]
REQUIRED = {
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt2",
    "gpt_neox",
    "falcon",
    "gpt_bigcode",
    "olmo2",
    "starcoder2",
    "cohere",
    "mixtral",
    "qwen3_moe",
    "deepseek_v3",
}


@pytest.fixture(autouse=True)
def quiet():
    """Default configs of models not our own warn about all sorts of things."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()
        yield
        transformers.logging.set_verbosity_warning()


def test_more_than_nine_in_ten_are_complete_and_those_that_everyone_knows():
    assert len([kind for kind in COUNTED if kind not in REFUSED]) / len(COUNTED) > 0.9
    assert set(COUNTED) - set(REFUSED) >= REQUIRED
    assert set(EXCLUDED) | set(REFUSED) | set(UNBUILT) <= set(ARCHITECTURES)


@pytest.mark.parametrize("kind", [kind for kind in COUNTED if kind not in REFUSED])
def test_a_complete_one_is_read_right(kind):
    model = build(kind)
    facts = read(model)
    config = model.config.get_text_config(decoder=True)
    assert set(facts.parameters) == {name for name, _ in model.named_parameters()}
    check_readout(model, facts)
    check_sharing(config, facts)
    check_layers(config, facts)


def check_readout(model, facts):
    output = model.get_output_embeddings()
    readouts = [fact for fact in facts.parameters.values() if fact.role == "readout"]
    tied = output is not None and output.weight is model.get_input_embeddings().weight
    if output is None or tied:
        assert facts.tied_readout == tied
        return
    names = {
        name for name, p in model.named_parameters(remove_duplicate=False) if p is output.weight
    }
    assert len(readouts) == 1
    assert readouts[0].name in names
    assert readouts[0].fan_out == output.weight.shape[0]


def check_sharing(config, facts):
    """Repetitions as the config has them, by its own attributes."""
    heads = getattr(config, "num_attention_heads", None)
    shared = getattr(config, "num_key_value_heads", None) or heads
    if getattr(config, "multi_query", False) and not getattr(
        config, "new_decoder_architecture", False
    ):
        shared = 1
    if getattr(config, "new_decoder_architecture", False):
        shared = config.num_kv_heads
    attention = [f for f in facts.parameters.values() if f.role in ("key", "value", "fused_qkv")]
    if heads and attention:
        assert {fact.repetitions for fact in attention} == {heads // shared}


def check_layers(config, facts):
    """Keys and values, and the end of a branch, in each of as many layers as the config says."""
    where = {"kv": set(), "ends": set()}
    for fact in facts.parameters.values():
        layer = re.search(r"\.(\d+)\.", fact.name)
        if layer and fact.role in ("key", "value", "fused_qkv", "low_rank_up"):
            where["kv"].add(
                (layer[1], "fused" if fact.role in ("fused_qkv", "low_rank_up") else fact.role)
            )
        if layer and fact.role in BRANCH_OUTPUTS:
            where["ends"].add(layer[1])
    # Longcat counts each of its layers twice: there are two attentions in one.
    count = config.num_hidden_layers // (2 if config.model_type == "longcat_flash" else 1)
    layers = {str(k) for k in range(count)}
    assert where["ends"] == layers
    for layer in layers:
        assert {(layer, "key"), (layer, "value")} <= where["kv"] or (layer, "fused") in where["kv"]


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_one_says_what_is_not_understood(kind):
    model = build(kind)
    with pytest.raises(
        UnreadableModelError,
        match=r"parameters are not understood|config sets \w+=|outputs|contradicts",
    ):
        read(model)


@pytest.mark.parametrize(
    "kind", ["mamba", "mamba2", "falcon_mamba", "rwkv", "recurrent_gemma", "jamba", "xlstm"]
)
def test_state_space_and_recurrent_models_are_refused(kind):
    with pytest.raises(UnreadableModelError):
        read(build(kind))
