"""Which models are judged, and what every parameter of each must get: one table for each, by
pattern, written by hand.

`n` is how many times as wide the model is as its base, `L` how many times as deep. A table has a
line for every parameter and no line that matches none. The first pattern that matches counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.foreign import copies, packages
from tests.foreign.formulas import (
    Numbers,
    embedding,
    ends_branch,
    fixed_vector,
    hidden,
    readout,
    shared,
    vector,
)

Table = Mapping[str, Numbers]


@dataclass(frozen=True)
class Case:
    """A model, its table, and what a user has to say before it is read."""

    name: str
    build: Callable[..., nn.Module]
    table: Callable[[float, float], Table]
    """Of n and L; keys and values as with one query head for each."""
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    """What must be said, because the model is not read without: names and a forward pass do not
    settle it.
    """
    inputs: Any = None
    offset: float = 0.0
    """What its norms add to their gains."""
    deepens: bool = True
    """Whether the plan is compared over the depth too."""
    shares: tuple[str, ...] = ()
    """Patterns of its key and value matrices, where heads can share them."""
    tied: str = ""
    """The pattern of the final norm of a tied readout: it carries the readout's factor, unless a
    hook does.
    """
    fused: str = ""
    """The pattern of its fused matrices instead, whose rows of keys and values get a factor."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def model(self, **sizes: int) -> nn.Module:
        torch.manual_seed(0)
        return self.build(**sizes, **self.settings).eval()

    def expected(self, n: float, L: float, r: int = 1, base_r: int = 1) -> Table:
        """The table where keys and values are shared by r query heads, and in the base by
        `base_r`.
        """
        table = dict(self.table(n, L))
        return dict.fromkeys(self.shares, shared(n, r, base_r, L)) | table if r != base_r else table


def _llama(n: float, L: float) -> Table:
    return {
        "*embed_tokens.weight": embedding(n),
        "*layernorm.weight": vector(n, L),
        "*.self_attn.[qkv]_proj.weight": hidden(n, L=L),
        "*.self_attn.o_proj.weight": ends_branch(n, L=L),
        "*.mlp.gate_proj.weight": hidden(n, L=L),
        "*.mlp.up_proj.weight": hidden(n, L=L),
        "*.mlp.down_proj.weight": ends_branch(n, L=L),
        "model.norm.weight": vector(n),
        "lm_head.weight": readout(n),
    }


def _tied(table: Table) -> Table:
    """Without a readout of its own."""
    return {name: one for name, one in table.items() if name != "lm_head.weight"}


def _gemma(n: float, L: float) -> Table:
    """The embedding is multiplied by √width, and is the readout: half of 1/n goes into each of two
    places.
    """
    return _tied(_llama(n, L)) | {
        "*embed_tokens.weight": embedding(n).times(n**-0.5),
        "model.norm.weight": vector(n).times(n**-0.5),
    }


def _gemma2(n: float, L: float) -> Table:
    """Branches end in norms, which carry 1/L in place of the matrices."""
    ends = {
        "*.post_attention_layernorm.weight": vector(n, L).times(1 / L),
        "*.post_feedforward_layernorm.weight": vector(n, L).times(1 / L),
    }
    inside = {"*.self_attn.o_proj.weight": hidden(n, L=L), "*.mlp.down_proj.weight": hidden(n, L=L)}
    return ends | _gemma(n, L) | inside


def _granite(n: float, L: float) -> Table:
    """Its own forward pass divides the logits by what grows with the width, so that nothing is
    missing.
    """
    return _llama(n, L) | {"lm_head.weight": readout(n).times(n)}


def _minicpm(n: float, L: float) -> Table:
    """As Granite, with branches divided by √depth; ranks grow with the width."""
    low_rank = {
        "*.q_a_layernorm.weight": vector(n, L),
        "*.kv_a_layernorm.weight": vector(n, L),
        "*.self_attn.q_[ab]_proj.weight": hidden(n, L=L),
        "*.self_attn.kv_a_proj_with_mqa.weight": hidden(n, L=L),
        "*.self_attn.kv_b_proj.weight": hidden(n, L=L),
    }
    ends = {
        name: ends_branch(n, L=L).times(L**0.5)
        for name in ("*.self_attn.o_proj.weight", "*.mlp.down_proj.weight")
    }
    kept = {name: one for name, one in _granite(n, L).items() if "[qkv]" not in name}
    return low_rank | kept | ends


def _cohere(n: float, L: float) -> Table:
    return _tied(_llama(n, L)) | {"model.norm.weight": vector(n).times(1 / n)}


