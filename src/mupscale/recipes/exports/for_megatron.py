"""Megatron-LM: flags, and the overrides of its parameter groups; what it cannot express is said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mupscale.errors import OptionError
from mupscale.recipes.exports.code import LINE, docstring, optimizer_class, refuse_inexact, string
from mupscale.recipes.exports.names import LLAMA_LIKE, llama_like

if TYPE_CHECKING:
    from mupscale.recipes.recipe import Recipe
    from mupscale.recipes.rows import RecipeRow

_USE = (
    "For Megatron-LM with megatron-core 0.16. Save it as recipe.py; `python recipe.py` prints the "
    "flags. Flags alone "
    "reach the matrices of --lr; the rest needs two calls in your pretraining script:",
    "    megatron.training.training.get_standard_config_overrides = recipe.config_overrides",
    "    recipe.rescale_(model)  # in the model provider, after GPTModel(...)",
    "The cosine ends one step after the last, and warmup begins at zero, Megatron's way.",
)

_FUNCTIONS = '''
def config_overrides(config: OptimizerConfig) -> dict[ParamKey, ParamGroupOverride]:
    """For get_megatron_optimizer, in place of get_standard_config_overrides."""
    overrides: dict[ParamKey, ParamGroupOverride] = {}
    for number, (names, values) in enumerate(GROUPS, start=2):
        # Checkpoints tell groups apart by lr_mult, by which Megatron does not multiply.
        label = {"lr_mult": float(number), "min_lr": FLOOR * values["max_lr"]}
        overrides[ParamKey(name=tuple(f"*{name}" for name in names))] = {**label, **values}
    return overrides


@torch.no_grad()
def rescale_(model: nn.Module) -> None:
    """From Megatron's initial weights, drawn with these flags, to the recipe's. Call it once."""
    for name, parameter in model.named_parameters():
        for pattern, factor in FACTORS.items():
            if fnmatch.fnmatch(name, f"*{pattern}"):
                parameter.mul_(factor)


if __name__ == "__main__":
    print(shlex.join(ARGUMENTS))
'''

_IMPORTS = """
import fnmatch
import shlex

import torch
from megatron.core.optimizer.optimizer_config import OptimizerConfig, ParamKey
from megatron.core.optimizer_param_scheduler import ParamGroupOverride
from torch import nn
"""


def export(recipe: Recipe) -> str:
    """A module with flags, overrides and factors on Megatron's initial weights."""
    refuse_inexact(recipe, "megatron")
    if optimizer_class(recipe) != "AdamW":
        raise OptionError(
            f"the export megatron is for AdamW, and the study trained with {recipe.plan.optimizer}."
        )
    rows = llama_like(recipe, "megatron")
    parts = [
        "\n\n".join(
            [
                docstring(recipe, [*_USE, *_lost(recipe, rows)]),
                _IMPORTS.strip(),
                _arguments(recipe, rows),
            ]
        ),
        _groups(recipe, rows["q_proj"]),
        _factors(recipe, rows),
        _FUNCTIONS,
    ]
    head, groups, factors, functions = (part.strip() for part in parts)
    return f"{head}\n\n{groups}\n\n{factors}\n\n\n{functions}\n"


def _lost(recipe: Recipe, rows: Mapping[str, RecipeRow]) -> list[str]:
    """What Megatron cannot express of this recipe."""
    query, key = rows["q_proj"], rows["k_proj"]
    found: list[str] = []
    if query.lr != key.lr:
        found.append(
            f"NOT EXPRESSED: keys and values should train at {key.lr:.4g} (weight decay "
            f"{key.weight_decay:.4g}), "
            f"{key.lr / query.lr:.4g} times the rate of queries. Megatron keeps the three in one "
            "tensor, linear_qkv, "
            f"and groups hold whole tensors: all of it trains at {query.lr:.4g}, as under "
            "complete-p. A study that "
            "swept complete-p has a recipe that Megatron can follow: --rule complete-p."
        )
    found.append(
        "Gradient clipping is off: Megatron's norm would be that of folded weights."
        if not recipe.told.clip
        else "NOT EXPRESSED: the recipe clips gradients by their norm on the base. Megatron's norm "
        "would be that of "
        "folded weights, so that clipping is off here."
    )
    return found


