"""Muon for the hidden matrices, AdamW for the rest: one plan, two optimizers.

pip install 'mupscale[hf]'
python examples/muon.py
"""

import argparse
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

import mupscale


def config(width: int, layers: int) -> LlamaConfig:
    """Two query heads per key/value head at every width."""
    heads = width // 16
    return LlamaConfig(
        vocab_size=256, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, max_position_embeddings=64,
    )  # fmt: skip


model = LlamaForCausalLM(config(width=128, layers=2))
# "muon" is torch's adjust_lr_fn="original"; for "match_rms_adamw" plan with "muon-match-rms".
plan = mupscale.plan(model, base=config(width=32, layers=1), optimizer="muon")
print(plan)
plan.initialize_(model, std={"default": 0.18, "embedding": 0.1}, seed=0)
muon = torch.optim.Muon(
    plan.param_groups(model, lr=0.02, weight_decay=0.1, optimizer="muon"), adjust_lr_fn="original"
)
adamw = torch.optim.AdamW(plan.param_groups(model, lr=2**-7, weight_decay=0.1, optimizer="adamw"))

text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
for step in range(40):
    tokens = torch.stack([text[i : i + 65] for i in torch.randint(len(text) - 65, (8,))])
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    plan.clip_grad_norm_(model, 1.0)
    for optimizer in (muon, adamw):
        optimizer.step()
        optimizer.zero_grad()
    if step % 10 == 0 or step == 39:
        print(f"step {step}: loss {loss.item():.3f}")
plan.verify(muon)
plan.verify(adamw)
