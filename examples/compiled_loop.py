"""torch.compile: initialize first, then compile.

Phi-3 holds q, k and v in one matrix. If k and v need another rate than q, the plan multiplies their
rows by a hook, and compiled code ignores hooks added later.

pip install 'mupscale[hf]'
python examples/compiled_loop.py [--backend aot_eager]
"""

import argparse
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import Phi3Config, Phi3ForCausalLM

import mupscale

options = argparse.ArgumentParser()
# inductor compiles C++ for a minute; aot_eager needs no compiler
options.add_argument("--backend", default="inductor")
backend = options.parse_args().backend


def config(width: int, kv_heads: int) -> Phi3Config:
    return Phi3Config(
        vocab_size=256, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=width // 16, num_key_value_heads=kv_heads, max_position_embeddings=64,
        original_max_position_embeddings=64, pad_token_id=None,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


model = Phi3ForCausalLM(config(width=128, kv_heads=2))
plan = mupscale.plan(model, base=config(width=32, kv_heads=2))  # from r = 1 to r = 4
print(plan)
# attaches the hooks, which must happen before compiling
plan.initialize_(model, std={"default": 0.18, "embedding": 0.1}, seed=0)
compiled = torch.compile(model, backend=backend)
optimizer = torch.optim.AdamW(plan.param_groups(model, lr=2**-7, weight_decay=0.1))

text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
for step in range(40):
    tokens = torch.stack([text[i : i + 65] for i in torch.randint(len(text) - 65, (8,))])
    logits = compiled(input_ids=tokens[:, :-1], use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    plan.clip_grad_norm_(model, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0 or step == 39:
        print(f"step {step}: loss {loss.item():.3f}")

# multiplies the hooks' factors into the weights: save_pretrained now writes an ordinary Phi-3
plan.bake_(model)
