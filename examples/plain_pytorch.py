"""Your own model in plain PyTorch: plan it from a narrow copy of itself, then train as usual.

python examples/plain_pytorch.py
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import mupscale


class Block(nn.Module):
    def __init__(self, width: int, kv_heads: int, head_dim: int = 16) -> None:
        super().__init__()
        self.head_dim, narrow = head_dim, kv_heads * head_dim
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, narrow, bias=False)
        self.v_proj = nn.Linear(width, narrow, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.fc1 = nn.Linear(width, 4 * width, bias=False)
        self.fc2 = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projections, y = (self.q_proj, self.k_proj, self.v_proj), self.norm1(x)
        q, k, v = (
            project(y).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for project in projections
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(mixed.transpose(1, 2).flatten(-2))
        return x + self.fc2(gelu(self.fc1(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width: int, kv_heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.blocks = nn.Sequential(*(Block(width, kv_heads) for _ in range(layers)))
        self.norm, self.readout = nn.RMSNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.readout(self.norm(self.blocks(self.tokens(ids))))


base, model = GPT(width=32, kv_heads=1, layers=1), GPT(width=128, kv_heads=4, layers=2)
plan = mupscale.plan(model, base=base)  # lr, decay and std: tuned on the base
print(plan)

plan.initialize_(model, std={"default": 0.18, "embedding": 0.1}, seed=0)
optimizer = torch.optim.AdamW(plan.param_groups(model, lr=2**-7, weight_decay=0.1))
text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
for step in range(40):
    tokens = torch.stack([text[i : i + 65] for i in torch.randint(len(text) - 65, (8,))])
    loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    plan.clip_grad_norm_(model, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0 or step == 39:
        print(f"step {step}: loss {loss.item():.3f}")
