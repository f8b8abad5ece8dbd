"""The spectral norm of each matrix in a stack, to a given relative error, with a warm start."""

import itertools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.norms.block_power import ROWS, SAFE_MAX, SAFE_MIN, block_power, by_trace
from mupscale.norms.gram import SQUARED_UP_TO, gram_matrix, root_of_top
from mupscale.norms.matrices import as_matrices, check_finite

Method = Literal["auto", "exact", "power", "gram"]
METHODS: tuple[Method, ...] = get_args(Method)
# For smaller matrices, the Gram matrix is no slower than two projections onto a start.
_WORTH_A_TRY = 4 * ROWS


@dataclass(frozen=True, eq=False)
class SpectralNorm:
    """The norms and a bound on their relative error (rounding aside), both in the shape of the
    stack.

    Pass `start` to the next call for a similar matrix. If `power` gave the answer, its first row is
    the top right singular vector. `method` gave the answer; if the matrices of a stack differ, it
    names all methods.
    """

    value: Tensor
    relative_error: Tensor
    start: Tensor
    method: str

    def __float__(self) -> float:
        if self.value.ndim:
            raise DimensionError(
                f"float() needs one norm, not a stack of {tuple(self.value.shape)}. Use .value."
            )
        return float(self.value)


class _Found(NamedTuple):
    norm: float
    relative_error: float
    start: Tensor
    method: str


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
    - `power`: block power iteration from `start`, the `.start` of a similar matrix. It is certified
      with random directions (see `block_power`): a bad start costs time, not accuracy. The bound
      fails with a probability of at most 1e-6. If three rounds do not certify a flat spectrum,
      `gram` is used.
    - `auto`: the fastest for the shape: `exact` for tiny matrices, `gram` up to 256 rows or columns
      (unless `start` settles it at once), otherwise `power`.

    Half precision is computed in float32. Gram matrices cannot resolve an `rtol` below 100 machine
    epsilons, which therefore uses the SVD. Nothing is kept between calls. Without a `generator`,
    the random directions are seeded from entries of `W`: the same call gives the same result, and
    the directions are independent of those that led to `start`. torch's global random state is not
    used.

    >>> W = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    >>> round(float(spectral_norm(W)), 3)
    3.0
    >>> before = spectral_norm(W, "power")
    >>> round(float(spectral_norm(1.01 * W, "power", start=before.start)), 3)
    3.03
    """
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    if not 0 < rtol < 1:
        raise OptionError(f"rtol={rtol} must be between 0 and 1 (default: 1e-3).")
    matrices = as_matrices(W)
    starts = _usable_start(start, matrices)
    chosen = _choose(method, matrices, rtol)
    if matrices.ndim == 2:
        return _single(_norm(matrices, chosen, rtol, starts, generator), matrices)
    found = [
        _norm(matrices[i], chosen, rtol, None if starts is None else starts[i], generator, i)
        for i in itertools.product(*map(range, matrices.shape[:-2]))
    ]
    return _stacked(found, matrices)


def _own_generator(W: Tensor) -> torch.Generator:
    """A generator seeded from up to 64 entries of `W`."""
    # A fixed seed would test a start with the same directions that led to it, which proves nothing.
    entries = W.reshape(-1)[:: -(-W.numel() // 64)].tolist()
    return torch.Generator(W.device).manual_seed(hash(tuple(entries)))


def _usable_start(start: Tensor | None, W: Tensor) -> Tensor | None:
    if start is None:
        return None
    rows = as_matrices(start, "start")
    if rows.shape[:-2] != W.shape[:-2] or rows.shape[-1] != W.shape[-1]:
        wanted = ", ".join(map(str, (*W.shape[:-2], "any", W.shape[-1])))
        raise DimensionError(
            f"start has shape {tuple(rows.shape)}, but W {tuple(W.shape)} needs ({wanted}): "
            "pass the .start of a matrix of the same shape."
        )
    return rows.to(W)


def _choose(method: Method, W: Tensor, rtol: float) -> Method:
    # A Gram matrix squares the singular values, and its rounding errors add up over the sum: below
    # about 100 epsilons the norm that it gives is noise.
    if rtol < 100 * torch.finfo(W.dtype).eps:
        return "exact"
    if method != "auto":
        return method
    rows, columns = W.shape[-2:]
    # Here LAPACK's SVD takes microseconds, less than the calls that the other methods need.
    if min(rows, columns) <= 16 or rows * columns <= 2048:
        return "exact"
    return "auto" if min(rows, columns) <= SQUARED_UP_TO else "power"


def _norm(
    W: Tensor,
    method: Method,
    rtol: float,
    start: Tensor | None,
    generator: torch.Generator | None,
    index: tuple[int, ...] = (),
) -> _Found:
    # The common case first: looking for NaN, infinity or an awkward scale before every norm would
    # read the matrix once more. A failed attempt is the sign that one of them is there.
    found = _attempt(W, method, rtol, start, generator)
    if found is not None:
        return found
    check_finite(W, f"W{list(index) or ''}")
    size = float(W.abs().amax())
    if size == 0:
        return _Found(0.0, 0.0, _padded(W), "gram" if method == "auto" else method)
    found = _attempt(W / size, method, rtol, start, generator)
    assert found is not None, (
        "a matrix with largest entry 1 has a trace between 1 and its number of entries"
    )
    return found._replace(norm=found.norm * size)


def _attempt(
    W: Tensor, method: Method, rtol: float, start: Tensor | None, generator: torch.Generator | None
) -> _Found | None:
    """The norm, or None if `W` must be rescaled or is not finite."""
    if method == "exact":
        return _exact(W, start)
    if method == "power":
        generator = generator or _own_generator(W)
        found = block_power(W, _mixed(start, W, generator), rtol, generator)
        if found is None or found[1] <= rtol:
            return found and _Found(*found, method)
        start = found[2]  # not certified, but the best start there is
    if method == "auto" and start is not None and min(W.shape) > _WORTH_A_TRY:
        found = by_trace(W, _mixed(start, W, generator or _own_generator(W)), rtol)
        if found is not None:
            return _Found(*found, "power")
    return _gram(W, rtol, start)


def _exact(W: Tensor, start: Tensor | None) -> _Found | None:
    if not math.isfinite(float(W.sum())):
        return None
    return _Found(
        float(torch.linalg.matrix_norm(W, 2)), 0.0, _padded(W if start is None else start), "exact"
    )


def _gram(W: Tensor, rtol: float, start: Tensor | None) -> _Found | None:
    G = gram_matrix(W)
    trace = float(G.trace())
    # Outside these bounds a square has overflowed or underflowed; `_norm` rescales and tries again.
    if not SAFE_MIN < trace < SAFE_MAX:
        return None
    norm, error, power = root_of_top(G, trace, rtol)
    if start is None:  # rows of a power of the Gram matrix are the result of that many power steps
        start = power[:ROWS] if W.shape[0] >= W.shape[1] else power[:ROWS] @ W
    return _Found(norm, error, _padded(start), "gram")


def _mixed(start: Tensor | None, W: Tensor, generator: torch.Generator) -> Tensor:
    """`ROWS` rows: those of `start` that are neither zero nor NaN, and random ones for the rest.

    The last is always random: a start may lie in the null space of W.
    """
    wanted = min(ROWS, W.shape[1])
    # One row fewer than wanted, which leaves room for the random one.
    before = W[:0] if start is None else start[: wanted - 1]
    lengths = torch.linalg.vector_norm(before, dim=1)
    before = before[(lengths > 0) & (lengths < math.inf)]
    fresh = torch.randn(
        wanted - before.shape[0], W.shape[1], dtype=W.dtype, device=W.device, generator=generator
    )
    return torch.cat([before, fresh])


def _padded(rows: Tensor) -> Tensor:
    """The first `ROWS` rows (at most as many as columns), padded with zeros."""
    wanted = min(ROWS, rows.shape[1])
    missing = wanted - rows.shape[0]
    return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows[:wanted]


def _single(found: _Found, W: Tensor) -> SpectralNorm:
    value, relative_error = W.new_tensor(found[:2]).unbind()
    return SpectralNorm(value, relative_error, found.start.clone(), found.method)


def _stacked(found: list[_Found], W: Tensor) -> SpectralNorm:
    stack = W.shape[:-2]
    value, relative_error = (W.new_tensor([one[k] for one in found]).reshape(stack) for k in (0, 1))
    start = torch.stack([one.start for one in found]).reshape(*stack, -1, W.shape[-1])
    return SpectralNorm(
        value, relative_error, start, method="+".join(sorted({one.method for one in found}))
    )
