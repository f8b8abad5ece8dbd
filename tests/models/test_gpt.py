"""The GPT computes what other libraries compute, and rejects invalid shapes."""

import dataclasses
import subprocess
import sys

import pytest
import torch
import transformers
from torch import nn

from mupscale.errors import DimensionError, MupscaleError, OptionError, UnknownNameError
from mupscale.models import GPT, GPTConfig
from tests.planning.models import Exactly

SMALL = {"width": 32, "depth": 2, "n_heads": 4, "vocabulary": 61, "context": 16}
OPTIONS = {
    "plain": {},
    "shared heads": {"n_kv_heads": 2},
    "one key/value head, wider heads": {"n_kv_heads": 1, "head_dim": 12},
    "rope": {"positions": "rope"},
    "rms": {"norm": "rms"},
    "swiglu": {"feed_forward": "swiglu", "d_ff": 88},
    "qk-norm": {"qk_norm": True},
    "tied": {"tied": True},
    "1/d": {"attention_scale": "1/d"},
    "modern": {
        "n_kv_heads": 2,
        "positions": "rope",
        "norm": "rms",
        "feed_forward": "swiglu",
        "d_ff": 88,
        "qk_norm": True,
        "tied": True,
    },
}


def gpt(**changes) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(**(SMALL | changes))).double()


def tokens(batch: int = 3, length: int = 16) -> torch.Tensor:
    return torch.randint(61, (batch, length), generator=torch.Generator().manual_seed(1))


def with_weights_of(ours: GPT, other: nn.Module, names: dict[str, str]) -> nn.Module:
    """The other model with our weights; every parameter of it must be given one."""
    own = ours.state_dict()
    renamed = {}
    for name, tensor in own.items():
        for old, new in names.items():
            name = name.replace(old, new)
        renamed[name] = tensor
    for name in other.state_dict():
        if name.endswith("c_attn.weight"):
            parts = [
                renamed.pop(name.replace("c_attn", f"attention.{part}_proj")) for part in "qkv"
            ]
            renamed[name] = torch.cat(parts).T
        elif name.endswith(("c_proj.weight", "c_fc.weight")):
            renamed[name] = renamed[name].T
        elif name.endswith("bias"):
            renamed[name] = torch.zeros_like(other.state_dict()[name])
    other.load_state_dict(renamed)
    return other.double().eval()


LLAMA_NAMES = {
    "tokens": "model.embed_tokens",
    "blocks": "model.layers",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention": "self_attn",
    "final_norm": "model.norm",
    "readout": "lm_head",
    "post_self_attn_layernorm": "post_attention_layernorm",
}
GPT2_NAMES = {
    "tokens": "transformer.wte",
    "positions": "transformer.wpe",
    "blocks": "transformer.h",
    "attention_norm": "ln_1",
    "mlp_norm": "ln_2",
    "attention.o_proj": "attn.c_proj",
    "attention": "attn.attention",
    "up_proj": "c_fc",
    "down_proj": "c_proj",
    "final_norm": "transformer.ln_f",
    "readout": "lm_head",
}
LLAMA = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "intermediate_size": 88,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "attn_implementation": "eager",
    "tie_word_embeddings": False,
}
LIKE_LLAMA = {
    "n_kv_heads": 2,
    "positions": "rope",
    "norm": "rms",
    "feed_forward": "swiglu",
    "d_ff": 88,
}


