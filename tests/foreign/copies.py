"""Small models of our own, in the ways in which nanochat and litgpt name their parts, take norms
and fuse matrices.

They are written for these tests; the originals are github.com/karpathy/nanochat and
github.com/Lightning-AI/litgpt.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, rms_norm, scaled_dot_product_attention, silu

WORDS = 250
"""No width here is as large."""


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention on (batch, tokens, heads, head_dim); several heads of q may share one of k
    and v.
    """
    r = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(r, dim=2), v.repeat_interleave(r, dim=2)
    out = scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
    )
    return out.transpose(1, 2).flatten(2)


def rotated(x: Tensor) -> Tensor:
    """Rotary positions on (batch, tokens, heads, head_dim)."""
    half = x.shape[-1] // 2
    rates = 10000 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[1], device=x.device)[:, None] * rates
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * cos + two * sin, two * cos - one * sin], dim=-1)


# litgpt: blocks are transformer.h.*, norms norm_1 and norm_2, one matrix for q, k and v.


@dataclass(frozen=True)
class LitConfig:
    n_embd: int
    n_layer: int
    n_head: int
    n_query_groups: int
    head_size: int = 16
    padded_vocab_size: int = WORDS
    unit_offset: bool = False
    interleaved: bool = False
    """As older versions store q, k and v: for each group its queries, its key, its value; the
    matrix is `attn.attn`.
    """


class LitRMSNorm(nn.Module):
    """Its source holds `1 + self.weight` whether or not that is what it does."""

    def __init__(self, size: int, add_unit_offset: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if add_unit_offset else torch.ones(size))
        self.add_unit_offset = add_unit_offset

    def forward(self, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        weight = (1 + self.weight) if self.add_unit_offset else self.weight
        return normed * weight


class LitAttention(nn.Module):
    def __init__(self, config: LitConfig) -> None:
        super().__init__()
        rows = (config.n_head + 2 * config.n_query_groups) * config.head_size
        self.fused = "attn" if config.interleaved else "qkv"
        setattr(self, self.fused, nn.Linear(config.n_embd, rows, bias=False))
        self.proj = nn.Linear(config.n_head * config.head_size, config.n_embd, bias=False)
        self.config = config

    def forward(self, x: Tensor) -> Tensor:
        config, fused = self.config, getattr(self, self.fused)(x)
        groups, size, r = (
            config.n_query_groups,
            config.head_size,
            config.n_head // config.n_query_groups,
        )
        if config.interleaved:
            parts = fused.unflatten(-1, (groups, r + 2, size)).split((r, 1, 1), dim=-2)
            q, k, v = (part.flatten(2, 3) for part in parts)
        else:
            parts = fused.split((config.n_head * size, groups * size, groups * size), dim=-1)
            q, k, v = (part.unflatten(-1, (-1, size)) for part in parts)
        return self.proj(attend(rotated(q), rotated(k), v))


class LitMLP(nn.Module):
    def __init__(self, config: LitConfig) -> None:
        super().__init__()
        self.fc_1 = nn.Linear(config.n_embd, 2 * config.n_embd, bias=False)
        self.fc_2 = nn.Linear(config.n_embd, 2 * config.n_embd, bias=False)
        self.proj = nn.Linear(2 * config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(silu(self.fc_1(x)) * self.fc_2(x))


class LitBlock(nn.Module):
    def __init__(self, config: LitConfig) -> None:
        super().__init__()
        self.norm_1 = LitRMSNorm(config.n_embd, config.unit_offset)
        self.attn = LitAttention(config)
        self.norm_2 = LitRMSNorm(config.n_embd, config.unit_offset)
        self.mlp = LitMLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(self.norm_1(x)) + x
        return self.mlp(self.norm_2(x)) + x


class LitGPT(nn.Module):
    def __init__(self, config: LitConfig) -> None:
        super().__init__()
        self.config = config
        self.lm_head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=False)
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.padded_vocab_size, config.n_embd),
                "h": nn.ModuleList(LitBlock(config) for _ in range(config.n_layer)),
                "ln_f": LitRMSNorm(config.n_embd, config.unit_offset),
            }
        )

    def forward(self, idx: Tensor) -> Tensor:
        x = self.transformer["wte"](idx)
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


