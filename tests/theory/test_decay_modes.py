"""The decay that a row of the registry states is that of its class."""

import pkgutil

import pytest
import torch

from mupscale.theory import OPTIMIZERS

ELEMENTWISE = [name for name, row in OPTIMIZERS.items() if row.torch_class and row.elementwise]
LR, DECAY = 0.1, 0.3
W = torch.tensor([1.0, -2.0, 3.0, -1.0], dtype=torch.float64)
GRADIENT = torch.full_like(W, 0.1)  # the decay outweighs it, and often has the other sign


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_class_decays_as_the_row_says(name):
    def stepped(gradient: torch.Tensor, decay: float) -> torch.Tensor:
        weight = torch.nn.Parameter(W.clone())
        weight.grad = gradient.clone()
        make = pkgutil.resolve_name(OPTIMIZERS[name].torch_class)
        make([weight], lr=LR, weight_decay=decay).step()
        return weight.detach()

    expected = {
        "l2": stepped(GRADIENT + DECAY * W, 0.0),
        "lr_coupled": stepped(GRADIENT, 0.0) - LR * DECAY * W,
    }[OPTIMIZERS[name].decay]
    assert torch.allclose(stepped(GRADIENT, DECAY), expected, rtol=0, atol=1e-6)


def test_every_kind_of_decay_is_among_them():
    assert {OPTIMIZERS[name].decay for name in ELEMENTWISE} == {"l2", "lr_coupled"}
