"""The spectral norm of a matrix, or of each in a stack, to a stated relative error and with a warm start."""

import itertools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.norms.block_power import KEPT, SAFE_MAX, SAFE_MIN, block_power
from mupscale.norms.gram import SQUARED_UP_TO, gram_matrix, root_of_top
from mupscale.norms.matrices import as_matrices, check_finite, whole

Method = Literal["auto", "exact", "power", "gram"]


@dataclass(frozen=True, eq=False)
class SpectralNorm:
    """The norms and a bound on their relative error (rounding aside), both in the shape of the stack.

    `start` belongs into the next call, for a similar matrix. `method` is the one that gave the answer; where matrices
    of a stack differ, all are named.
    """

    value: Tensor
    relative_error: Tensor
    start: Tensor
    method: str

    def __float__(self) -> float:
        if self.value.ndim:
            raise DimensionError(f"float() takes one norm; here are {tuple(self.value.shape)} of them, in .value.")
        return float(self.value)


class _Found(NamedTuple):
    norm: float
    relative_error: float
    start: Tensor
    method: str


@torch.no_grad()
def spectral_norm(
    W: Tensor,
    method: Method = "auto",
    *,
    rtol: float = 1e-3,
    start: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> SpectralNorm:
    """Largest singular value of `W` (…, rows, columns), within `rtol` of the true one.

    - `exact`: torch's SVD.
    - `gram`: deterministic, from the smaller Gram matrix.
    - `power`: block power iteration from `start`, the `.start` of a similar matrix. It is certified with random
      directions (see `block_power`): a stale or misleading start costs time, not accuracy. The bound fails with
      a probability of at most 1e-6. A spectrum too flat to certify in three rounds is left to `gram`.
    - `auto`: what is fastest for the shape: `exact` for tiny matrices, `gram` up to 256 rows or columns, else `power`.

    Half precision is computed in float32. An `rtol` below 100 machine epsilons is finer than Gram matrices can tell
    and computed by SVD. Nothing is remembered between calls. Without a `generator`, each call draws the same
    directions; torch's global random state is not touched either way.

    >>> W = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    >>> round(float(spectral_norm(W)), 3)
    3.0
    >>> before = spectral_norm(W, "power")
    >>> round(float(spectral_norm(1.01 * W, "power", start=before.start)), 3)
    3.03
    """
    if method not in get_args(Method):
        raise UnknownNameError("method", method, get_args(Method))
    if not 0 < rtol < 1:
        raise OptionError(f"rtol={rtol} is not between 0 and 1. Leave it out for 1e-3.")
    matrices = as_matrices(W)
    starts = _usable_start(start, matrices)
    chosen = _choose(method, matrices, rtol)
    generator = generator or torch.Generator(matrices.device)
    found = [
        _norm(matrices[i], chosen, rtol, None if starts is None else starts[i], generator, f"W{list(i) or ''}")
        for i in itertools.product(*map(range, matrices.shape[:-2]))
    ]
    return _stacked(found, matrices)


def _usable_start(start: Tensor | None, W: Tensor) -> Tensor | None:
    if start is None:
        return None
    start = whole(start)
    if start.shape[:-2] != W.shape[:-2] or start.ndim != W.ndim or start.shape[-1] != W.shape[-1]:
        wanted = (*W.shape[:-2], "any", W.shape[-1])
        raise DimensionError(
            f"start has shape {tuple(start.shape)}, but W {tuple(W.shape)} needs ({', '.join(map(str, wanted))}): "
            "pass the .start of a matrix of the same shape, or v[None] for one vector."
        )
    return start.to(W)


def _choose(method: Method, W: Tensor, rtol: float) -> Method:
    if rtol < 100 * torch.finfo(W.dtype).eps:
        return "exact"
    if method != "auto":
        return method
    rows, columns = W.shape[-2:]
    if min(rows, columns) <= 16 or rows * columns <= 2048:
        return "exact"
    return "gram" if min(rows, columns) <= SQUARED_UP_TO else "power"


def _norm(
    W: Tensor, method: Method, rtol: float, start: Tensor | None, generator: torch.Generator, name: str
) -> _Found:
    found = _attempt(W, method, rtol, start, generator)
    if found is not None:
        return found
    check_finite(W, name)
    size = float(W.abs().amax())
    if size == 0:
        return _Found(0.0, 0.0, _padded(W), method)
    found = _attempt(W / size, method, rtol, start, generator)
    assert found is not None, "a matrix with largest entry 1 has a trace between 1 and its number of entries"
    return found._replace(norm=found.norm * size)


def _attempt(
    W: Tensor, method: Method, rtol: float, start: Tensor | None, generator: torch.Generator
) -> _Found | None:
    """The norm, or None if `W` must be rescaled or looked at first."""
    if method == "exact":
        return _exact(W, start)
    if method == "power":
        found = block_power(W, _mixed(start, W, generator), rtol, generator)
        if found is None or found[1] <= rtol:
            return found and _Found(*found, method)
        start = found[2]
    return _gram(W, rtol, start)


def _exact(W: Tensor, start: Tensor | None) -> _Found | None:
    if not math.isfinite(float(W.sum())):
        return None
    return _Found(float(torch.linalg.matrix_norm(W, 2)), 0.0, _padded(W if start is None else start), "exact")


def _gram(W: Tensor, rtol: float, start: Tensor | None) -> _Found | None:
    G = gram_matrix(W)
    trace = float(G.trace())
    if not SAFE_MIN < trace < SAFE_MAX:
        return None
    norm, error, power = root_of_top(G, trace, rtol)
    if start is None:  # rows of a power of the Gram matrix have been through that many power steps
        start = power[:KEPT] if W.shape[0] >= W.shape[1] else power[:KEPT] @ W
    return _Found(norm, error, _padded(start), "gram")


def _mixed(start: Tensor | None, W: Tensor, generator: torch.Generator) -> Tensor:
    """`KEPT` rows: those of `start` that are neither zero nor NaN, and random ones for the rest.

    The last is always random: a start may lie in the null space of W, and something must show how large W is.
    """
    rows = torch.randn(min(KEPT, W.shape[1]), W.shape[1], dtype=W.dtype, device=W.device, generator=generator)
    if start is None:
        return rows
    start = _padded(start)[:-1]
    lengths = torch.linalg.vector_norm(start, dim=1, keepdim=True)
    usable = lengths.isfinite() & (lengths > 0)
    return torch.cat([torch.where(usable, start / lengths, rows[:-1]), rows[-1:]])


def _padded(rows: Tensor) -> Tensor:
    """The first `KEPT` (at most as many as columns), and zeros for those that are missing."""
    wanted = min(KEPT, rows.shape[1])
    return pad(rows[:wanted], (0, 0, 0, wanted - min(wanted, rows.shape[0])))


def _stacked(found: list[_Found], W: Tensor) -> SpectralNorm:
    stack = W.shape[:-2]
    return SpectralNorm(
        value=W.new_tensor([one.norm for one in found]).reshape(stack),
        relative_error=W.new_tensor([one.relative_error for one in found]).reshape(stack),
        start=torch.stack([one.start for one in found]).reshape(*stack, -1, W.shape[-1]),
        method="+".join(sorted({one.method for one in found})),
    )
