"""Random weights that depend only on (seed, parameter name): not on order, sharding or device."""

import hashlib
import math

import torch
from torch import Tensor

from mupscale.errors import OptionError
from mupscale.planning.rows import local_part, row_factors
from mupscale.planning.values import PlannedParameter

_CHUNK = 1 << 22
"""Numbers drawn from one generator: small enough that a shard need not draw the whole matrix."""


@torch.no_grad()
def initialize(
    parameter: PlannedParameter,
    tensor: Tensor,
    *,
    std: float,
    seed: int,
    padding: int | None = None,
) -> None:
    """Draw a parameter with `std` times its factor, set it to its constant, or leave it as it is.

    `padding` is the row of an embedding that stays zero.
    """
    if tensor.is_meta:
        raise OptionError(
            f"{parameter.name} is on the meta device and has no values to set. Materialize the "
            "model first: model.to_empty(device=…)."
        )
    if not parameter.drawn or parameter.kept:
        if parameter.start is not None and parameter.kept != "frozen":
            tensor.fill_(parameter.start)
        return
    local, shape, offset = local_part(tensor)
    precision = torch.promote_types(tensor.dtype, torch.float32)
    drawn = _draw(parameter, shape, offset, seed).to(precision)
    axis = parameter.out_axis
    blocks = [(block.slices, block.init_std * std) for block in parameter.rows]
    scale = row_factors(parameter.shape[axis], blocks, default=parameter.init_std * std)
    scale = scale[offset[axis] : offset[axis] + shape[axis]]
    drawn *= scale.reshape([-1 if k == axis else 1 for k in range(len(shape))]).to(drawn.dtype)
    if padding is not None and 0 <= padding - offset[0] < shape[0]:
        drawn[padding - offset[0]] = 0
    local.copy_(drawn)


def _draw(
    parameter: PlannedParameter, shape: tuple[int, ...], offset: tuple[int, ...], seed: int
) -> Tensor:
    """Standard normal numbers of the part at `offset`; each chunk of rows has its own generator."""
    row = parameter.shape[1:]
    per_chunk = max(1, _CHUNK // max(1, math.prod(row)))
    first, last = offset[0], offset[0] + shape[0]
    part = tuple(
        slice(start, start + length) for start, length in zip(offset[1:], shape[1:], strict=True)
    )
    pieces: list[Tensor] = []
    for chunk in range(first // per_chunk, -(-last // per_chunk)):
        begin = chunk * per_chunk
        rows = min(per_chunk, parameter.shape[0] - begin)
        generator = torch.Generator().manual_seed(parameter_seed(seed, parameter.name, chunk))
        numbers = torch.empty(rows, *row, dtype=torch.float32).normal_(generator=generator)
        pieces.append(numbers[(slice(max(first - begin, 0), min(last - begin, rows)), *part)])
    return torch.cat(pieces) if pieces else torch.empty(shape)


def parameter_seed(seed: int, name: str, chunk: int = 0) -> int:
    """The seed of one chunk of a parameter's numbers."""
    digest = hashlib.sha256(f"{seed}\0{name}\0{chunk}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