def _gpt_neox(n: float, L: float) -> Table:
    return {
        "gpt_neox.embed_in.weight": embedding(n),
        "*layernorm.*": vector(n, L),
        "*.attention.query_key_value.weight": hidden(n, L=L),
        "*.attention.query_key_value.bias": vector(n, L),
        "*.attention.dense.weight": ends_branch(n, L=L),
        "*.attention.dense.bias": vector(n, L).times(1 / L),
        "*.mlp.dense_h_to_4h.weight": hidden(n, L=L),
        "*.mlp.dense_h_to_4h.bias": vector(n, L),
        "*.mlp.dense_4h_to_h.weight": ends_branch(n, L=L),
        "*.mlp.dense_4h_to_h.bias": vector(n, L).times(1 / L),
        "gpt_neox.final_layer_norm.*": vector(n),
        "lm_head.weight": readout(n),
    }


def _t5(n: float, L: float) -> Table:
    """Tied, and the decoder's output is multiplied by width^-0.5 before it is read out."""
    return {
        "shared.weight": embedding(n),
        "*.relative_attention_bias.weight": embedding(n, L),
        "*.layer_norm.weight": vector(n, L),
        "*Attention.[qkv].weight": hidden(n, L=L),
        "*Attention.o.weight": ends_branch(n, L=L),
        "*.DenseReluDense.wi.weight": hidden(n, L=L),
        "*.DenseReluDense.wo.weight": ends_branch(n, L=L),
        "encoder.final_layer_norm.weight": vector(n),
        "decoder.final_layer_norm.weight": vector(n).times(n**-0.5),
    }


def _whisper(n: float, L: float) -> Table:
    return {
        "model.encoder.conv1.weight": embedding(n),
        "model.encoder.conv2.weight": hidden(n),
        "model.encoder.conv?.bias": vector(n),
        "model.decoder.embed_tokens.weight": embedding(n),
        "model.decoder.embed_positions.weight": embedding(n),
        "*.layers.*_attn.[qkv]_proj.weight": hidden(n, L=L),
        "*.layers.*_attn.[qkv]_proj.bias": vector(n, L),
        "*.layers.*_attn.out_proj.weight": ends_branch(n, L=L),
        "*.layers.*_attn.out_proj.bias": vector(n, L).times(1 / L),
        "*.layers.*.fc1.weight": hidden(n, L=L),
        "*.layers.*.fc1.bias": vector(n, L),
        "*.layers.*.fc2.weight": ends_branch(n, L=L),
        "*.layers.*.fc2.bias": vector(n, L).times(1 / L),
        "*.layers.*_layer_norm.*": vector(n, L),
        "model.encoder.layer_norm.*": vector(n),
        "model.decoder.layer_norm.*": vector(n).times(1 / n),
    }


def _vit(n: float, L: float) -> Table:
    return {
        "vit.embeddings.cls_token": embedding(n),
        "vit.embeddings.position_embeddings": embedding(n),
        "vit.embeddings.patch_embeddings.projection.weight": embedding(n),
        "vit.embeddings.patch_embeddings.projection.bias": vector(n),
        "vit.layers.*.layernorm_*": vector(n, L),
        "vit.layers.*.attention.[qkv]_proj.weight": hidden(n, L=L),
        "vit.layers.*.attention.[qkv]_proj.bias": vector(n, L),
        "vit.layers.*.attention.o_proj.weight": ends_branch(n, L=L),
        "vit.layers.*.attention.o_proj.bias": vector(n, L).times(1 / L),
        "vit.layers.*.mlp.fc1.weight": hidden(n, L=L),
        "vit.layers.*.mlp.fc1.bias": vector(n, L),
        "vit.layers.*.mlp.fc2.weight": ends_branch(n, L=L),
        "vit.layers.*.mlp.fc2.bias": vector(n, L).times(1 / L),
        "vit.layernorm.*": vector(n),
        "classifier.weight": readout(n),
        "classifier.bias": fixed_vector(),
    }


def _clip(n: float, L: float) -> Table:
    """Two towers; their projections grow with them, and what they are compared by has length 1."""
    return {
        "logit_scale": fixed_vector(),
        "text_model.embeddings.*": embedding(n),
        "vision_model.embeddings.*": embedding(n),
        "*.encoder.layers.*.layer_norm?.*": vector(n, L),
        "*.encoder.layers.*.self_attn.[qkv]_proj.weight": hidden(n, L=L),
        "*.encoder.layers.*.self_attn.[qkv]_proj.bias": vector(n, L),
        "*.encoder.layers.*.self_attn.out_proj.weight": ends_branch(n, L=L),
        "*.encoder.layers.*.self_attn.out_proj.bias": vector(n, L).times(1 / L),
        "*.encoder.layers.*.mlp.fc1.weight": hidden(n, L=L),
        "*.encoder.layers.*.mlp.fc1.bias": vector(n, L),
        "*.encoder.layers.*.mlp.fc2.weight": ends_branch(n, L=L),
        "*.encoder.layers.*.mlp.fc2.bias": vector(n, L).times(1 / L),
        "text_model.final_layer_norm.*": vector(n),
        "vision_model.pre_layrnorm.*": vector(n),
        "vision_model.post_layernorm.*": vector(n),
        "*_projection.weight": hidden(n),
    }


