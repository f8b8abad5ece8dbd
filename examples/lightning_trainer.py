"""Lightning: the plan's optimizer and the plan's clipping instead of Lightning's.

pip install 'mupscale[hf]' lightning
python examples/lightning_trainer.py
"""

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

import mupscale

STEPS, CONTEXT = 40, 64


def config(width: int, layers: int) -> LlamaConfig:
    """Two query heads per key/value head at every width."""
    heads = width // 16
    return LlamaConfig(
        vocab_size=256, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, max_position_embeddings=CONTEXT,
    )  # fmt: skip


class Training(lightning.LightningModule):
    """A Llama, its plan, and the values that were tuned on the base."""

    def __init__(self, model: LlamaForCausalLM, plan: mupscale.Plan) -> None:
        super().__init__()
        self.model, self.plan = model, plan

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss = self.model(input_ids=batch, labels=batch, use_cache=False).loss
        if index % 10 == 0 or index == STEPS - 1:
            print(f"step {index}: loss {loss.item():.3f}")
        return loss

    def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
        self.plan.clip_grad_norm_(self.model, 1.0)  # Lightning's own norm would depend on folding

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(
            self.plan.param_groups(self.model, lr=2**-7, weight_decay=0.1)
        )
        schedule = get_cosine_schedule_with_warmup(
            optimizer, num_warmup_steps=5, num_training_steps=STEPS
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


lightning.seed_everything(0)
model = LlamaForCausalLM(config(width=128, layers=2))
plan = mupscale.plan(model, base=config(width=32, layers=1))  # lr, decay and std: tuned on the base
print(plan)
plan.initialize_(model, std={"default": 0.18, "embedding": 0.1}, seed=0)

text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
pieces = text[: len(text) // CONTEXT * CONTEXT].view(-1, CONTEXT)
trainer = lightning.Trainer(
    max_steps=STEPS, accelerator="auto", devices=1,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Training(model, plan), DataLoader(list(pieces), batch_size=8, shuffle=True))
plan.verify(trainer.optimizers[0], lr=2**-7, weight_decay=0.1)
