"""What a parameter must get, from the formulas of maximal-update parametrization alone: nothing
here asks mupscale.

Everything is a ratio to the base: `m` of a matrix's own fan-in, `n` of the width, `L` of the depth.
AdamW with decay coupled to the rate. Three facts give all of it:

- A hidden matrix reads `m` times as many inputs: std 1/√m keeps its output, a step of Adam, whose
  entries all have the size of the rate and act together, needs 1/m, and rate × decay stays what it
  was.
- A gradient's entry has the size 1/n, over L inside of a residual branch that is multiplied by 1/L;
  one that every feature adds to (a bias of logits, a gain that all heads share) has the size 1.
  Epsilon follows it.
- A factor `a` of the forward pass moves into the weight exactly: W' = aW has gradients g' = g/a.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Numbers:
    """Factors on the base's standard deviation, rate, decay and epsilon."""

    lr: float
    decay: float
    eps: float
    std: float | None = None
    """None for what is not drawn."""
    moved: float = 1.0
    """The factor of the forward pass that is part of them: what is not drawn acts as this many
    times what it was.
    """

    def times(self, factor: float) -> "Numbers":
        """With a factor of the forward pass moved into the weight."""
        std = None if self.std is None else self.std * factor
        return Numbers(
            self.lr * factor, self.decay / factor, self.eps / factor, std, self.moved * factor
        )


def hidden(m: float, n: float | None = None, L: float = 1) -> Numbers:
    """A matrix from features to features; `n` where the width is not its fan-in."""
    return Numbers(1 / m, m, 1 / ((m if n is None else n) * L), 1 / math.sqrt(m))


def ends_branch(m: float, n: float | None = None, L: float = 1) -> Numbers:
    """The last matrix of a residual branch, which carries the branch's 1/L."""
    return hidden(m, n, L).times(1 / L)


def embedding(n: float, L: float = 1) -> Numbers:
    """A fixed number of inputs: tokens, positions, patches, mel bands. Looked up or multiplied, the
    same.
    """
    return Numbers(1, 1, 1 / (n * L), 1)


def readout(n: float) -> Numbers:
    """Features to a fixed number of outputs, with 1/n in front."""
    return Numbers(1, 1, 1 / n, 1).times(1 / n)


def vector(n: float, L: float = 1) -> Numbers:
    """A gain or bias with one entry for each feature."""
    return Numbers(1, 0, 1 / (n * L))


def fixed_vector(L: float = 1) -> Numbers:
    """A gain or bias whose length does not depend on the width."""
    return Numbers(1, 0, 1 / L)


def shared(
    m: float, r: float, base_r: float, L: float = 1, inner: float = 1, base_inner: float = 1
) -> Numbers:
    """Keys and values that r query heads share. `inner` is heads × head_dim over the width."""

    def factor(repetitions: float, of_width: float) -> float:
        return (1 + math.sqrt(repetitions / of_width)) / (1 + math.sqrt(1 / of_width))

    kv = factor(r, inner) / factor(base_r, base_inner)
    own = hidden(m, L=L)
    return Numbers(own.lr * kv, own.decay / kv, own.eps, own.std)