def _arguments(recipe: Recipe, rows: Mapping[str, RecipeRow]) -> str:
    length, reference = recipe.length, rows["q_proj"]
    floor = recipe.told.floor
    assert recipe.betas is not None
    assert floor is not None
    flags: dict[str, object] = {
        "optimizer": "adam", "lr": reference.lr, "min-lr": floor * reference.lr, "lr-decay-style": "cosine",
        "train-iters": length.steps, "lr-decay-iters": length.steps, "lr-warmup-iters": length.warmup,
        "global-batch-size": length.batch_sequences, "seq-length": length.sequence,
        "weight-decay": reference.weight_decay, "adam-beta1": recipe.betas[0], "adam-beta2": recipe.betas[1],
        "adam-eps": reference.eps, "clip-grad": 0.0, "init-method-std": reference.std,
        "embedding-init-method-std": rows["embed_tokens"].std,
    }  # fmt: skip
    words = [
        *(f"--{name}={value}" for name, value in flags.items()),
        "--untie-embeddings-and-output-weights",
    ]
    lines = [
        f"FLOOR = {floor!r}",
        "ARGUMENTS = [",
        *(f"    {string(word)}," for word in words),
        "]",
    ]
    return "\n".join(lines)


def _groups(recipe: Recipe, reference: RecipeRow) -> str:
    """All that differs from the flags, by value. A name that holds several parameters has the first
    one's.
    """
    merged: dict[tuple[float | None, ...], list[str]] = {}
    seen: set[str] = set()
    for row in recipe.rows:
        names = [name for name in LLAMA_LIKE[row.pattern].megatron if name not in seen]
        seen.update(names)
        values = (row.lr, row.weight_decay, row.eps)
        if names and values != (reference.lr, reference.weight_decay, reference.eps):
            merged.setdefault(values, []).extend(names)
    lines = ["# What differs from the flags: names, and the values of their group.", "GROUPS = ["]
    for (lr, decay, eps), names in merged.items():
        wd = {"wd_mult": 0.0} if not decay else {"start_wd": decay, "end_wd": decay}
        values = ", ".join(
            f'"{key}": {value!r}' for key, value in {"max_lr": lr, **wd, "eps": eps}.items()
        )
        lines += ["    (", *_names(names), *_values(values), "    ),"]
    return "\n".join([*lines, "]"])


def _names(names: list[str]) -> list[str]:
    whole = f"        [{', '.join(string(name) for name in names)}],"
    if len(whole) <= LINE:
        return [whole]
    return ["        [", *(f"            {string(name)}," for name in names), "        ],"]


def _values(values: str) -> list[str]:
    whole = f"        {{{values}}},"
    if len(whole) <= LINE:
        return [whole]
    return ["        {", *(f"            {value}," for value in values.split(", ")), "        },"]


def _factors(recipe: Recipe, rows: Mapping[str, RecipeRow]) -> str:
    """Wanted over drawn: Megatron draws with --init-method-std, and with that over √(2 layers) what
    ends a branch.
    """
    drawn, ends = rows["q_proj"].std, math.sqrt(2 * recipe.shape.depth)
    assert drawn is not None
    lines: list[str] = []
    for name, row in rows.items():
        if row.std is not None and name not in (
            "embed_tokens",
            "q_proj",
            "k_proj",
            "v_proj",
            "gate_proj",
        ):
            factor = row.std / drawn * (ends if name in ("o_proj", "down_proj") else 1.0)
        else:
            factor = row.start if row.start is not None else 1.0
        if factor != 1:
            lines += [
                f"    {string(other)}: {factor!r}," for other in LLAMA_LIKE[row.pattern].megatron
            ]
    title = "# On Megatron's initial weights."
    return (
        "\n".join([title, "FACTORS = {", *lines, "}"])
        if lines
        else f"{title}\nFACTORS: dict[str, float] = {{}}"
    )
