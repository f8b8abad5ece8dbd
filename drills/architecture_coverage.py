"""Which causal-LM architectures of the installed transformers are read whole, and which are refused, and why.

    python drills/architecture_coverage.py

Every architecture is built on the meta device from its default config, with the few settings below where the default
does not build. The share is of decoder-only attention models: the mapping less `EXCLUDED`, each with its reason.
"""

import sys
import warnings
from collections import Counter

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as ARCHITECTURES

from mupscale.errors import UnreadableModelError
from mupscale.reading import read

SETTINGS = {
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1},
}

RECURRENT = "state-space, recurrent or linear attention"
ENCODER = "an encoder that can be used as a decoder"
HALF = "the decoder half of an encoder-decoder"
MODALITIES = "several modalities, or the config of a whole of which the text model is listed apart"
EXCLUDED = {
    **dict.fromkeys(
        ["bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "lfm2",
         "lfm2_moe", "mamba", "mamba2", "minimax", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe",
         "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp", "qwen4_exp_text", "recurrent_gemma", "rwkv",
         "xlstm", "zamba", "zamba2", "zaya", "hrm_text"],
        RECURRENT,
    ),
    **dict.fromkeys(
        ["bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert",
         "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta",
         "xlm-roberta-xl", "xlnet", "xmod"],
        ENCODER,
    ),
    **dict.fromkeys(
        ["bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart",
         "prophetnet", "trocr", "whisper"],
        HALF,
    ),
    **dict.fromkeys(
        ["blt", "emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_assistant", "gemma4_unified",
         "gemma4_unified_assistant", "git", "got_ocr2", "llama4", "mllama", "moshi", "moss_transcribe_diarize",
         "musicgen", "musicgen_melody", "phi4_multimodal"],
        MODALITIES,
    ),
}  # fmt: skip


def verdict(kind: str) -> tuple[str, str]:
    """One word, and what there is to say."""
    try:
        config = transformers.CONFIG_MAPPING[kind](**SETTINGS.get(kind, {}))
        with torch.device("meta"):
            model = getattr(transformers, ARCHITECTURES[kind])(config)
    except Exception as error:  # whatever a default config raises
        return "does not build", f"{type(error).__name__}"
    try:
        facts = read(model)
    except UnreadableModelError as error:
        return "refused", " ".join(line.strip() for line in str(error).splitlines()[:2])[:110]
    kinds = Counter(fact.role for fact in facts.parameters.values())
    attention = kinds["key"] + kinds["fused_qkv"] + kinds["low_rank_down"]
    return "complete", f"{len(facts.parameters)} parameters, r = {facts.repetitions}, attention matrices {attention}"


def main() -> int:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}: {len(ARCHITECTURES)} causal-LM architectures\n")
    counted: Counter[str] = Counter()
    for kind in ARCHITECTURES:
        word, remark = verdict(kind)
        if kind not in EXCLUDED:
            counted[word] += 1
        print(f"{kind:<26}{word:<16}{remark}" + (f"  [not counted: {EXCLUDED[kind]}]" if kind in EXCLUDED else ""))
    complete, refused, unbuilt = (counted[word] for word in ("complete", "refused", "does not build"))
    print(f"\ndecoder-only attention models that build: {complete + refused} ({unbuilt} more do not)")
    print(f"complete: {complete} ({complete / (complete + refused):.1%}), refused: {refused}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