def _albert(n: float, L: float) -> Table:
    """Embeddings are half as wide as the rest, and tied; one layer's weights are all layers'."""
    return {
        "albert.embeddings.*_embeddings.weight": embedding(n),
        "albert.embeddings.LayerNorm.*": vector(n),
        "albert.encoder.embedding_hidden_mapping_in.weight": hidden(n),
        "albert.encoder.embedding_hidden_mapping_in.bias": vector(n),
        "*layer_norm.*": vector(n, L),
        "*.attention.LayerNorm.*": vector(n, L),
        "albert.encoder.*.bias": vector(n, L),
        "albert.encoder.*.weight": hidden(n, L=L),
        "predictions.dense.weight": hidden(n),
        "predictions.dense.bias": vector(n),
        "predictions.LayerNorm.*": vector(n).times(1 / n),
        "predictions.bias": fixed_vector(),
    }


def _bert(n: float, L: float) -> Table:
    return {
        "bert.embeddings.*_embeddings.weight": embedding(n),
        "bert.embeddings.LayerNorm.*": vector(n),
        "bert.encoder.*.LayerNorm.*": vector(n, L),
        "bert.encoder.*.output.dense.weight": ends_branch(n, L=L),
        "bert.encoder.*.output.dense.bias": vector(n, L).times(1 / L),
        "bert.encoder.*.weight": hidden(n, L=L),
        "bert.encoder.*.bias": vector(n, L),
        "cls.predictions.transform.dense.weight": hidden(n),
        "cls.predictions.transform.dense.bias": vector(n),
        "cls.predictions.transform.LayerNorm.*": vector(n).times(1 / n),
        "cls.predictions.bias": fixed_vector(),
    }


def _x_layers(n: float, L: float) -> dict[str, Numbers]:
    return {
        "attn_layers.layers.*.0.0.g*": vector(n, L),
        "attn_layers.layers.*.to_[qkv].weight": hidden(n, L=L),
        "attn_layers.layers.*.to_out.weight": ends_branch(n, L=L),
        "attn_layers.layers.*.ff.2.weight": ends_branch(n, L=L),
    }


def _x_biased(n: float, L: float) -> dict[str, Numbers]:
    return _x_layers(n, L) | {
        "attn_layers.layers.*.ff.0.0.weight": hidden(n, L=L),
        "attn_layers.layers.*.ff.0.0.bias": vector(n, L),
        "attn_layers.layers.*.ff.2.bias": vector(n, L).times(1 / L),
    }


def _x_decoder(n: float, L: float) -> Table:
    """Positions are multiplied by width^-0.5."""
    return _x_biased(n, L) | {
        "token_emb.emb.weight": embedding(n),
        "pos_emb.emb.weight": embedding(n).times(n**0.5),
        "attn_layers.final_norm.gamma": vector(n),
        "to_logits.weight": readout(n),
    }


def _x_decoder_tied(n: float, L: float) -> Table:
    """Logits are multiplied by width^-0.5 already."""
    return _x_layers(n, L) | {
        "token_emb.emb.weight": embedding(n),
        "attn_layers.layers.*.ff.0.proj.weight": hidden(n, L=L),
        "attn_layers.layers.*.ff.0.proj.bias": vector(n, L),
        "attn_layers.final_norm.g": vector(n).times(n**-0.5),
    }


def _x_vit(n: float, L: float) -> Table:
    return _x_biased(n, L) | {
        "pos_embedding": embedding(n),
        "patch_to_embedding.0.gamma": fixed_vector(),
        "patch_to_embedding.1.weight": embedding(n),
        "patch_to_embedding.1.bias": vector(n),
        "patch_to_embedding.2.gamma": vector(n),
        "attn_layers.final_norm.gamma": vector(n),
        "mlp_head.weight": readout(n),
        "mlp_head.bias": fixed_vector(),
    }


