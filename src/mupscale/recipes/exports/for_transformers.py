"""transformers: the PyTorch module plus a `Trainer`."""

from mupscale.recipes.exports.for_pytorch import module
from mupscale.recipes.recipe import Recipe

_USE = (
    "Needs torch and transformers. Save it as recipe.py, then:",
    '    initialize_(model, seed=0); settings = arguments("out", sequences_per_device=1)',
    "    trainer(model, settings, train_dataset=dataset).train()",
)

_BODY = '''
def arguments(
    folder: str, sequences_per_device: int, devices: int = 1, **others: Any
) -> TrainingArguments:
    """The recipe's steps and batch; the trainer's own clipping is off."""
    at_once = sequences_per_device * devices
    accumulate, rest = divmod(BATCH, at_once)
    if rest:
        near = max(1, round(BATCH / at_once)) * at_once
        raise ValueError(f"BATCH={BATCH} is not a multiple of {at_once}. Set it to {near}.")
    return TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        per_device_train_batch_size=sequences_per_device,
        gradient_accumulation_steps=accumulate,
        max_grad_norm=0.0,
        **others,
    )


def trainer(model: nn.Module, settings: TrainingArguments, **others: Any) -> Trainer:
    """A Trainer with the recipe's optimizer and schedule."""
    return Trainer(model=model, args=settings, optimizers=optimizer_and_schedule(model), **others)
'''


def export(recipe: Recipe) -> str:
    """A module that builds a `Trainer`."""
    imported = "from transformers import Trainer, TrainingArguments"
    return module(recipe, "transformers", _USE, imported=imported, body=_BODY)
