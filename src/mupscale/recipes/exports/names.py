"""Names of Llama-like parameters in transformers, torchtitan and Megatron-LM."""

from dataclasses import dataclass

from mupscale.errors import OptionError
from mupscale.recipes.recipe import Recipe
from mupscale.recipes.rows import RecipeRow


@dataclass(frozen=True)
class Names:
    """One parameter's name in torchtitan (within its layer) and in Megatron (fnmatch patterns)."""

    torchtitan: str
    megatron: tuple[str, ...]


_LAYER, _BLOCK = "model.layers.*.", "decoder.layers.*."
_QKV, _FC1 = f"{_BLOCK}self_attention.linear_qkv.", f"{_BLOCK}mlp.linear_fc1."

LLAMA_LIKE = {
    "model.embed_tokens.weight": Names(
        "tok_embeddings.weight", ("embedding.word_embeddings.weight",)
    ),
    f"{_LAYER}self_attn.q_proj.weight": Names("attention.qkv_linear.wq.weight", (f"{_QKV}weight",)),
    f"{_LAYER}self_attn.k_proj.weight": Names("attention.qkv_linear.wk.weight", (f"{_QKV}weight",)),
    f"{_LAYER}self_attn.v_proj.weight": Names("attention.qkv_linear.wv.weight", (f"{_QKV}weight",)),
    f"{_LAYER}self_attn.o_proj.weight": Names(
        "attention.wo.weight", (f"{_BLOCK}self_attention.linear_proj.weight",)
    ),
    f"{_LAYER}self_attn.q_norm.weight": Names(
        "attention.q_norm.weight", (f"{_BLOCK}self_attention.q_layernorm.weight",)
    ),
    f"{_LAYER}self_attn.k_norm.weight": Names(
        "attention.k_norm.weight", (f"{_BLOCK}self_attention.k_layernorm.weight",)
    ),
    f"{_LAYER}mlp.gate_proj.weight": Names("feed_forward.w1.weight", (f"{_FC1}weight",)),
    f"{_LAYER}mlp.up_proj.weight": Names("feed_forward.w3.weight", (f"{_FC1}weight",)),
    f"{_LAYER}mlp.down_proj.weight": Names(
        "feed_forward.w2.weight", (f"{_BLOCK}mlp.linear_fc2.weight",)
    ),
    f"{_LAYER}input_layernorm.weight": Names(
        "attention_norm.weight", (f"{_BLOCK}input_layernorm.weight", f"{_QKV}layer_norm_weight")
    ),
    f"{_LAYER}post_attention_layernorm.weight": Names(
        "ffn_norm.weight", (f"{_BLOCK}pre_mlp_layernorm.weight", f"{_FC1}layer_norm_weight")
    ),
    "model.norm.weight": Names("norm.weight", ("decoder.final_layernorm.weight",)),
    "lm_head.weight": Names("lm_head.weight", ("output_layer.weight",)),
}


def llama_like(recipe: Recipe, kind: str) -> dict[str, RecipeRow]:
    """The rows by the last part of their name, such as q_proj. Raises for other architectures."""
    rows = {row.pattern: row for row in recipe.rows}
    unknown = [pattern for pattern in rows if pattern not in LLAMA_LIKE]
    if unknown or "lm_head.weight" not in rows:
        what = f"it has {unknown[0]}" if unknown else "its readout is tied to its embedding"
        raise OptionError(
            f"the export {kind} supports Llama, Mistral and Qwen3 with an untied readout; "
            f"{recipe.target} is none of them: {what}. Export pytorch or json."
        )
    return {pattern.split(".")[-2]: row for pattern, row in rows.items()}
