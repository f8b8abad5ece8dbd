"""A layer that mupscale does not know: describe it in a dozen lines, derive its rule, and put the
numbers into the plan.

The feed-forward part is gated, and r neighbouring channels share one gate, as query heads share a
key/value head.

python examples/custom_unit.py
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu

import mupscale
from mupscale.errors import MupscaleError
from mupscale.theory import Dense, Dimension, Residual, Unit, derive


class Block(nn.Module):
    def __init__(self, width: int, r: int) -> None:
        super().__init__()
        self.r, self.norm = r, nn.RMSNorm(width)
        self.shared_gate = nn.Linear(width, 4 * width // r, bias=False)
        self.up_proj = nn.Linear(width, 4 * width, bias=False)
        self.down_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        gate = silu(self.shared_gate(y)).repeat_interleave(self.r, dim=-1)
        return x + self.down_proj(gate * self.up_proj(y))


class Model(nn.Module):
    """Predicts the next byte from this one."""

    def __init__(self, width: int, layers: int, r: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.blocks = nn.Sequential(*(Block(width, r) for _ in range(layers)))
        self.norm, self.readout = nn.RMSNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.readout(self.norm(self.blocks(self.tokens(ids))))


@dataclass(frozen=True)
class SharedGate(Unit):
    """A dense matrix of d_ff rows, of which only d_ff/r are stored: each is used r times."""

    d_ff: Dimension
    n: Dimension
    r: Dimension
    standing = "extrapolated"
    remark = "a shared gate is assumed to act like a shared key/value head"

    def shape(self):
        return self.d_ff / self.r, self.n

    def reference(self):
        return Dense(self.d_ff, self.n)


base, model = Model(width=32, layers=1, r=1), Model(width=128, layers=2, r=4)
try:
    mupscale.plan(model, base=base)
except MupscaleError as error:  # the gate has no role yet, and mupscale does not guess
    print(error)

# A role gives the gate its place in the model; the unit then gives it its numbers.
plan = mupscale.plan(model, base=base, roles={"*.shared_gate.weight": "hidden"})
gate = Residual(SharedGate("d_ff", "n", "r"), "L", output=False)  # inside a branch, not its end
scaling = derive(gate, "adamw")
print(scaling)
own = scaling.evaluate(
    base={"d_ff": 128, "n": 32, "r": 1, "L": 1},
    target={"d_ff": 512, "n": 128, "r": 4, "L": 2},
)
values = {"init_std": own.init_std, "lr": own.lr, "weight_decay": own.weight_decay, "eps": own.eps}
gates = {name: replace(p, **values) for name, p in plan.parameters.items() if "shared_gate" in name}
plan = replace(plan, parameters={**plan.parameters, **gates})  # a new plan; plans are immutable

plan.initialize_(model, std={"default": 0.18, "embedding": 0.1}, seed=0)
optimizer = torch.optim.AdamW(plan.param_groups(model, lr=2**-7, weight_decay=0.1))
text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
for step in range(40):
    tokens = torch.stack([text[i : i + 65] for i in torch.randint(len(text) - 65, (8,))])
    loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    plan.clip_grad_norm_(model, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0 or step == 39:
        print(f"step {step}: loss {loss.item():.3f}")
plan.verify(optimizer, model=model, lr=2**-7, weight_decay=0.1)