def _timm_vit(n: float, L: float) -> Table:
    return {
        "cls_token": embedding(n),
        "pos_embed": embedding(n),
        "patch_embed.proj.weight": embedding(n),
        "patch_embed.proj.bias": vector(n),
        "blocks.*.norm?.*": vector(n, L),
        "blocks.*.attn.qkv.weight": hidden(n, L=L),
        "blocks.*.attn.qkv.bias": vector(n, L),
        "blocks.*.attn.proj.weight": ends_branch(n, L=L),
        "blocks.*.attn.proj.bias": vector(n, L).times(1 / L),
        "blocks.*.mlp.fc1.weight": hidden(n, L=L),
        "blocks.*.mlp.fc1.bias": vector(n, L),
        "blocks.*.mlp.fc2.weight": ends_branch(n, L=L),
        "blocks.*.mlp.fc2.bias": vector(n, L).times(1 / L),
        "norm.*": vector(n),
        "head.weight": readout(n),
        "head.bias": fixed_vector(),
    }


def _timm_resnet(n: float, L: float) -> Table:
    """Kernels read channels × a fixed area; batch norms are norms."""
    return {
        "conv1.0.weight": embedding(n),
        "conv1.[36].weight": hidden(n),
        "conv1.[14].*": vector(n),
        "bn1.*": vector(n),
        "layer*.bn?.*": vector(n),
        "layer*.conv?.weight": hidden(n),
        "layer*.downsample.0.weight": hidden(n),
        "layer*.downsample.1.*": vector(n),
        "fc.weight": readout(n),
        "fc.bias": fixed_vector(),
    }


def _timm_convnext(n: float, L: float) -> Table:
    """A depthwise kernel reads one channel at any width. Branches end in a gain that starts at
    1e-6.
    """
    return {
        "stem.0.weight": embedding(n),
        "stem.0.bias": vector(n),
        "stem.1.*": vector(n),
        "stages.*.gamma": vector(n),
        "stages.*.conv_dw.weight": embedding(n),
        "stages.*.norm.*": vector(n),
        "stages.*.downsample.0.*": vector(n),
        "stages.*.downsample.1.weight": hidden(n),
        "stages.*.mlp.fc?.weight": hidden(n),
        "stages.*.bias": vector(n),
        "head.norm.*": vector(n),
        "head.fc.weight": readout(n),
        "head.fc.bias": fixed_vector(),
    }


def _dit(n: float, L: float) -> Table:
    """Times and classes shift, scale and gate what happens inside of the branches."""
    return {
        "pos_embed.proj.weight": embedding(n),
        "pos_embed.proj.bias": vector(n),
        "transformer_blocks.*.timestep_embedder.linear_1.weight": embedding(n, L),
        "transformer_blocks.*.embedding_table.weight": embedding(n, L),
        "transformer_blocks.*.attn1.to_out.0.weight": ends_branch(n, L=L),
        "transformer_blocks.*.attn1.to_out.0.bias": vector(n, L).times(1 / L),
        "transformer_blocks.*.ff.net.2.weight": ends_branch(n, L=L),
        "transformer_blocks.*.ff.net.2.bias": vector(n, L).times(1 / L),
        "transformer_blocks.*.weight": hidden(n, L=L),
        "transformer_blocks.*.bias": vector(n, L),
        "proj_out_1.weight": hidden(n),
        "proj_out_1.bias": vector(n),
        "proj_out_2.weight": readout(n),
        "proj_out_2.bias": fixed_vector(),
    }


def _lora(n: float, L: float) -> Table:
    """Everything else is frozen. A reads features, B a fixed rank: rates of 1/n and 1 (LoRA+, Hayou
    et al. 2024).
    """
    return {"*.lora_A.default.weight": hidden(n, L=L), "*.lora_B.default.weight": hidden(1, n, L)}


def _litgpt(n: float, L: float) -> Table:
    return {
        "lm_head.weight": readout(n),
        "transformer.wte.weight": embedding(n),
        "transformer.h.*.norm_?.weight": vector(n, L),
        "transformer.h.*.proj.weight": ends_branch(n, L=L),
        "transformer.h.*.weight": hidden(n, L=L),
        "transformer.ln_f.weight": vector(n),
    }


def _nanochat_plain(n: float, L: float) -> Table:
    """Scalars for each layer act on all features at once."""
    return {
        "transformer.wte.weight": embedding(n),
        "*_lambdas": fixed_vector(),
        "transformer.h.*.c_proj.weight": ends_branch(n, L=L),
        "transformer.h.*.weight": hidden(n, L=L),
        "lm_head.weight": readout(n),
    }


def _nanochat(n: float, L: float) -> Table:
    """A table of values acts inside of its branch, through a gate that reads the same few features
    at any width.
    """
    values = {
        "value_embeds.*.weight": embedding(n, L),
        "transformer.h.*.ve_gate.weight": embedding(n, L),
    }
    return values | _nanochat_plain(n, L)


