"""A common training script: transformers' Trainer on a small Llama, without mupscale.

The only addition for studies is `--plan`: the dozen lines of `planned_optimizer`, which need only
JSON and torch.

python examples/own_trainer/train_llama.py --output_dir runs/llama --learning_rate 0.004
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

CONTEXT = 64


@dataclass
class ModelArguments:
    """The shape of the model."""

    hidden_size: int = 96
    n_layers: int = 2
    n_heads: int = 6
    n_kv_heads: int = 6
    std: float = 0.1
    plan: str | None = None


def build(shape: ModelArguments) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=shape.hidden_size,
            intermediate_size=2 * shape.hidden_size,
            num_hidden_layers=shape.n_layers,
            num_attention_heads=shape.n_heads,
            num_key_value_heads=shape.n_kv_heads,
            max_position_embeddings=CONTEXT,
            initializer_range=shape.std,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


@torch.no_grad()
def planned_optimizer(
    model: torch.nn.Module, path: str, std: float, lr: float, decay: float
) -> torch.optim.AdamW:
    """Apply a plan.json: its factors on std, lr, weight decay and epsilon."""
    plan = json.loads(Path(path).read_text(encoding="utf-8"))
    if plan["optimizer"] != "adamw" or plan["decay"] != "lr_coupled" or plan["hooks"]:
        raise SystemExit(f"{path}: this script applies plans for torch's AdamW without hooks.")
    groups = []
    for name, weight in model.named_parameters():
        factor = plan["parameters"][name]
        if factor["start"] is not None:
            weight.fill_(factor["start"])
        elif factor["init_std"] > 0:  # otherwise it keeps the model's values
            weight.normal_(std=std * factor["init_std"])
        values = {
            "lr": lr * factor["lr"],
            "weight_decay": decay * factor["weight_decay"],
            "eps": 1e-8 * factor["eps"],
        }
        groups.append({"params": [weight], **values})
    return torch.optim.AdamW(groups)


def sequences(*modules: str) -> list[dict[str, torch.Tensor]]:
    """Bytes of Python's own source files."""
    folder = Path(argparse.__file__).parent
    text = b"".join((folder / name).read_bytes() for name in modules)
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    pieces = tokens[: len(tokens) // CONTEXT * CONTEXT].split(CONTEXT)
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def main() -> None:
    shape, arguments = HfArgumentParser(
        (ModelArguments, TrainingArguments)
    ).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    model = build(shape)
    optimizer = None
    if shape.plan is not None:
        optimizer = planned_optimizer(
            model, shape.plan, shape.std, arguments.learning_rate, arguments.weight_decay
        )
    trainer = Trainer(
        model, arguments, optimizers=(optimizer, None),
        train_dataset=sequences("argparse.py", "inspect.py"), eval_dataset=sequences("textwrap.py"),
    )  # fmt: skip
    trainer.train()
    trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    main()