class TestAgainstTransformers:
    @pytest.mark.parametrize("tied", [False, True])
    def test_gpt2(self, tied):
        config = transformers.GPT2Config(
            n_embd=32,
            n_layer=2,
            n_head=4,
            vocab_size=61,
            n_positions=16,
            activation_function="gelu",
            tie_word_embeddings=tied,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="eager",
        )
        ours = gpt(tied=tied)
        theirs = with_weights_of(ours, transformers.GPT2LMHeadModel(config), GPT2_NAMES)
        with Exactly():
            logits = theirs(tokens()).logits
        torch.testing.assert_close(ours(tokens()), logits, rtol=0, atol=1e-14)

    @pytest.mark.parametrize(
        ("kind", "theirs", "ours"),
        [
            ("Llama", {}, {}),
            (
                "Llama",
                {"tie_word_embeddings": True, "num_key_value_heads": 1},
                {"tied": True, "n_kv_heads": 1},
            ),
            ("Qwen3", {"head_dim": 12}, {"head_dim": 12, "qk_norm": True}),
            (
                "Granite",
                {
                    "embedding_multiplier": 3.0,
                    "residual_multiplier": 0.5,
                    "attention_multiplier": 0.6 / 8,
                    "logits_scaling": 4.0,
                },
                {
                    "embedding_multiplier": 3.0,
                    "residual_multiplier": 0.5,
                    "attention_multiplier": 0.6,
                    "attention_scale": "1/d",
                    "logit_scale": 0.25,
                },
            ),
        ],
    )
    def test_modern_models(self, kind, theirs, ours):
        config = getattr(transformers, f"{kind}Config")(**(LLAMA | theirs))
        mine = gpt(**(LIKE_LLAMA | ours))
        with torch.no_grad():
            for name, parameter in mine.named_parameters():
                parameter.mul_(10) if "norm" not in name else parameter.normal_(1, 0.1)
        other = with_weights_of(
            mine, getattr(transformers, f"{kind}ForCausalLM")(config), LLAMA_NAMES
        )
        with Exactly():
            logits = other(tokens()).logits
        assert logits.std() > 0.1
        # RoPE's angles are float32 in both.
        torch.testing.assert_close(mine(tokens()), logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", OPTIONS)
class TestEveryOption:
    def test_the_loss_is_the_mean_cross_entropy_of_the_logits(self, name):
        model = gpt(**OPTIONS[name])
        targets = tokens().roll(-1, 1)
        logits = model(tokens())
        assert logits.shape == (3, 16, 61)
        expected = -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()
        torch.testing.assert_close(model(tokens(), targets), expected, rtol=0, atol=1e-14)

    def test_no_token_sees_the_future(self, name):
        model = gpt(**OPTIONS[name])
        changed = tokens().clone()
        changed[:, 9:] = (changed[:, 9:] + 1) % 61
        difference = (model(tokens()) - model(changed)).abs().amax((0, 2))
        assert difference[:9].max() == 0
        assert difference[9:].min() > 0

    def test_order_matters(self, name):
        model = gpt(**OPTIONS[name])
        swapped = tokens()[:, [1, 0, *range(2, 16)]]
        assert (model(tokens())[:, -1] - model(swapped)[:, -1]).abs().max() > 1e-9

    def test_every_parameter_gets_a_gradient(self, name):
        model = gpt(**OPTIONS[name])
        model(tokens(), tokens().roll(-1, 1)).backward()
        assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())

    def test_off_the_meta_device_it_is_the_same_model(self, name):
        """A tied readout stays tied, and nothing that is computed at the start is lost."""
        model = gpt(**OPTIONS[name])
        with torch.device("meta"):
            other = GPT(model.config)
        other.to_empty(device="cpu").double().load_state_dict(model.state_dict())
        assert (other.readout.weight is other.tokens.weight) == model.config.tied
        assert torch.equal(other(tokens()), model(tokens()))


def test_sharing_heads_is_repeating_them():
    """A model with shared heads is one without whose key and value heads are copies, each beside
    its like.
    """
    shared, whole = gpt(n_kv_heads=2), gpt()
    weights = shared.state_dict()
    for name in weights:
        if "k_proj" in name or "v_proj" in name:
            weights[name] = weights[name].view(2, 8, 32).repeat_interleave(2, 0).reshape(32, 32)
    whole.load_state_dict(weights)
    torch.testing.assert_close(shared(tokens()), whole(tokens()), rtol=0, atol=1e-15)


def test_multipliers_multiply_what_they_say():
    plain = gpt()
    weights = plain.state_dict()

    def logits(changes, **config):
        model = gpt(**config)
        changed = {
            name: tensor * c
            for key, c in changes.items()
            for name, tensor in weights.items()
            if key in name
        }
        model.load_state_dict(weights | changed)
        return model(tokens())

    for changes, config in [
        ({"tokens": 3.0}, {"embedding_multiplier": 3.0}),
        ({"o_proj": 0.3, "down_proj": 0.3}, {"residual_multiplier": 0.3}),
        ({"readout": 0.2}, {"logit_scale": 0.2}),
        ({"q_proj": 7.0}, {"attention_multiplier": 7.0}),
        ({"q_proj": 8**-0.5}, {"attention_scale": "1/d"}),
    ]:
        torch.testing.assert_close(logits(changes), logits({}, **config), rtol=0, atol=1e-14)
        assert not torch.equal(logits({}), logits({}, **config))


def test_targets_of_minus_100_do_not_count():
    model, targets = gpt(), tokens().roll(-1, 1)
    masked = targets.clone()
    masked[:, 5:] = -100
    torch.testing.assert_close(model(tokens(), masked), model(tokens()[:, :5], targets[:, :5]))


def test_it_learns():
    torch.manual_seed(0)
    model = GPT(GPTConfig(**SMALL))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = model(tokens()[:, :-1], tokens()[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5


def test_initialization_is_plain():
    torch.manual_seed(0)
    model = GPT(GPTConfig(width=128, depth=2, n_heads=4, vocabulary=300, context=64, qk_norm=True))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter))
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05)
            assert abs(parameter.mean().item()) < 1e-3


