"""transformers' Trainer: pass it the plan's optimizer, and let the plan clip the gradients.

pip install 'mupscale[hf]' accelerate
python examples/hf_trainer.py
"""

import argparse
import tempfile
from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    get_cosine_schedule_with_warmup,
)

import mupscale

STEPS, CONTEXT = 40, 64


def config(width: int, layers: int) -> LlamaConfig:
    """Two query heads per key/value head at every width."""
    heads = width // 16
    return LlamaConfig(
        vocab_size=256, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, max_position_embeddings=CONTEXT,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


model = LlamaForCausalLM(config(width=128, layers=2))
plan = mupscale.plan(model, base=config(width=32, layers=1))  # lr, decay and std: tuned on the base
print(plan)
std = {"default": 0.18, "embedding": 0.1}
plan.initialize_(model, std=std, seed=0)
optimizer = torch.optim.AdamW(plan.param_groups(model, lr=2**-7, weight_decay=0.1))
schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=5, num_training_steps=STEPS)
plan.clip_before_step(optimizer, 1.0)

text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
data = [
    {"input_ids": piece, "labels": piece}
    for piece in text[: len(text) // CONTEXT * CONTEXT].split(CONTEXT)
]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), max_steps=STEPS, per_device_train_batch_size=8, logging_steps=10,
    max_grad_norm=0,  # the plan clips: the Trainer's own norm would depend on folding
    save_strategy="no", report_to="none", disable_tqdm=True,
    dataloader_pin_memory=torch.cuda.is_available(),
)  # fmt: skip
plan.verify(optimizer, model=model, std=std, trainer=arguments)  # class, values, weights, clipping
Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, schedule)).train()
plan.verify(optimizer, lr=2**-7, weight_decay=0.1)
