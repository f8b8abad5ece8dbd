"""Data for a few training steps: text for models that take tokens, otherwise random inputs from the
seed.

Images are smooth and few. Theory takes updates to be coherent, as they are once a model is much
wider than its data have directions. Patches of noise, or many images, have more directions than
these small models have features.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, mse_loss

from mupscale.checks.probe import Loss, Making
from mupscale.data import Batches, open_corpus

CLASSES = 10


@dataclass(frozen=True)
class Training:
    """Batches and a loss, as `coordinate_check` takes them."""

    data: str | Making = "python-stdlib"
    loss: Loss | None = None


@dataclass(frozen=True)
class Images:
    """(images, labels)."""

    count: int = 4
    size: int = 16

    def __call__(self, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, CLASSES, (self.count,), generator=generator)
        coarse = torch.randn(CLASSES, 3, 3, 3, generator=generator)[labels]
        coarse = coarse + 0.5 * torch.randn(coarse.shape, generator=generator)
        return interpolate(coarse, size=(self.size, self.size), mode="bicubic"), labels


@dataclass(frozen=True)
class Speech:
    """(features, tokens, tokens that follow)."""

    count: int = 4
    bands: int = 8
    frames: int = 64

    def __call__(self, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.count, self.bands, self.frames, generator=generator), *_text(
            self.count, 64, seed
        )


@dataclass(frozen=True)
class Captions:
    """(images, tokens)."""

    count: int = 4

    def __call__(self, seed: int) -> tuple[Tensor, Tensor]:
        images, _ = Images(self.count)(seed)
        return images, _text(self.count, 32, seed)[0]


@dataclass(frozen=True)
class Diffusion:
    """(noisy samples, times, labels, the noise)."""

    count: int = 2

    def __call__(self, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        sample, noise = torch.randn(2, self.count, 4, 8, 8, generator=generator)
        times = torch.randint(0, 1000, (self.count,), generator=generator)
        labels = torch.randint(0, CLASSES, (self.count,), generator=generator)
        share = (times / 1000)[:, None, None, None]
        return (1 - share).sqrt() * sample + share.sqrt() * noise, times, labels, noise


def _text(count: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    inputs, targets = Batches(
        open_corpus("python-stdlib"), batch=count, sequence=length, seed=seed
    ).at(0)
    return inputs, targets


def classified(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    output: Any = model(images)
    return cross_entropy(getattr(output, "logits", output), labels)


def translated(model: nn.Module, batch: Any) -> Tensor:
    return model(input_ids=batch.inputs, labels=batch.targets).loss


def heard(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    features, tokens, targets = batch
    logits = model(input_features=features, decoder_input_ids=tokens, use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def paired(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, tokens = batch
    return model(input_ids=tokens, pixel_values=images, return_loss=True).loss


def denoised(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    noisy, times, labels, noise = batch
    made = model(hidden_states=noisy, timestep=times, class_labels=labels).sample
    return mse_loss(made[:, : noise.shape[1]], noise)


OTHER = {
    "t5": Training(loss=translated),
    "whisper": Training(Speech(), heard),
    "clip": Training(Captions(), paired),
    "diffusers' DiT": Training(Diffusion(), denoised),
    "vit": Training(Images(), classified),
    "timm's ViT": Training(Images(), classified),
    "x-transformers' ViT": Training(Images(), classified),
    "timm's ResNet": Training(Images(), classified),
    "timm's ConvNeXt": Training(Images(2), classified),
}


def training(name: str) -> Training:
    """Of the case of this name."""
    return OTHER.get(name, Training())
