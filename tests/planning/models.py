"""Small models that hold every way in which a multiplier can be placed, and how to train them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 61


class Exactly(TorchFunctionMode):
    """Models of transformers take norms and softmax in float32 whatever they are given: here that
    is float64.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            return args[0].double()
        kwargs = {key: _wide(value) for key, value in (kwargs or {}).items()}
        return func(*(_wide(value) for value in args), **kwargs)


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


_COMMON = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
    "pad_token_id": None,
    "attn_implementation": "eager",
}
_GQA = _COMMON | {"num_attention_heads": 4, "num_key_value_heads": 2}
_BIG = {"hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 3}
_SMALL = {
    "hidden_size": 16,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}

SETTINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: (type, settings of the model, what is different in its base)
    "llama": ("llama", _GQA | _BIG, _SMALL),
    "tied llama": ("llama", _GQA | _BIG | {"tie_word_embeddings": True}, _SMALL),
    "biased llama": ("llama", _GQA | _BIG | {"attention_bias": True, "mlp_bias": True}, _SMALL),
    "olmo2 (post-norm)": ("olmo2", _GQA | _BIG, _SMALL),
    "gemma2 (tied, post-norm, 1 + gain, scaled "
    "embedding)": ("gemma2", _GQA | _BIG | {"head_dim": 8}, _SMALL),
    "olmo (norms without gains, "
    "tied)": ("olmo", _GQA | _BIG | {"tie_word_embeddings": True}, _SMALL),
    "cohere (tied, logit scale)": ("cohere", _GQA | _BIG, _SMALL | {"logit_scale": 0.25}),
    "granite (multipliers)": (
        "granite",
        _GQA | _BIG | {
            "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0,
            "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True,
        },
        _SMALL | {"embedding_multiplier": 2.0, "residual_multiplier": 0.2, "logits_scaling": 1.0},
    ),
    "gpt2 (tied, biases, transposed, fused)": (
        "gpt2",
        {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 32, "n_head": 4, "n_layer": 3,
         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "attn_implementation": "eager"},
        {"n_embd": 16, "n_head": 2, "n_layer": 2},
    ),
    "phi (biased readout)": ("phi", _GQA | _BIG | {"resid_pdrop": 0.0}, _SMALL),
}  # fmt: skip


def hugging_face(kind: str, **settings: Any) -> nn.Module:
    """A model of that type with random weights, in float64."""
    config = transformers.CONFIG_MAPPING[kind](**settings)
    torch.manual_seed(0)
    model = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])(config)
    return model.double().train()


def model_and_base(name: str) -> tuple[nn.Module, nn.Module]:
    kind, settings, changes = SETTINGS[name]
    return hugging_face(kind, **settings), hugging_face(kind, **(settings | changes))


class Attention(nn.Module):
    """Grouped-query attention with q, k and v in one matrix or in three: the same function."""

    def __init__(self, width: int, heads: int, kv_heads: int, *, fused: bool, bias: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.fused = heads, kv_heads, 8, fused
        sizes = [heads * 8, kv_heads * 8, kv_heads * 8]
        if fused:
            self.qkv_proj = nn.Linear(width, sum(sizes), bias=bias)
        else:
            self.q_proj, self.k_proj, self.v_proj = (
                nn.Linear(width, size, bias=bias) for size in sizes
            )
        self.o_proj = nn.Linear(heads * 8, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        sizes = [self.heads * 8, self.kv_heads * 8, self.kv_heads * 8]
        parts = (
            self.qkv_proj(x).split(sizes, -1)
            if self.fused
            else (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, *, fused: bool, bias: bool) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, kv_heads, fused=fused, bias=bias)
        self.mlp = nn.Sequential()
        self.mlp.fc1, self.mlp.act, self.mlp.fc2 = (
            nn.Linear(width, 3 * width),
            nn.GELU(),
            nn.Linear(3 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Fusable(nn.Module):
    """A transformer whose q, k and v may be one matrix; without a config class."""

    def __init__(
        self,
        width: int = 32,
        heads: int = 4,
        kv_heads: int = 1,
        depth: int = 2,
        *,
        fused: bool,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=8
        )
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, kv_heads, fused=fused, bias=bias) for _ in range(depth)
        )
        self.final = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))


def batch(step: int) -> Tensor:
    return torch.randint(VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(1000 + step))


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    with Exactly():
        output = model(tokens)
    logits = output if isinstance(output, Tensor) else output.logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 20,
    before_step: Callable[[], Any] | None = None,
) -> list[float]:
    losses: list[float] = []
    for step in range(steps):
        loss = loss_of(model, batch(step))
        optimizer.zero_grad()
        loss.backward()
        if before_step is not None:
            before_step()
        optimizer.step()
        losses.append(loss.item())
    return losses
