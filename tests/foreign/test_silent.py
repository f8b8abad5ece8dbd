"""Models on which a plan was wrong without a word. Each test says in its comment which number stood
there before.

The models are written for the test or come from other projects; what is compared are numbers of the
plan, with formulas that are not mupscale's, and what the model computes once its weights are set.
"""

import math

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

import mupscale as mu
from mupscale.errors import MupscaleError, UnreadableModelError
from tests.foreign.copies import attend, litgpt
from tests.foreign.formulas import (
    embedding,
    ends_branch,
    fixed_vector,
    hidden,
    readout,
    shared,
    vector,
)
from tests.foreign.judging import STD, differences, expected_for, gain_of, numbers_of

# transformers and torch warn about themselves; x-transformers about short rotary dimensions
pytestmark = pytest.mark.filterwarnings("ignore")


WORDS = 61
"""Larger than every width, so that a readout is not recognized by its number of outputs alone."""


def wrong_numbers(plan: mu.Plan, model: nn.Module, table: dict) -> list[str]:
    found = numbers_of(plan, model)
    return differences(found, expected_for(list(found), table))


def planned_with_fewest_roles(
    model: nn.Module, base: nn.Module, roles: dict[str, str], **settings
) -> mu.Plan:
    """Without roles where that works, else with those that make the parameters known."""
    try:
        return mu.plan(model, base=base, **settings)
    except UnreadableModelError:
        return mu.plan(model, base=base, roles=roles, **settings)


def made(plan: mu.Plan, model: nn.Module, seed: int = 0) -> nn.Module:
    plan.initialize_(model, std=STD, seed=seed)
    return model


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor.detach().clone()
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }


# A decoder whose every name is in the vocabulary, so that one thing at a time can be unusual.


