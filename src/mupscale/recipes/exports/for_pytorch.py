"""Plain PyTorch: a table of patterns, the groups, the initialization and the schedule.

`module` also makes the files for trainers that use these.
"""

from collections.abc import Sequence

from mupscale.recipes.exports.code import docstring, optimizer_class, refuse_inexact, spread, string
from mupscale.recipes.exports.schedules import exported_schedule
from mupscale.recipes.recipe import Recipe
from mupscale.training.schedule import SCHEDULES

_USE = (
    "Needs only torch. Save it as recipe.py, then:",
    "    initialize_(model, seed=0); optimizer, schedule = optimizer_and_schedule(model)",
)

_VALUES = '''
class Row(NamedTuple):
    """Values of a parameter: drawn with `std`, set to `start`, or left alone without both."""

    lr: float
    weight_decay: float
    eps: float
    std: float | None = None
    start: float | None = None
'''

_FUNCTIONS = '''
def rows_of(model: nn.Module) -> dict[str, Row]:
    """The row of each parameter. Each must match one pattern, and each pattern a parameter."""
    rows: dict[str, Row] = {}
    unused = set(TABLE)
    for name, _ in model.named_parameters():
        bare = name.replace("_orig_mod.", "").removeprefix("module.")  # torch.compile, DDP
        fitting = [p for p in TABLE if re.fullmatch(re.escape(p).replace(r"\\*", r"\\d+"), bare)]
        if len(fitting) != 1:
            raise ValueError(f"{len(fitting)} patterns match {name}: wrong model for this recipe.")
        rows[name] = TABLE[fitting[0]]
        unused.discard(fitting[0])
    if unused:
        raise ValueError(f"no parameter matches {sorted(unused)}: wrong model for this recipe.")
    return rows


def param_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Groups for the optimizer, one per distinct set of values."""
    parameters = dict(model.named_parameters())
    groups: dict[tuple[float, ...], dict[str, Any]] = {}
    for name, row in rows_of(model).items():
        values = {"lr": row.lr, "weight_decay": row.weight_decay, "eps": row.eps}
        empty: dict[str, Any] = {"params": [], "param_names": [], **values}
        group = groups.setdefault(tuple(values.values()), empty)
        if parameters[name].requires_grad:
            group["params"].append(parameters[name])
            group["param_names"].append(name)
    return [group for group in groups.values() if group["params"]]


@torch.no_grad()
def initialize_(model: nn.Module, seed: int) -> None:
    """Draw the weights and set the gains. Call it before building the optimizer."""
    torch.manual_seed(seed)
    parameters = dict(model.named_parameters())
    for name, row in rows_of(model).items():
        if row.std is not None:
            parameters[name].normal_(0.0, row.std)
        elif row.start is not None:
            parameters[name].fill_(row.start)
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx].zero_()

'''

_FACTOR = '''
def factor(step: int) -> float:
    """Factor on each rate at a step, counted from 0: linear warmup, then {words}."""
    if step < WARMUP:
        return (step + 1) / WARMUP
{done}
    return FLOOR + (1 - FLOOR) * {fall}
'''

_AFTER_WARMUP = "    done = min(1.0, (step - WARMUP) / max(1, STEPS - 1 - WARMUP))"
_AT_THE_END = """
    peak = max(WARMUP, STEPS - 1 - DECAY)  # the last step at the peak rate
    done = min(1.0, max(0, step - peak) / max(1, STEPS - 1 - peak))
""".strip("\n")

_MAKE = '''
def optimizer_and_schedule(model: nn.Module) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Call the schedule's step() after each step of the optimizer."""
    optimizer = torch.optim.{optimizer}(param_groups(model), betas=BETAS)
{clip}    return optimizer, LambdaLR(optimizer, factor)
'''

_CLIP = '''
@torch.no_grad()
def clip_(model: nn.Module) -> None:
    """Scale all gradients so that their norm, in the base's units, is at most CLIP.

    A multiplier folded into a weight divides its gradient, so the norm is multiplied by it again.
    """
    parameters = dict(model.named_parameters())
    folded = {name: row.folded for name, row in rows_of(model).items()}
    gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    norms = [torch.linalg.vector_norm(g) * folded[name] for name, g in gradients.items()]
    scale = CLIP / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)
    for gradient in gradients.values():
        gradient.mul_(scale.clamp(max=1.0))
'''