def test_as_many_norms_as_the_paper_and_no_biases():
    names = [name for name, _ in gpt().named_parameters()]
    assert sum("norm" in name for name in names) == 2 * 2 + 1
    assert not any("bias" in name for name in names)


@pytest.mark.parametrize("name", OPTIONS)
def test_counts_of_parameters(name):
    """Against a closed form: what each block holds, and the tables outside of it."""
    model = gpt(**OPTIONS[name])
    config = model.config
    inner = config.n_heads * config.head_size
    attention = (
        2 * 32 * inner * (1 + 1 / config.repetitions) + 2 * config.head_size * config.qk_norm
    )
    feed_forward = 32 * config.hidden * (3 if config.feed_forward == "swiglu" else 2)
    non_embedding = 2 * (attention + feed_forward + 2 * 32) + 32 + 61 * 32
    tables = 61 * 32 * (not config.tied) + 16 * 32 * (config.positions == "learned")
    assert model.parameter_counts() == (non_embedding + tables, non_embedding)


def test_a_large_model_is_built_at_once_on_the_meta_device():
    """In a process of its own: drawing on the meta device is slow the first time."""
    code = """
import time, torch
from mupscale.models import GPT, GPTConfig
config = GPTConfig(
    width=8192, depth=80, n_heads=64, n_kv_heads=8, feed_forward="swiglu", positions="rope"
)
start = time.process_time()
with torch.device("meta"):
    GPT(config)
print(time.process_time() - start)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < 0.7


def test_bfloat16_autocast_keeps_the_loss():
    torch.manual_seed(0)
    for options in OPTIONS.values():
        model = GPT(GPTConfig(**(SMALL | options)))
        exact = model(tokens(), tokens())
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(tokens(), tokens())
        assert rough.dtype == torch.float32
        assert rough.item() == pytest.approx(exact.item(), rel=1e-2)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"n_heads": 12, "width": 768, "n_kv_heads": 5}, DimensionError,
             r"n_heads=12 is not a multiple of n_kv_heads=5. Choose a divisor of 12: 1, 2, 3, 4, 6 "
             r"or 12\."),
            ({"n_kv_heads": 8}, DimensionError, r"n_heads=4 is not a multiple of n_kv_heads=8\. "
                                                r"Choose a divisor of 4"),
            ({"n_heads": 5}, DimensionError, r"width=32 is not a multiple of n_heads=5.*Give "
                                             r"head_dim, or .* 1, 2, 4"),
            ({"width": 0}, DimensionError, r"width=0 is not a positive whole number"),
            ({"depth": 2.0}, DimensionError, r"depth=2\.0 is not a positive whole number"),
            ({"context": True}, DimensionError, r"context=True is not"),
            ({"d_ff": -1}, DimensionError, r"d_ff=-1 is not"),
            ({"n_kv_heads": 0}, DimensionError, r"n_kv_heads=0 is not"),
            ({"positions": "rope", "head_dim": 7}, DimensionError, r"head_dim=7 is odd"),
            ({"positions": "rop"}, UnknownNameError, r"unknown positions 'rop'\. Did you mean "
                                                     r"'rope'\?"),
            ({"norm": "layernorm"}, UnknownNameError, r"Did you mean 'layer'\?"),
            ({"feed_forward": "relu"}, UnknownNameError, r"Known: gelu, swiglu"),
            ({"attention_scale": "1/sqrt(d)"}, UnknownNameError, r"Did you mean '1/sqrt_d'\?"),
            ({"logit_scale": 0.0}, OptionError, r"logit_scale=0\.0 is not a number above 0"),
            ({"residual_multiplier": float("nan")}, OptionError, r"residual_multiplier=nan"),
            ({"embedding_multiplier": float("inf")}, OptionError, r"embedding_multiplier=inf"),
            ({"attention_multiplier": "2"}, OptionError, r"attention_multiplier='2'"),
        ],
    )  # fmt: skip
    def test_a_shape_that_cannot_be(self, changes, error, message):
        with pytest.raises(error, match=message):
            GPTConfig(**(SMALL | changes))

    def test_a_sequence_beyond_the_learned_positions(self):
        with pytest.raises(MupscaleError, match=r"17 tokens is longer than context=16"):
            gpt()(tokens(length=17))
        assert gpt(positions="rope")(tokens(length=17)).shape == (3, 17, 61)


def test_what_is_not_said_follows_the_rest_also_after_replace():
    config = GPTConfig(**SMALL)
    wide = dataclasses.replace(config, width=64, n_heads=8)
    assert (wide.kv_heads, wide.head_size, wide.hidden, wide.repetitions) == (8, 8, 256, 1)
    assert dataclasses.replace(config, n_kv_heads=1).repetitions == 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.width = 64  # pyright: ignore[reportAttributeAccessIssue]
