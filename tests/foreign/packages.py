"""Small models of other projects, each built by a function of width and depth, as a user would
build them.

Heads are of one size, so that their number grows with the width. Nothing is downloaded.
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from tests.foreign.copies import WORDS

HEAD = 16


def causal(
    kind: str, width: int, depth: int, n_kv_heads: int | None = None, **settings: Any
) -> nn.Module:
    """A decoder of transformers, by its type."""
    heads = width // HEAD
    common = {
        "vocab_size": WORDS,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "pad_token_id": None,
        "max_position_embeddings": 256,
    }
    if n_kv_heads is not None:
        common["num_key_value_heads"] = n_kv_heads
    config = transformers.CONFIG_MAPPING[kind](**(common | settings))
    return transformers.AutoModelForCausalLM.from_config(config)


def llama(width: int, depth: int, n_kv_heads: int | None = None) -> nn.Module:
    return causal("llama", width, depth, n_kv_heads or width // HEAD, head_dim=HEAD)


def gemma(width: int, depth: int, n_kv_heads: int | None = None) -> nn.Module:
    return causal("gemma", width, depth, n_kv_heads or width // HEAD, head_dim=HEAD)


def gemma2(width: int, depth: int, n_kv_heads: int | None = None) -> nn.Module:
    return causal("gemma2", width, depth, n_kv_heads or width // HEAD, head_dim=HEAD)


def granite(width: int, depth: int, n_kv_heads: int | None = None) -> nn.Module:
    """Logits are divided by what grows with the width: as a muP model would be configured."""
    return causal(
        "granite",
        width,
        depth,
        n_kv_heads or width // HEAD,
        logits_scaling=width / 16,
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        attention_multiplier=1 / HEAD,
        tie_word_embeddings=False,
    )


def minicpm(width: int, depth: int, n_kv_heads: int | None = None) -> nn.Module:
    """Low-rank attention; logits are divided by the width over a base's, branches by √depth."""
    return causal(
        "minicpm3",
        width,
        depth,
        n_kv_heads or width // HEAD,
        scale_emb=12,
        scale_depth=1.4,
        dim_model_base=16,
        q_lora_rank=width // 2,
        kv_lora_rank=width // 4,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=HEAD,
        tie_word_embeddings=False,
    )