def _torchtitan(n: float, L: float) -> Table:
    return {
        "tok_embeddings.weight": embedding(n),
        "layers.*_norm.weight": vector(n, L),
        "layers.*.attention.qkv_linear.wqkv.weight": hidden(n, L=L),
        "layers.*.attention.wo.weight": ends_branch(n, L=L),
        "layers.*.feed_forward.w2.weight": ends_branch(n, L=L),
        "layers.*.feed_forward.w[13].weight": hidden(n, L=L),
        "norm.weight": vector(n),
        "lm_head.weight": readout(n),
    }


_WORDS = torch.randint(0, packages.WORDS, (2, 16), generator=torch.Generator().manual_seed(0))
_IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
_SHARED = ("*.self_attn.[kv]_proj.weight",)

CASES = {
    case.name: case
    for case in (
        Case("llama", packages.llama, _llama, shares=_SHARED),
        Case("gemma", packages.gemma, _gemma, tied="model.norm.weight", offset=1.0, shares=_SHARED),
        Case("gemma "
             "2", packages.gemma2, _gemma2, tied="model.norm.weight", offset=1.0, shares=_SHARED),
        Case("granite", packages.granite, _granite, shares=_SHARED),
        Case("minicpm 3", packages.minicpm, _minicpm),
        Case("cohere", packages.cohere, _cohere, tied="model.norm.weight", shares=_SHARED),
        Case("gpt-neox", packages.gpt_neox, _gpt_neox),
        Case(
            "t5", packages.t5, _t5, tied="decoder.final_layer_norm.weight",
            inputs={"input_ids": _WORDS, "decoder_input_ids": _WORDS},
        ),
        Case(
            "whisper", packages.whisper, _whisper, tied="model.decoder.layer_norm.*",
            inputs={"input_features": torch.randn(2, 8, 64), "decoder_input_ids": _WORDS},
        ),
        Case("vit", packages.vit, _vit, inputs={"pixel_values": _IMAGES}),
        Case(
            "clip", packages.clip, _clip, inputs={"input_ids": _WORDS, "pixel_values": _IMAGES},
            roles={
                "vision_model.embeddings.class_embedding": "position",
                "*_projection.weight": "hidden",
            },
        ),
        Case("albert", packages.albert, _albert, deepens=False, tied="predictions.LayerNorm.*"),
        Case("bert", packages.bert, _bert, tied="cls.predictions.transform.LayerNorm.*"),
        Case("x-transformers", packages.x_decoder, _x_decoder, offset=1.0),
        Case(
            "x-transformers, tied", packages.x_decoder_tied, _x_decoder_tied, offset=1.0,
            shares=("*.to_[kv].weight",), tied="attn_layers.final_norm.g",
        ),
        Case("x-transformers' ViT", packages.x_vit, _x_vit, inputs=(_IMAGES,), offset=1.0),
        Case("timm's ViT", packages.timm_vit, _timm_vit, inputs=(_IMAGES,)),
        Case("timm's ResNet", packages.timm_resnet, _timm_resnet, inputs=(_IMAGES,), deepens=False),
        Case("timm's "
             "ConvNeXt", packages.timm_convnext, _timm_convnext, inputs=(_IMAGES,), deepens=False),
        Case(
            "diffusers' DiT", packages.dit, _dit,
            inputs={
                "hidden_states": torch.randn(2, 4, 8, 8),
                "timestep": torch.tensor([3, 4]),
                "class_labels": torch.tensor([1, 2]),
            },
        ),
        Case("peft's LoRA", packages.lora, _lora, deepens=False),
        Case("litgpt", copies.litgpt, _litgpt, fused="transformer.h.*.attn.qkv.weight"),
        Case(
            "litgpt, older, 1 + "
            "gain", copies.litgpt, _litgpt, offset=1.0, fused="transformer.h.*.attn.attn.weight",
            settings={"unit_offset": True, "interleaved": True},
        ),
        Case("nanochat", copies.nanochat, _nanochat, roles={"*.ve_gate.weight": "position"}),
        Case(
            "nanochat, no value "
            "tables", copies.nanochat, _nanochat_plain, shares=("*.attn.c_[kv].weight",),
            settings={"value_tables": False},
        ),
    )
}  # fmt: skip

TORCHTITAN = Case(
    "torchtitan",
    packages.torchtitan_llama,
    _torchtitan,
    fused="layers.*.attention.qkv_linear.wqkv.weight",
)
"""Apart from the others: what it needs must not be seen by them."""
