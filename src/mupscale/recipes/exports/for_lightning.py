"""Lightning: the PyTorch module plus a `LightningModule`."""

from mupscale.recipes.exports.for_pytorch import module
from mupscale.recipes.recipe import Recipe

_USE = (
    "Needs torch and lightning. Save it as recipe.py. With batches of BATCH sequences in total "
    "over devices and accumulate_grad_batches:",
    "    initialize_(model, seed=0); trainer(devices=8).fit(Training(model), batches)",
)

_BODY = '''
class Training(lightning.LightningModule):
    """Trains a model that returns its loss, as models of transformers do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        loss = self.model(**batch).loss
        self.log("train_loss", loss)
        return loss

{clip}    def configure_optimizers(self) -> dict[str, Any]:
        optimizer, schedule = optimizer_and_schedule(self.model)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def trainer(**others: Any) -> lightning.Trainer:
    """The recipe's steps. The trainer itself does not clip."""
    return lightning.Trainer(max_steps=STEPS, **others)
'''


# Lightning computes gradients inside the optimizer's step: a hook before it would not see them.
_CLIP = """    def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
        clip_(self.model)

"""


def export(recipe: Recipe) -> str:
    """A module with a `LightningModule`."""
    body = _BODY.replace("{clip}", _CLIP if recipe.training.clip else "")
    return module(
        recipe, "lightning", _USE, imported="import lightning", body=body, clip_in_step=False
    )