def export(recipe: Recipe) -> str:
    """A module that a training script imports."""
    return module(recipe, "pytorch", _USE)


def module(
    recipe: Recipe,
    kind: str,
    use: Sequence[str],
    *,
    imported: str = "",
    body: str = "",
    clip_in_step: bool = True,
) -> str:
    """A Python file that needs torch and what the line `imported` imports.

    `clip_in_step` clips in a hook before the optimizer's step; without it, `body` must call clip_.
    """
    refuse_inexact(recipe, kind)
    clip = recipe.training.clip
    hook = "    optimizer.register_step_pre_hook(lambda *_: clip_(model))\n"
    made = _MAKE.replace("{optimizer}", optimizer_class(recipe))
    made = made.replace("{clip}", hook if clip and clip_in_step else "")
    head = [
        docstring(recipe, [*use, _on_clipping(recipe)]),
        _imports(recipe, imported),
        _constants(recipe),
    ]
    parts = [
        "\n\n".join(head),
        _VALUES + ("    folded: float = 1.0" if clip else ""),
        "# Parameter names; * stands for the layer's number.\n" + _table(recipe),
        _FUNCTIONS,
        _factor(recipe),
        _CLIP if clip else "",
        made,
        body,
    ]
    return "\n\n\n".join(part.strip() for part in parts if part) + "\n"


def _factor(recipe: Recipe) -> str:
    """The schedule, which gives the factors of `mupscale.training.schedule`."""
    row = SCHEDULES[recipe.training.schedule]
    text = _FACTOR.replace("{done}", _AT_THE_END if row.stable else _AFTER_WARMUP)
    text = text.replace("{fall}", exported_schedule(recipe).python)
    return text.replace("{words}", f"1, then {row.words}" if row.stable else row.words)


def _imports(recipe: Recipe, more: str) -> str:
    math = "import math\n" if "math." in exported_schedule(recipe).python else ""
    standard = f"{math}import re\nfrom typing import Any, NamedTuple\n"
    torch = "import torch\nfrom torch import nn\nfrom torch.optim.lr_scheduler import LambdaLR"
    others = [*torch.split("\n"), *more.splitlines()]
    others.sort(key=lambda line: (line.startswith("from"), line))
    return "\n".join([standard, *others])


def _constants(recipe: Recipe) -> str:
    length, clip, decay = recipe.length, recipe.training.clip, recipe.decay_steps
    lines = [
        f"STEPS = {length.steps}",
        f"WARMUP = {length.warmup}",
        f"FLOOR = {recipe.training.floor!r}",
        *([] if decay is None else [f"DECAY = {decay}  # steps, at the end of the run"]),
        f"SEQUENCE = {length.sequence}  # tokens",
        f"BATCH = {length.batch_sequences}  # sequences, over all devices",
        f"BETAS = {recipe.betas!r}",
    ]
    return "\n".join([*lines, *([f"CLIP = {clip!r}"] if clip else [])])


def _table(recipe: Recipe) -> str:
    """The patterns of a recipe with their exact values."""
    lines: list[str] = []
    for row in recipe.rows:
        names = ["std", "start", "lr", "weight_decay", "eps"]
        names += ["folded"] if recipe.training.clip and row.folded != 1 else []
        values = ((name, getattr(row, name)) for name in names)
        given = (f"{name}={value!r}" for name, value in values if value is not None)
        lines += spread(f"{string(row.pattern)}: Row", *given)
    return "\n".join(["TABLE = {", *lines, "}"])


def _on_clipping(recipe: Recipe) -> str:
    if recipe.training.clip:
        return (
            "Gradients are clipped before each step, by a norm that folding does not change. Turn "
            "off your trainer's own clipping."
        )
    fact = (
        "The study did not clip gradients"
        if recipe.training.origin["clip"] == "the study"
        else "Gradients are not clipped"
    )
    if any(row.folded != 1 for row in recipe.rows):
        return (
            f"{fact}. Leave clipping off: multipliers are folded into the weights, so torch's "
            "clip_grad_norm_ would measure another norm than on the base."
        )
    return f"{fact}: leave clipping off."