def cohere(width: int, depth: int, n_kv_heads: int | None = None) -> nn.Module:
    return causal("cohere", width, depth, n_kv_heads or width // HEAD, logit_scale=0.25)


def gpt_neox(width: int, depth: int) -> nn.Module:
    return causal("gpt_neox", width, depth)


def mamba(width: int, depth: int) -> nn.Module:
    config = transformers.MambaConfig(
        vocab_size=WORDS, hidden_size=width, num_hidden_layers=depth, pad_token_id=None
    )
    return transformers.MambaForCausalLM(config)


def t5(width: int, depth: int) -> nn.Module:
    config = transformers.T5Config(
        d_model=width,
        d_kv=HEAD,
        d_ff=2 * width,
        num_layers=depth,
        num_heads=width // HEAD,
        vocab_size=WORDS,
        decoder_start_token_id=0,
        dropout_rate=0.0,
    )
    return transformers.T5ForConditionalGeneration(config)


def whisper(width: int, depth: int) -> nn.Module:
    config = transformers.WhisperConfig(
        d_model=width,
        encoder_layers=depth,
        decoder_layers=depth,
        encoder_attention_heads=width // HEAD,
        decoder_attention_heads=width // HEAD,
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
        vocab_size=WORDS,
        num_mel_bins=8,
        max_source_positions=32,
        max_target_positions=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        dropout=0.0,
    )
    return transformers.WhisperForConditionalGeneration(config)


def vit(width: int, depth: int) -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // HEAD,
        intermediate_size=2 * width,
        image_size=16,
        patch_size=4,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.ViTForImageClassification(config)


def clip(width: int, depth: int) -> nn.Module:
    tower = {
        "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": depth,
        "num_attention_heads": width // HEAD, "projection_dim": width,
    }  # fmt: skip
    config = transformers.CLIPConfig(
        text_config=tower
        | {
            "vocab_size": WORDS,
            "max_position_embeddings": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        vision_config=tower | {"image_size": 16, "patch_size": 4},
        projection_dim=width,
    )
    return transformers.CLIPModel(config)


def albert(width: int, depth: int) -> nn.Module:
    config = transformers.AlbertConfig(
        vocab_size=WORDS, embedding_size=width // 2, hidden_size=width, num_hidden_layers=depth,
        num_attention_heads=width // HEAD, intermediate_size=2 * width, max_position_embeddings=128,
    )  # fmt: skip
    return transformers.AlbertForMaskedLM(config)


def bert(width: int, depth: int) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // HEAD,
        intermediate_size=2 * width,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config)


def x_decoder(width: int, depth: int) -> nn.Module:
    """LayerNorms that act as 1 + gamma; positions times width^-0.5."""
    return _x_decoder(width, depth)


def x_decoder_tied(width: int, depth: int, n_kv_heads: int | None = None) -> nn.Module:
    """RMS norms that act as 1 + g, gated feed-forward, shared keys and values, logits by the
    embedding's own weight.
    """
    return _x_decoder(
        width,
        depth,
        tie_embedding=True,
        use_rmsnorm=True,
        ff_glu=True,
        ff_no_bias=True,
        rotary_pos_emb=True,
        rotary_emb_dim=HEAD,
        attn_kv_heads=n_kv_heads or width // HEAD,
    )


def _x_decoder(
    width: int, depth: int, *, tie_embedding: bool = False, **settings: Any
) -> nn.Module:
    from loguru import logger
    from x_transformers import Decoder, TransformerWrapper

    logger.disable("x_transformers")  # it advises longer rotary dimensions
    layers = Decoder(dim=width, depth=depth, heads=width // HEAD, attn_dim_head=HEAD, **settings)
    return TransformerWrapper(
        num_tokens=WORDS, max_seq_len=128, attn_layers=layers, tie_embedding=tie_embedding
    )


def x_vit(width: int, depth: int) -> nn.Module:
    from x_transformers import Encoder, ViTransformerWrapper

    layers = Encoder(dim=width, depth=depth, heads=width // HEAD, attn_dim_head=HEAD)
    return ViTransformerWrapper(image_size=16, patch_size=4, num_classes=10, attn_layers=layers)


class _Name(type):
    """A class whose attributes are their own names: enough for tables that timm makes when it is
    imported.
    """

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Empty(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {})


class _NoTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for torchvision while timm is imported: none of the models here uses it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        mine = fullname.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if mine else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


@functools.cache
def timm_models() -> Any:
    """timm, from the folder in which `make venv` puts it, without torchvision."""
    folder, stand_in = str(Path(sys.prefix) / "timm"), _NoTorchvision()
    sys.path.insert(0, folder)
    sys.meta_path.insert(0, stand_in)
    try:
        return importlib.import_module("timm.models")
    finally:
        sys.meta_path.remove(stand_in)
        sys.path.remove(folder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


def timm_vit(width: int, depth: int) -> nn.Module:
    kind = timm_models().vision_transformer.VisionTransformer
    return kind(
        img_size=16,
        patch_size=4,
        embed_dim=width,
        depth=depth,
        num_heads=width // HEAD,
        mlp_ratio=2,
        num_classes=10,
    )


def timm_resnet(width: int, depth: int) -> nn.Module:
    """`depth` blocks in each of four stages, and a stem whose channels grow with the rest."""
    module = timm_models().resnet
    return module.ResNet(
        module.BasicBlock,
        [depth] * 4,
        num_classes=10,
        channels=(width, width, 2 * width, 2 * width),
        stem_type="deep",
        stem_width=width // 2,
    )


def timm_convnext(width: int, depth: int) -> nn.Module:
    """`depth` blocks in each of four stages, the last three on 2 × 2 places of an image of 16 ×
    16.
    """
    return timm_models().convnext.ConvNeXt(
        num_classes=10,
        depths=(depth,) * 4,
        dims=(width, width, 2 * width, 2 * width),
        output_stride=8,
    )


def dit(width: int, depth: int) -> nn.Module:
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(
        num_attention_heads=width // HEAD,
        attention_head_dim=HEAD,
        in_channels=4,
        num_layers=depth,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
        norm_num_groups=1,
        dropout=0.0,
    )


def lora(width: int, depth: int) -> nn.Module:
    import peft

    chosen = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(llama(width, depth), chosen)


def torchtitan_llama(width: int, depth: int, n_kv_heads: int | None = None) -> nn.Module:
    """Its Llama 3, with one matrix for queries, keys and values. torchtitan must be in sight: see
    torchtitan.txt.
    """
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
    from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock

    drawn = {"weight": functools.partial(nn.init.normal_, std=0.02)}
    norm = RMSNorm.Config(normalized_shape=width, param_init={"weight": nn.init.ones_})
    heads = width // HEAD

    def block() -> Any:
        attention = make_gqa_config(
            dim=width,
            n_heads=heads,
            n_kv_heads=n_kv_heads or heads,
            wqkv_param_init=drawn,
            wo_param_init=drawn,
            inner_attention=ScaledDotProductAttention.Config(),
            fuse_qkv=True,
            rope=ComplexRoPE.Config(dim=HEAD, max_seq_len=128),
        )
        feed_forward = make_ffn_config(
            dim=width, hidden_dim=2 * width, w1_param_init=drawn, w2w3_param_init=drawn
        )
        return Llama3TransformerBlock.Config(
            attention_norm=norm, ffn_norm=norm, attention=attention, feed_forward=feed_forward
        )

    model = Llama3Model.Config(
        dim=width,
        vocab_size=WORDS,
        norm=norm,
        layers=[block() for _ in range(depth)],
        tok_embeddings=Embedding.Config(
            num_embeddings=WORDS, embedding_dim=width, param_init=drawn
        ),
        lm_head=Linear.Config(in_features=width, out_features=WORDS, param_init=drawn),
    ).build()
    model.init_states()
    return model
