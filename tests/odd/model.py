"""A small language model written by hand: grouped-query attention, no config, and not one name that
is known.

`mupscale.toml` beside this file says what its parameters are.
"""

import json
import textwrap

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, scaled_dot_product_attention, silu

import mupscale

VOCABULARY, HEAD, BATCH, LENGTH, STEPS = 256, 8, 8, 32, 12


class Look(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.book = nn.Parameter(torch.randn(VOCABULARY, width))

    def forward(self, tokens: Tensor) -> Tensor:
        return embedding(tokens, self.book)


class Level(nn.Module):
    """Divides by the root mean square, and does not say so in its name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.knob = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) * self.knob


class Talk(nn.Module):
    def __init__(self, width: int, r: int) -> None:
        super().__init__()
        self.r = r
        self.alpha, self.delta = (
            nn.Linear(width, width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.beta, self.gamma = (
            nn.Linear(width, width // r, bias=False),
            nn.Linear(width, width // r, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._heads(matrix(x)) for matrix in (self.alpha, self.beta, self.gamma))
        k, v = (one.repeat_interleave(self.r, dim=1) for one in (k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.delta(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, HEAD)).transpose(1, 2)


class Think(nn.Module):
    """`tilt` is a gain, but only through its exponential: neither its name nor its use shows what
    it is.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tilt = nn.Parameter(torch.zeros(2 * width))
        self.epsilon = nn.Linear(width, 2 * width, bias=False)
        self.zeta = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.zeta(silu(self.epsilon(x)) * torch.exp(self.tilt))


class Storey(nn.Module):
    def __init__(self, width: int, r: int) -> None:
        super().__init__()
        self.one, self.talk = Level(width), Talk(width, r)
        self.two, self.think = Level(width), Think(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.talk(self.one(x))
        return x + self.think(self.two(x))


class House(nn.Module):
    def __init__(self, width: int, depth: int, r: int) -> None:
        super().__init__()
        self.door = Look(width)
        self.storeys = nn.ModuleList(Storey(width, r) for _ in range(depth))
        self.roof = Level(width)
        self.chimney = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.door(tokens)
        for storey in self.storeys:
            x = storey(x)
        return self.chimney(self.roof(x))


def build(width: int = 32, depth: int = 2, r: int = 2) -> House:
    return House(width, depth, r)


def by_kv_heads(n_kv_heads: int = 2, width: int = 32) -> House:
    """The same by another dimension, as studies may vary it."""
    return House(width, 2, width // HEAD // n_kv_heads)


def train(trial) -> dict[str, float]:
    """A loop of one's own. It says no roles: the plan that the study hands over carries what it was
    made with.
    """
    plan = mupscale.Plan.from_json(json.dumps(trial.plan))
    model = build(**trial.variant)
    plan.initialize_(model, std=0.1, seed=trial.seed)
    optimizer = torch.optim.AdamW(plan.param_groups(model, lr=trial.lr, weight_decay=0.1))
    with open(textwrap.__file__, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    draws = torch.Generator().manual_seed(trial.seed)
    for step in range(1, STEPS + 1):
        starts = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=draws)
        batch = text[starts + torch.arange(LENGTH + 1)]
        loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        trial.report(step, loss.item(), steps=STEPS)
    return {"loss": loss.item(), "tokens": STEPS * BATCH * LENGTH, "steps": STEPS}
