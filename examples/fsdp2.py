"""FSDP2: plan on the meta device, shard, materialize, then initialize.

The weights do not depend on the number of ranks.

pip install 'mupscale[hf]'
torchrun --nproc-per-node 2 examples/fsdp2.py
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
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


cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)

with torch.device("meta"):
    model = LlamaForCausalLM(config(width=128, layers=2))
plan = mupscale.plan(model, base=config(width=32, layers=1))  # before sharding
for block in model.model.layers:
    fully_shard(block)
fully_shard(model)
model.to_empty(device=device)
model._init_weights(model.model.rotary_emb)  # initialize_ does not fill buffers; the model must
plan.initialize_(model, std={"default": 0.18, "embedding": 0.1}, seed=0)
optimizer = torch.optim.AdamW(plan.param_groups(model, lr=2**-7, weight_decay=0.1))

torch.manual_seed(rank)  # each rank draws its own batches
text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
for step in range(40):
    tokens = torch.stack([text[i : i + 65] for i in torch.randint(len(text) - 65, (4,))]).to(device)
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    plan.clip_grad_norm_(model, 1.0)  # by the norm over all ranks
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and (step % 10 == 0 or step == 39):
        print(f"step {step}: loss {loss.item():.3f}")
dist.destroy_process_group()
