"""Well-known models by their published dimensions, without a download.

Each row holds what the model's `config.json` sets beyond the defaults of its type in transformers.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A type of transformers and the settings that make it one model."""

    model_type: str
    settings: Mapping[str, Any]
    source: str
    """Where the dimensions are published."""


_ROPE = {"rope_type": "default", "rope_theta": 500000.0}
# Grattafiori et al. 2024, table 3; the 405B was published with the long context of 3.1 only.
_LLAMA_3 = {
    "vocab_size": 128256, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_parameters": _ROPE,
    "tie_word_embeddings": False, "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
_LLAMA_3_LONG = {
    "max_position_embeddings": 131072,
    "rope_parameters": _ROPE | {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip


def _sizes(width: int, d_ff: int, depth: int, heads: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": d_ff,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
    }


SHAPES: Mapping[str, Shape] = {
    "llama-3-8b": Shape(
        "llama", _LLAMA_3 | _sizes(4096, 14336, 32, 32), "meta-llama/Meta-Llama-3-8B"
    ),
    "llama-3-70b": Shape(
        "llama", _LLAMA_3 | _sizes(8192, 28672, 80, 64), "meta-llama/Meta-Llama-3-70B"
    ),
    "llama-3-405b": Shape(
        "llama",
        _LLAMA_3 | _LLAMA_3_LONG | _sizes(16384, 53248, 126, 128),
        "meta-llama/Llama-3.1-405B",
    ),
    "qwen3-32b": Shape(
        "qwen3",
        _sizes(5120, 25600, 64, 64) | {
            "vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 40960, "max_window_layers": 64, "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
            "tie_word_embeddings": False, "bos_token_id": 151643, "eos_token_id": 151645,
        },
        "Qwen/Qwen3-32B",
    ),
    "mistral-7b": Shape(
        "mistral",
        _sizes(4096, 14336, 32, 32) | {
            "vocab_size": 32000, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "sliding_window": 4096, "tie_word_embeddings": False,
        },
        "mistralai/Mistral-7B-v0.1",
    ),
    "command-r-plus": Shape(
        "cohere",
        _sizes(12288, 33792, 64, 96) | {
            "vocab_size": 256000, "num_key_value_heads": 8, "logit_scale": 0.8333333333333334,
            "use_qk_norm": True, "max_position_embeddings": 8192, "layer_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 75000000.0},
            "tie_word_embeddings": True,
        },
        "CohereForAI/c4ai-command-r-plus",
    ),
}  # fmt: skip


def shape_name(name: str) -> str | None:
    """The name in the table, ignoring case and separators.

    >>> shape_name("Llama_3.8B"), shape_name("llama3-8b"), shape_name("llama-4")
    ('llama-3-8b', 'llama-3-8b', None)
    """
    return next((known for known in SHAPES if _letters(known) == _letters(name)), None)


def nearest_shape(name: str) -> str | None:
    """The well-known model with the most similar name.

    >>> nearest_shape("meta-llama/Meta-Llama-3-8B"), nearest_shape("my-org/my-model")
    ('llama-3-8b', None)
    """
    last = name.rpartition("/")[2].lower()
    return next(iter(difflib.get_close_matches(last, SHAPES, n=1, cutoff=0.6)), None)


def _letters(name: str) -> str:
    return re.sub(r"[-_.\s]", "", name).lower()