def litgpt(width: int, depth: int = 2, n_kv_heads: int | None = None, **settings: bool) -> LitGPT:
    heads = width // 16
    return LitGPT(LitConfig(width, depth, heads, n_kv_heads or heads, **settings))


# nanochat: norms without parameters, zero projections, scalars for each layer, a table of values
# for some layers.


def bare_norm(x: Tensor) -> Tensor:
    return rms_norm(x, (x.size(-1),))


class ChatAttention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, has_values: bool) -> None:
        super().__init__()
        self.size = 16
        self.c_q = nn.Linear(width, heads * self.size, bias=False)
        self.c_k = nn.Linear(width, kv_heads * self.size, bias=False)
        self.c_v = nn.Linear(width, kv_heads * self.size, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        self.ve_gate = nn.Linear(32, kv_heads, bias=False) if has_values else None

    def forward(self, x: Tensor, values: Tensor | None) -> Tensor:
        q, k, v = (m(x).unflatten(-1, (-1, self.size)) for m in (self.c_q, self.c_k, self.c_v))
        if self.ve_gate is not None and values is not None:
            gate = 2 * torch.sigmoid(self.ve_gate(x[..., :32]))
            v = v + gate.unsqueeze(-1) * values.unflatten(-1, (-1, self.size))
        return self.c_proj(attend(bare_norm(rotated(q)), bare_norm(rotated(k)), v))


class ChatMLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.c_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(relu(self.c_fc(x)).square())


class ChatBlock(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, has_values: bool) -> None:
        super().__init__()
        self.attn = ChatAttention(width, heads, kv_heads, has_values)
        self.mlp = ChatMLP(width)

    def forward(self, x: Tensor, values: Tensor | None) -> Tensor:
        x = x + self.attn(bare_norm(x), values)
        return x + self.mlp(bare_norm(x))


class ChatGPT(nn.Module):
    def __init__(self, width: int, depth: int, kv_heads: int, value_tables: bool) -> None:
        super().__init__()
        heads = width // 16
        with_values = [value_tables and i % 2 == (depth - 1) % 2 for i in range(depth)]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(WORDS, width),
                "h": nn.ModuleList(ChatBlock(width, heads, kv_heads, has) for has in with_values),
            }
        )
        self.lm_head = nn.Linear(width, WORDS, bias=False)
        self.resid_lambdas = nn.Parameter(torch.ones(depth))
        self.x0_lambdas = nn.Parameter(torch.full((depth,), 0.1))
        tables = {
            str(i): nn.Embedding(WORDS, kv_heads * 16) for i, has in enumerate(with_values) if has
        }
        self.value_embeds = nn.ModuleDict(tables)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        nn.init.normal_(self.lm_head.weight, std=0.001)
        bound = 3**0.5 * self.lm_head.in_features**-0.5
        for block in self.transformer["h"]:
            for matrix in (block.attn.c_q, block.attn.c_k, block.attn.c_v, block.mlp.c_fc):
                nn.init.uniform_(matrix.weight, -bound, bound)
            for matrix in (block.attn.c_proj, block.mlp.c_proj, block.attn.ve_gate):
                if matrix is not None:
                    nn.init.zeros_(matrix.weight)

    def forward(self, idx: Tensor) -> Tensor:
        x = start = bare_norm(self.transformer["wte"](idx))
        for i, block in enumerate(self.transformer["h"]):
            x = self.resid_lambdas[i] * x + self.x0_lambdas[i] * start
            x = block(x, self.value_embeds[str(i)](idx) if str(i) in self.value_embeds else None)
        logits = self.lm_head(bare_norm(x))
        return 15 * torch.tanh(logits / 15)


def nanochat(
    width: int, depth: int = 2, n_kv_heads: int | None = None, *, value_tables: bool = True
) -> ChatGPT:
    return ChatGPT(width, depth, n_kv_heads or width // 16, value_tables)
