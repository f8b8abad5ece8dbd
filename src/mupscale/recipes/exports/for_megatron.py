"""Megatron-LM: flags and parameter-group overrides. What it cannot express is listed."""

import math
from collections.abc import Mapping, Sequence

from mupscale.errors import OptionError
from mupscale.recipes.exports.code import LINE, docstring, optimizer_class, refuse_inexact, string
from mupscale.recipes.exports.names import LLAMA_LIKE, llama_like
from mupscale.recipes.exports.schedules import ExportedSchedule, exported_schedule
from mupscale.recipes.recipe import Recipe
from mupscale.recipes.rows import RecipeRow

_USE = (
    "For Megatron-LM with megatron-core 0.16. Save it as recipe.py; `python recipe.py` prints the "
    "flags. The flags alone only cover matrices that train at --lr. The rest needs two lines in "
    "your pretraining script:",
    "    megatron.training.training.get_standard_config_overrides = recipe.config_overrides",
    "    recipe.rescale_(model)  # in the model provider, after GPTModel(...)",
    "As always in Megatron, warmup starts at zero and the decay ends one step after the last.",
)

_DRAWN_RIGHT = ("embed_tokens", "q_proj", "k_proj", "v_proj", "gate_proj")
"""Weights that the flags already draw with the recipe's std."""

_FUNCTIONS = '''
def config_overrides(config: OptimizerConfig) -> dict[ParamKey, ParamGroupOverride]:
    """Replaces get_standard_config_overrides for get_megatron_optimizer."""
    overrides: dict[ParamKey, ParamGroupOverride] = {}
    for number, (names, values) in enumerate(GROUPS, start=2):
        # Checkpoints identify groups by lr_mult; Megatron does not multiply by it.
        label = {"lr_mult": float(number), "min_lr": FLOOR * values["max_lr"]}
        overrides[ParamKey(name=tuple(f"*{name}" for name in names))] = {**label, **values}
    return overrides


@torch.no_grad()
def rescale_(model: nn.Module) -> None:
    """Turn Megatron's initial weights, drawn with these flags, into the recipe's. Call it once."""
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
            f"the export megatron supports AdamW; the study trained with {recipe.plan.optimizer}."
        )
    rows = llama_like(recipe, "megatron")
    parts = [
        docstring(recipe, [*_USE, *_not_expressed(recipe, rows)]),
        _IMPORTS.strip(),
        _arguments(recipe, rows),
        _groups(recipe, rows["q_proj"]),
        _factors(recipe, rows),
        _FUNCTIONS.rstrip(),
    ]
    return "\n\n".join(parts) + "\n"


def _not_expressed(recipe: Recipe, rows: Mapping[str, RecipeRow]) -> list[str]:
    """What Megatron cannot express of this recipe."""
    query, key = rows["q_proj"], rows["k_proj"]
    found: list[str] = []
    if query.lr != key.lr:
        found.append(
            f"NOT EXPRESSED: keys and values should train at {key.lr:.4g} (weight decay "
            f"{key.weight_decay:.4g}), {key.lr / query.lr:.4g} times the rate of queries. Megatron "
            "keeps the three in one tensor, linear_qkv, so all of it trains at "
            f"{query.lr:.4g}, as under complete-p. If the study swept complete-p, use --rule "
            "complete-p: Megatron can follow that recipe."
        )
    found.append(
        "Gradient clipping is off: Megatron would measure the norm of folded weights."
        if not recipe.training.clip
        else "NOT EXPRESSED: the recipe clips gradients by their norm in the base's units. "
        "Megatron would measure the norm of folded weights, so clipping is off here."
    )
    return found


def _arguments(recipe: Recipe, rows: Mapping[str, RecipeRow]) -> str:
    length, reference = recipe.length, rows["q_proj"]
    floor, schedule = recipe.training.floor, exported_schedule(recipe)
    assert recipe.betas is not None
    assert floor is not None
    flags: dict[str, object] = {
        "optimizer": "adam",
        "lr": reference.lr,
        "min-lr": floor * reference.lr,
        "lr-decay-style": schedule.megatron,
        "train-iters": length.steps,
        "lr-decay-iters": length.steps,
        **({} if recipe.decay_steps is None else _at_the_end(recipe, schedule)),
        "lr-warmup-iters": length.warmup,
        "global-batch-size": length.batch_sequences,
        "seq-length": length.sequence,
        "weight-decay": reference.weight_decay,
        "adam-beta1": recipe.betas[0],
        "adam-beta2": recipe.betas[1],
        "adam-eps": reference.eps,
        "clip-grad": 0.0,
        "init-method-std": reference.std,
        "embedding-init-method-std": rows["embed_tokens"].std,
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    words.append("--untie-embeddings-and-output-weights")
    lines = (f"    {string(word)}," for word in words)
    return "\n".join([f"FLOOR = {floor!r}", "ARGUMENTS = [", *lines, "]"])


def _at_the_end(recipe: Recipe, schedule: ExportedSchedule) -> dict[str, object]:
    """A decay of the last steps. Without a style, Megatron would decay exponentially."""
    return {
        "lr-wsd-decay-style": schedule.megatron_wsd,
        "lr-wsd-decay-iters": recipe.decay_steps,
    }


def _groups(recipe: Recipe, reference: RecipeRow) -> str:
    """Values that differ from the flags. A tensor of several parameters gets the first one's."""
    merged: dict[tuple[float | None, ...], list[str]] = {}
    seen: set[str] = set()
    for row in recipe.rows:
        names = [name for name in LLAMA_LIKE[row.pattern].megatron if name not in seen]
        seen.update(names)
        values = (row.lr, row.weight_decay, row.eps)
        if names and values != (reference.lr, reference.weight_decay, reference.eps):
            merged.setdefault(values, []).extend(names)
    lines = ["# Groups that differ from the flags: names and values.", "GROUPS = ["]
    for (lr, decay, eps), names in merged.items():
        wd = {"wd_mult": 0.0} if not decay else {"start_wd": decay, "end_wd": decay}
        values = {"max_lr": lr, **wd, "eps": eps}
        pairs = [f'"{key}": {value!r}' for key, value in values.items()]
        own = [*_listed("[]", [string(name) for name in names]), *_listed("{}", pairs)]
        lines += ["    (", *(f"        {line}" for line in own), "    ),"]
    return "\n".join([*lines, "]"])


def _listed(brackets: str, items: Sequence[str]) -> list[str]:
    """On one line, or one item per line."""
    first, last = brackets
    whole = f"{first}{', '.join(items)}{last},"
    if len(whole) + 8 <= LINE:
        return [whole]
    return [first, *(f"    {item}," for item in items), f"{last},"]


def _factors(recipe: Recipe, rows: Mapping[str, RecipeRow]) -> str:
    """Wanted std over drawn std. Megatron draws the ends of branches with std/√(2 × layers)."""
    drawn, ends = rows["q_proj"].std, math.sqrt(2 * recipe.shape.depth)
    assert drawn is not None
    lines: list[str] = []
    for name, row in rows.items():
        if row.std is not None and name not in _DRAWN_RIGHT:
            factor = row.std / drawn * (ends if name in ("o_proj", "down_proj") else 1.0)
        else:
            factor = row.start if row.start is not None else 1.0
        if factor != 1:
            lines += [
                f"    {string(other)}: {factor!r}," for other in LLAMA_LIKE[row.pattern].megatron
            ]
    return "\n".join(["# Factors on Megatron's initial weights.", "FACTORS = {", *lines, "}"])