class Root(nn.Module):
    """An RMS norm without `norm` in its name, and without a pattern in its source that would give
    its offset away.
    """

    def __init__(self, size: int, offset: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("offset", torch.tensor(offset))
        self.scale = nn.Parameter(torch.full((size,), 1.0 - offset))

    def forward(self, x: Tensor) -> Tensor:
        return (
            x
            / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
            * torch.add(self.scale, self.offset)
        )


class OffsetRMSNorm(Root):
    """The same with a name that says what it is."""

    def __init__(self, size: int) -> None:
        super().__init__(size, offset=1.0)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(width, heads * 16, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * 16, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * 16, bias=False)
        self.o_proj = nn.Linear(heads * 16, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (m(x).unflatten(-1, (-1, 16)) for m in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(attend(q, k, v))


class MLP(nn.Module):
    def __init__(self, width: int, bias: bool = False) -> None:
        super().__init__()
        self.up_proj = nn.Linear(width, 2 * width, bias=bias)
        self.down_proj = nn.Linear(2 * width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(gelu(self.up_proj(x)))


class Block(nn.Module):
    def __init__(
        self, width: int, heads: int, kv_heads: int, norm: type[nn.Module], after: type[nn.Module]
    ) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = norm(width), norm(width)
        self.attn, self.mlp = Attention(width, heads, kv_heads), MLP(width)
        self.after_1, self.after_2 = after(width), after(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.after_1(self.attn(self.norm_1(x)))
        return x + self.after_2(self.mlp(self.norm_2(x)))


class Nothing(nn.Identity):
    def __init__(self, _: int) -> None:
        super().__init__()


class Decoder(nn.Module):
    """A pre-norm decoder. `r` is how many query heads share a key/value head."""

    def __init__(
        self,
        width: int,
        depth: int = 2,
        r: int = 1,
        *,
        norm: type[nn.Module] = nn.RMSNorm,
        after: type[nn.Module] = Nothing,
        times_root: bool = False,
        functional_tie: bool = False,
    ) -> None:
        super().__init__()
        heads = width // 16
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(
            Block(width, heads, heads // r, norm, after) for _ in range(depth)
        )
        self.norm = norm(width)
        self.lm_head = None if functional_tie else nn.Linear(width, WORDS, bias=False)
        self.factor = math.sqrt(width) if times_root else 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) * self.factor
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return x @ self.embed.weight.T if self.lm_head is None else self.lm_head(x)


TOKENS = torch.arange(24).reshape(2, 12) % WORDS

PLAIN = {
    "embed.weight": embedding(4),
    "layers.*.norm_?.*": vector(4),
    "layers.*.attn.[qkv]_proj.weight": hidden(4),
    "layers.*.attn.o_proj.weight": hidden(4),
    "layers.*.mlp.*.weight": hidden(4),
    "norm.*": vector(4),
    "lm_head.weight": readout(4),
}
"""Four times the width at the same depth."""


# 1. Gains


@pytest.mark.parametrize("offset", [False, True])
def test_gains_of_litgpt_act_as_one(offset):
    # `1 + self.weight` stands in the source of every norm: gains were set to 0, and all logits were
    # 0.
    model, base = litgpt(128, unit_offset=offset), litgpt(64, unit_offset=offset)
    made(planned_with_fewest_roles(model, base, {"*.mlp.fc_?.weight": "mlp_in"}), model)
    norms = [
        model.transformer["ln_f"],
        *(norm for block in model.transformer["h"] for norm in (block.norm_1, block.norm_2)),
    ]
    assert [gain_of(norm, 128) for norm in norms] == pytest.approx([1.0] * 5, rel=1e-5)
    assert model.float()(TOKENS).std() > 0


@pytest.mark.parametrize("rms", [False, True])
def test_gains_of_x_transformers_act_as_one(rms):
    # They are stored as 0 and act as 1 + 0: they were set to 1, and acted as 2.
    model, base = x_decoder(128, use_rmsnorm=rms), x_decoder(64, use_rmsnorm=rms)
    norms = [m for m in model.modules() if hasattr(m, "gamma") or hasattr(m, "g")]
    assert len(norms) == 5
    made(planned_with_fewest_roles(model, base, X_ROLES), model)
    assert [gain_of(norm, 128) for norm in norms] == pytest.approx([1.0] * 5, rel=1e-5)


@pytest.mark.parametrize("norm", [Root, OffsetRMSNorm])
def test_a_gain_is_what_it_does_and_not_what_its_source_looks_like(norm):
    # OffsetRMSNorm: gains were set to 1, and acted as 2. Root: not understood.
    model, base = Decoder(64, norm=norm), Decoder(16, norm=norm)
    plan = mu.plan(model, base=base)
    assert wrong_numbers(plan, model, PLAIN) == []
    made(plan, model)
    assert gain_of(model.norm, 64) == pytest.approx(1, rel=1e-5)
    assert gain_of(model.layers[0].norm_1, 64) == pytest.approx(1, rel=1e-5)


def x_decoder(width, depth=2, **settings):
    from x_transformers import Decoder as Layers
    from x_transformers import TransformerWrapper

    layers = Layers(dim=width, depth=depth, heads=width // 32, attn_dim_head=32, **settings)
    return TransformerWrapper(num_tokens=WORDS, max_seq_len=32, attn_layers=layers)


X_ROLES = {
    # what these names need today; the fewer the better
    "*.to_q.weight": "query",
    "*.to_k.weight": "key",
    "*.to_v.weight": "value",
    "*.to_out.weight": "attention_output",
    "*.ff.0.0.weight": "mlp_in",
    "*.ff.2.weight": "mlp_out",
}


# 3. Convolutions


class ResidualConv(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.conv_1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.grouped = nn.Conv2d(channels, channels, 3, padding=1, groups=4, bias=False)
        self.conv_2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(relu(self.conv_1(relu(self.norm_1(x)))))
        return x + self.conv_2(relu(self.norm_2(self.grouped(y))))


class ResNet(nn.Module):
    def __init__(self, channels: int, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(ResidualConv(channels) for _ in range(depth))
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(relu(self.norm(x)).mean((2, 3)))


RESNET_ROLES = {
    "stem.weight": "embedding",
    "blocks.*.conv_1.weight": "hidden",
    "blocks.*.depthwise.weight": "hidden",
    "blocks.*.grouped.weight": "hidden",
    "blocks.*.conv_2.weight": "branch_output",
    "head.weight": "readout",
}


@pytest.mark.parametrize("L", [1, 2])
def test_kernels_have_the_fans_of_their_channels(L):
    # With the roles that it asked for, a ResNet 16 → 64 got lr 1, std 1 and ε 1 on every kernel,
    # and a width of 3.
    model, base = ResNet(64, 2 * L), ResNet(16, 2)
    plan = planned_with_fewest_roles(model, base, RESNET_ROLES, inputs=(torch.randn(2, 3, 8, 8),))
    table = {
        "stem.weight": embedding(4),
        "blocks.*.norm_?.*": vector(4, L),
        "blocks.*.conv_1.weight": hidden(4, L=L),
        # one input channel at any width
        "blocks.*.depthwise.weight": embedding(4, L),
        "blocks.*.grouped.weight": hidden(4, L=L),
        "blocks.*.conv_2.weight": ends_branch(4, L=L),
        "norm.*": vector(4),
        "head.weight": readout(4),
        "head.bias": fixed_vector(),
    }
    assert wrong_numbers(plan, model, table) == []
    made(plan, model)
    assert float(model.blocks[0].conv_1.weight.std()) == pytest.approx(STD / 2, rel=0.05)


def test_a_patch_embedding_is_no_width():
    # Kernel, class token and positions got ε 1 instead of 1/4: their fans were the last two axes.
    model, base = vit(64), vit(16)
    plan = planned_with_fewest_roles(
        model, base, VIT_ROLES, inputs={"pixel_values": torch.randn(1, 3, 8, 8)}
    )
    assert (plan.target["width"], plan.base["width"]) == (64, 16)
    assert wrong_numbers(plan, model, VIT) == []


def vit(width, depth=2):
    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // 8,
        intermediate_size=2 * width,
        image_size=8,
        patch_size=4,
        num_labels=10,
    )
    return transformers.ViTForImageClassification(config)


VIT_ROLES = {
    "vit.embeddings.patch_embeddings.projection.weight": "embedding",
    "vit.embeddings.cls_token": "position",
    "vit.embeddings.position_embeddings": "position",
    "classifier.weight": "readout",
}
VIT = {
    "vit.embeddings.cls_token": embedding(4),
    "vit.embeddings.position_embeddings": embedding(4),
    "vit.embeddings.patch_embeddings.projection.weight": embedding(4),
    "vit.embeddings.patch_embeddings.projection.bias": vector(4),
    "*.layernorm_*": vector(4),
    "vit.layers.*.bias": vector(4),
    "vit.layers.*.weight": hidden(4),
    "vit.layernorm.*": vector(4),
    "classifier.weight": readout(4),
    "classifier.bias": fixed_vector(),
}


# 4. Frozen and constant tensors


def whisper(width, depth=2):
    config = transformers.WhisperConfig(
        d_model=width,
        encoder_layers=depth,
        decoder_layers=depth,
        encoder_attention_heads=width // 16,
        decoder_attention_heads=width // 16,
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
        vocab_size=WORDS,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return transformers.WhisperForConditionalGeneration(config)


WHISPER_ROLES = {"model.encoder.conv?.weight": "hidden"}
HEARD = {"input_features": torch.randn(1, 8, 32), "decoder_input_ids": TOKENS[:1]}


def test_whisper_keeps_its_sinusoids_and_scales_its_second_convolution():
    # With roles, the frozen sinusoids were drawn anew with std 0.02, and conv2 got lr 1, std 1
    # instead of 0.25, 0.5.
    model, base = whisper(64), whisper(16)
    plan = planned_with_fewest_roles(model, base, WHISPER_ROLES, inputs=HEARD)
    found = numbers_of(plan, model)
    assert "model.encoder.embed_positions.weight" not in found
    wanted = {"model.encoder.conv1.weight": embedding(4), "model.encoder.conv2.weight": hidden(4)}
    assert differences({name: found[name] for name in wanted}, wanted) == []
    before = snapshot(model)
    made(plan, model)
    assert torch.equal(
        model.model.encoder.embed_positions.weight, before["model.encoder.embed_positions.weight"]
    )
    assert not torch.equal(
        model.model.decoder.embed_positions.weight, before["model.decoder.embed_positions.weight"]
    )


def test_lora_keeps_pretrained_weights_and_its_zeros():
    # With roles, every frozen matrix and every lora_B was drawn anew.
    model, base = lora(64), lora(32)
    plan = planned_with_fewest_roles(model, base, LORA_ROLES)
    before = snapshot(model)
    made(plan, model)
    for name, tensor in model.named_parameters():
        if "lora_A" in name:
            assert not torch.equal(tensor, before[name]), name
        else:
            assert torch.equal(tensor, before[name]), name
    assert all("lora_" in name for name in numbers_of(plan, model))


def test_low_rank_pairs_get_the_rates_of_a_wide_and_of_a_narrow_fan_in():
    # Hayou et al. 2024 (LoRA+): rates of 1/n for A, which reads features, and 1 for B, which reads
    # a fixed rank.
    model, base = lora(64), lora(16)
    found = numbers_of(planned_with_fewest_roles(model, base, LORA_ROLES), model)
    assert {name: (one.lr, one.decay) for name, one in found.items()} == {
        name: (1 / 4, 4) if "lora_A" in name else (1, 1) for name in found
    }


LORA_ROLES = {
    "*.q_proj.base_layer.weight": "query",
    "*.v_proj.base_layer.weight": "value",
    "*.lora_A.*": "low_rank_down",
    "*.lora_B.*": "low_rank_up",
}


def lora(width):
    import peft

    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=width // 8,
        num_key_value_heads=width // 8,
        vocab_size=WORDS,
    )
    chosen = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), chosen)


class Modulated(nn.Module):
    """A block of a diffusion transformer: shift, scale and gate come from the condition, through a
    matrix of zeros.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.adaLN_modulation = nn.Linear(width, 3 * width)
        nn.init.zeros_(self.adaLN_modulation.weight)
        nn.init.zeros_(self.adaLN_modulation.bias)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = MLP(width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate = self.adaLN_modulation(silu(condition)).chunk(3, dim=-1)
        return x + gate * self.mlp(self.norm(x) * (1 + scale) + shift)


class Diffusion(nn.Module):
    def __init__(self, width: int, depth: int = 2) -> None:
        super().__init__()
        self.classes = nn.Embedding(10, width)
        self.patches = nn.Conv2d(3, width, 2, stride=2)
        sines = torch.sin(torch.arange(16)[:, None] / 10 ** torch.linspace(0, 2, width))
        self.pos_embed = nn.Parameter(sines[None], requires_grad=False)
        self.blocks = nn.ModuleList(Modulated(width) for _ in range(depth))
        self.norm_out = nn.LayerNorm(width)
        self.proj_out = nn.Linear(width, 12)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.pos_embed
        condition = self.classes(labels)[:, None]
        for block in self.blocks:
            x = block(x, condition)
        return self.proj_out(self.norm_out(x))


DIFFUSION_ROLES = {
    "blocks.*.adaLN_modulation.weight": "hidden",
    "patches.weight": "embedding",
    "pos_embed": "position",
    "classes.weight": "embedding",
    "blocks.*.up_proj.weight": "mlp_in",
    "blocks.*.down_proj.weight": "mlp_out",
    "proj_out.weight": "readout",
}
IMAGES = (torch.randn(2, 3, 8, 8), torch.tensor([1, 2]))


def test_zeros_of_a_diffusion_transformer_stay_zero_and_learn_as_the_matrices_that_they_are():
    # With the roles that it asked for, adaLN's zeros became N(0, 0.01²) and the frozen sinusoids
    # N(0, 0.02²); the width was read off the patches' kernel as 3, and every ε but one was 1
    # instead of 1/4.
    model, base = Diffusion(64), Diffusion(16)
    plan = planned_with_fewest_roles(model, base, DIFFUSION_ROLES, inputs=IMAGES)
    found = numbers_of(plan, model)
    assert "pos_embed" not in found
    wanted = {
        "blocks.0.adaLN_modulation.weight": hidden(4),
        "blocks.0.adaLN_modulation.bias": vector(4),
        "classes.weight": embedding(4),
        "patches.weight": embedding(4),
        "proj_out.weight": readout(4),
    }
    assert differences({name: found[name] for name in wanted}, wanted) == []
    before = snapshot(model)
    made(plan, model)
    assert torch.equal(model.pos_embed, before["pos_embed"])
    assert not model.blocks[0].adaLN_modulation.weight.any()
    assert model(*IMAGES).std() > 0


def test_buffers_and_frozen_weights_stay_as_they_are():
    # A frozen embedding was drawn anew.
    model, base = Decoder(64), Decoder(16)
    model.embed.weight.requires_grad_(False)
    base.embed.weight.requires_grad_(False)
    before = snapshot(model)
    plan = mu.plan(model, base=base)
    made(plan, model)
    assert torch.equal(model.embed.weight, before["embed.weight"])
    assert not torch.equal(model.lm_head.weight, before["lm_head.weight"])


# 5. r without a config


@pytest.mark.parametrize("r", [1, 2, 4])
def test_plain_dimensions_of_a_model_without_config_keep_its_own_r(r):
    # At exactly the base's size, keys and values of r = 4 got 1.5: the base was taken to have r =
    # 1.
    model = Decoder(128, 2, r)
    same = mu.plan(model, base={"width": 128, "depth": 2})
    assert {(one.lr, one.decay, one.eps) for one in numbers_of(same, model).values()} == {
        (1, 1, 1),
        (1, 0, 1),
    }
    wider = mu.plan(model, base={"width": 64, "depth": 2})
    found = numbers_of(wider, model)
    keys = {name: one for name, one in found.items() if "k_proj" in name or "v_proj" in name}
    assert differences(keys, dict.fromkeys(keys, hidden(2))) == []
    assert wider.target["r"] == wider.base["r"] == r


def test_another_r_in_the_base_is_still_what_is_asked_for():
    model = Decoder(128, 2, 4)
    plan = mu.plan(model, base={"width": 64, "depth": 2, "r": 1})
    found = numbers_of(plan, model)
    keys = {name: one for name, one in found.items() if "k_proj" in name or "v_proj" in name}
    assert differences(keys, dict.fromkeys(keys, shared(2, 4, 1))) == []


# 6. Constants in forward code


def test_an_embedding_times_the_root_of_the_width_is_scaled_back():
    # It got std 1 and lr 1, so that the stream grew as √n.
    model, base = Decoder(64, times_root=True), Decoder(16, times_root=True)
    plan = mu.plan(model, base=base)
    assert wrong_numbers(plan, model, PLAIN | {"embed.weight": embedding(4).times(1 / 2)}) == []
    sizes = [embedded(plan, model), embedded(mu.plan(base, base=base), base)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


def embedded(plan, model):
    """The size of what enters the first block."""
    made(plan, model)
    seen = []
    handle = model.layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(TOKENS)
    handle.remove()
    return float(seen[0].detach().std())


def test_the_output_scale_of_t5_counts_as_half_of_the_readouts_factor():
    # With roles, 1/4 went into the decoder's final norm on top of T5's own d^-0.5: logits shrank by
    # 8 instead of 4.
    model, base = t5(64), t5(16)
    plan = planned_with_fewest_roles(model, base, T5_ROLES, inputs=TRANSLATED)
    found = numbers_of(plan, model)
    wanted = {
        "shared.weight": embedding(4),
        "decoder.final_layer_norm.weight": vector(4).times(1 / 2),
    }
    assert differences({name: found[name] for name in wanted}, wanted) == []
    made(plan, model)
    assert gain_of(model.decoder.final_layer_norm, 64) == pytest.approx(1 / 2, rel=1e-5)
    assert gain_of(model.encoder.final_layer_norm, 64) == pytest.approx(1, rel=1e-5)


def t5(width, depth=2):
    config = transformers.T5Config(
        d_model=width,
        d_kv=16,
        d_ff=2 * width,
        num_layers=depth,
        num_heads=width // 16,
        vocab_size=WORDS,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


T5_ROLES = {
    "*Attention.q.weight": "query",
    "*Attention.k.weight": "key",
    "*Attention.v.weight": "value",
    "*Attention.o.weight": "attention_output",
    "*.relative_attention_bias.weight": "position",
}
TRANSLATED = {"input_ids": TOKENS[:1], "decoder_input_ids": TOKENS[:1]}


class Wrapped(nn.Module):
    """As trainers wrap a model: its config is not where it was."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.net = inner

    def forward(self, tokens: Tensor) -> Tensor:
        return self.net(input_ids=tokens, use_cache=False).logits


def granite(width, scaling):
    config = transformers.GraniteConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=width // 8,
        num_key_value_heads=width // 8,
        vocab_size=WORDS,
        logits_scaling=scaling,
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        tie_word_embeddings=False,
        pad_token_id=None,
    )
    return transformers.GraniteForCausalLM(config)


def test_granite_keeps_its_constants_inside_of_a_wrapper():
    # Divided by 4 in its own forward pass, the logits of a wrapped Granite were divided by 4 once
    # more.
    model, base = granite(64, scaling=8.0), granite(16, scaling=2.0)
    plain = numbers_of(mu.plan(model, base=base), model)
    model, base = Wrapped(model), Wrapped(base)
    wrapped = numbers_of(mu.plan(model, base=base), model)
    assert (
        differences(
            {"lm_head.weight": plain["lm_head.weight"]}, {"lm_head.weight": readout(4).times(4)}
        )
        == []
    )
    assert {name.removeprefix("net."): one for name, one in wrapped.items()} == plain


# 7. A functional tie


def test_a_readout_by_the_embeddings_own_weight_is_a_tied_one():
    # It was refused with "name it readout"; doing so scaled the embedding by 1/4.
    model, base = Decoder(64, functional_tie=True), Decoder(16, functional_tie=True)
    plan = mu.plan(model, base=base)
    table = {name: one for name, one in PLAIN.items() if name != "lm_head.weight"}
    by_gain = wrong_numbers(plan, model, table | {"norm.*": vector(4).times(1 / 4)}) == []
    by_hook = wrong_numbers(plan, model, table) == [] and [hook.factor for hook in plan.hooks] == [
        1 / 4
    ]
    assert by_gain or by_hook, wrong_numbers(plan, model, table)
    made(plan, model)
    assert gain_of(model.norm, 64) == pytest.approx(1 / 4, rel=1e-5)


def test_x_transformers_tie_is_functional_too():
    """It multiplies such logits by width^-0.5 itself: half of 1/n is left to the final norm."""
    from x_transformers import Decoder as Layers
    from x_transformers import TransformerWrapper

    def build(width):
        layers = Layers(
            dim=width, depth=2, heads=width // 16, attn_dim_head=16, rotary_pos_emb=True
        )
        return TransformerWrapper(
            num_tokens=WORDS, max_seq_len=32, attn_layers=layers, tie_embedding=True
        )

    model, base = build(128), build(32)
    plan = planned_with_fewest_roles(model, base, X_ROLES)
    found = numbers_of(plan, model)
    wanted = {
        "token_emb.emb.weight": embedding(4),
        "attn_layers.final_norm.gamma": vector(4).times(1 / 2),
    }
    assert differences({name: found[name] for name in wanted}, wanted) == []
    made(plan, model)
    assert gain_of(model.attn_layers.final_norm, 128) == pytest.approx(1 / 2, rel=1e-5)


# 8. Depth


class OddBlock(nn.Module):
    """Names that nobody knows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.calm = nn.LayerNorm(width)
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.leave(gelu(self.enter(self.calm(x))))


class Odd(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.floors = nn.ModuleList(OddBlock(width) for _ in range(depth))
        self.calm = nn.LayerNorm(width)
        self.voice = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for floor in self.floors:
            x = floor(x)
        return self.voice(self.calm(x))


def odd_table(L):
    return {
        "words.weight": embedding(4),
        "floors.*.calm.*": vector(4, L),
        "floors.*.enter.weight": hidden(4, L=L),
        "floors.*.enter.bias": vector(4, L),
        "floors.*.leave.weight": ends_branch(4, L=L),
        "floors.*.leave.bias": vector(4, L).times(1 / L),
        "calm.*": vector(4),
        "voice.weight": readout(4),
        "voice.bias": fixed_vector(),
    }


def test_the_bias_of_a_branch_output_named_by_roles_carries_the_branchs_factor():
    # `leave.bias` got lr 1 instead of 1/2.
    model, base = Odd(64, 4), Odd(16, 2)
    roles = {"floors.*.enter.weight": "mlp_in", "floors.*.leave.weight": "branch_output"}
    assert wrong_numbers(mu.plan(model, base=base, roles=roles), model, odd_table(2)) == []


def test_a_branch_output_called_hidden_keeps_the_branchs_factor_or_is_refused():
    # It lost 1/L: lr 1/4 instead of 1/8.
    model, base = Odd(64, 4), Odd(16, 2)
    roles = {"floors.*.enter.weight": "hidden", "floors.*.leave.weight": "hidden"}
    try:
        plan = mu.plan(model, base=base, roles=roles)
    except MupscaleError:
        return
    assert wrong_numbers(plan, model, odd_table(2)) == []


def test_a_norm_behind_a_branch_takes_the_branchs_factor_whatever_it_is_called():
    # Called a gain, 1/L went into the matrix in front of it, where it does nothing: o_proj got lr
    # 1/8 instead of 1/4.
    model, base = Decoder(64, 4, after=Root), Decoder(16, 2, after=Root)
    plan = planned_with_fewest_roles(model, base, {"*.scale": "gain"})
    table = {
        "embed.weight": embedding(4),
        "layers.*.norm_?.*": vector(4, 2),
        "layers.*.after_?.*": vector(4, 2).times(1 / 2),
        "layers.*_proj.weight": hidden(4, L=2),
        "norm.*": vector(4),
        "lm_head.weight": readout(4),
    }
    assert wrong_numbers(plan, model, table) == []
    made(plan, model)
    assert gain_of(model.layers[3].after_2, 64) == pytest.approx(1 / 2, rel=1e-5)


def albert(width, depth):
    config = transformers.AlbertConfig(
        vocab_size=WORDS, embedding_size=width // 2, hidden_size=width, num_hidden_layers=depth,
        num_attention_heads=width // 16, intermediate_size=2 * width, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.AlbertForMaskedLM(config)


ALBERT_ROLES = {
    "*.embedding_hidden_mapping_in.weight": "hidden",
    "*.ffn.weight": "mlp_in",
    "*.ffn_output.weight": "mlp_out",
}


def test_layers_that_share_their_weights_count_as_often_as_they_run():
    # Twelve layers of one weight counted as depth 1: no factor at all where the depth doubled.
    model, base = albert(64, 12), albert(64, 6)
    plan = planned_with_fewest_roles(model, base, ALBERT_ROLES)
    found = numbers_of(plan, model)
    group = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    for name in (f"{group}.attention.dense.weight", f"{group}.ffn_output.weight"):
        assert (found[name].std, found[name].lr, found[name].decay) == pytest.approx(
            (1 / 2, 1 / 2, 2)
        ), name
    for name in (f"{group}.attention.query.weight", f"{group}.ffn.weight"):
        assert (found[name].std, found[name].lr, found[name].decay) == pytest.approx((1, 1, 1)), (
            name
        )
    assert (plan.target["depth"], plan.base["depth"]) == (12, 6)


def bert(width, depth, words=WORDS):
    config = transformers.BertConfig(
        vocab_size=words,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // 16,
        intermediate_size=2 * width,
        max_position_embeddings=32,
    )
    return transformers.BertForMaskedLM(config)


def test_a_stream_that_is_normed_after_every_addition_is_warned_of_where_the_depth_changes():
    # BERT got 1/L and not a word: the theory of 1/L is about streams that are not normed.
    model = bert(64, 4)
    same, deeper = mu.plan(model, base=bert(16, 4)), mu.plan(model, base=bert(16, 2))
    assert set(deeper.warnings) - set(same.warnings)
    llama = [Decoder(64, 4), Decoder(16, 4), Decoder(16, 2)]
    assert not set(mu.plan(llama[0], base=llama[2]).warnings) - set(
        mu.plan(llama[0], base=llama[1]).warnings
    )


def test_as_many_words_as_features_change_nothing():
    # The matrix before BERT's readout was taken for the readout where the vocabulary was as large
    # as the width.
    usual, equal = bert(64, 2), bert(64, 2, words=64)
    found = [
        numbers_of(mu.plan(model, base=bert(16, 2, words)), model)
        for model, words in ((usual, WORDS), (equal, 64))
    ]
    assert found[0] == found[1]


# 9. Fused layouts


class Interleaved(nn.Module):
    """Attention of an unknown class, whose one matrix holds for each group its queries, its key and
    its value.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, grouped: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * 16, bias=False)
        self.proj = nn.Linear(heads * 16, width, bias=False)
        self.heads, self.kv_heads, self.grouped = heads, kv_heads, grouped

    def forward(self, x: Tensor) -> Tensor:
        r = self.heads // self.kv_heads
        if self.grouped:
            parts = self.qkv(x).unflatten(-1, (self.kv_heads, r + 2, 16)).split((r, 1, 1), dim=-2)
            return self.proj(attend(*(part.flatten(2, 3) for part in parts)))
        parts = (
            self.qkv(x)
            .unflatten(-1, (-1, 16))
            .split((self.heads, self.kv_heads, self.kv_heads), dim=-2)
        )
        return self.proj(attend(*parts))

    def shared_rows(self) -> set[int]:
        """The rows that feed keys and values."""
        r, block = self.heads // self.kv_heads, torch.arange(self.qkv.out_features)
        if self.grouped:
            return set(block[(block // 16) % (r + 2) >= r].tolist())
        return set(block[block >= self.heads * 16].tolist())


class Fused(nn.Module):
    def __init__(self, width: int, r: int, grouped: bool) -> None:
        super().__init__()
        heads = width // 16
        self.config = transformers.PretrainedConfig(
            hidden_size=width,
            num_attention_heads=heads,
            num_key_value_heads=heads // r,
            head_dim=16,
        )
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList([nn.ModuleDict({"norm": nn.RMSNorm(width)}) for _ in range(2)])
        for layer in self.layers:
            layer["attn"] = Interleaved(width, heads, heads // r, grouped)
        self.norm, self.lm_head = nn.RMSNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer["attn"](layer["norm"](x))
        return self.lm_head(self.norm(x))


def effective_rows(plan: mu.Plan, name: str) -> dict[int, float]:
    """The rate of each row of a fused matrix relative to the queries', from the hooks of a plan."""
    rows = dict.fromkeys(range(plan.parameters[name].shape[0]), 1.0)
    for hook in plan.hooks:
        if hook.module == name.rpartition(".")[0]:
            for slices, factor in hook.rows:
                rows.update({row: factor for start, stop in slices for row in range(start, stop)})
    return rows


@pytest.mark.parametrize("grouped", [True, False])
def test_rows_of_keys_and_values_are_those_that_feed_them(grouped):
    # For an unknown class they were taken as one after the other: half of the factors landed on
    # queries.
    model, base = Fused(128, 4, grouped), Fused(128, 1, grouped)
    try:
        plan = mu.plan(model, base=base)
    except UnreadableModelError:
        pytest.fail("a layout that can be measured is refused")
    for k, layer in enumerate(model.layers):
        rows = effective_rows(plan, f"layers.{k}.attn.qkv.weight")
        assert {row for row, factor in rows.items() if factor != 1} == layer["attn"].shared_rows()
        assert sorted(set(rows.values())) == pytest.approx([1.0, shared(1, 4, 1).lr])
