"""Random weights that depend on (seed, parameter name) and nothing else: not on order, sharding or
device.
"""

import hashlib
import math

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from mupscale.errors import OptionError
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
    """Set a parameter: drawn with `std` times its factor, or its constant; one that is kept, or has
    none, is left.

    `padding` is the row of an embedding that stays zero.
    """
    if tensor.is_meta:
        raise OptionError(
            f"{parameter.name} is on the meta device and has no numbers to set. Materialize the "
            "model first: "
            "model.to_empty(device=…)."
        )
    if not parameter.drawn or parameter.kept:
        if parameter.start is not None and parameter.kept != "frozen":
            tensor.fill_(parameter.start)
        return
    local, shape, offset = _local(tensor)
    drawn = _draw(parameter, shape, offset, seed).to(
        torch.promote_types(tensor.dtype, torch.float32)
    )
    scale = torch.full(
        (parameter.shape[parameter.out_axis],), parameter.init_std * std, dtype=torch.float64
    )
    for block in parameter.rows:
        for start, stop in block.slices:
            scale[start:stop] = block.init_std * std
    axis = parameter.out_axis
    scale = scale[offset[axis] : offset[axis] + shape[axis]]
    drawn *= scale.reshape([-1 if k == axis else 1 for k in range(len(shape))]).to(drawn.dtype)
    if padding is not None and 0 <= padding - offset[0] < shape[0]:
        drawn[padding - offset[0]] = 0
    local.copy_(drawn)


def _local(tensor: Tensor) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """The part of a tensor that lives here, its shape, and where it begins in the whole."""
    if not isinstance(tensor, DTensor):
        return tensor, tuple(tensor.shape), (0,) * tensor.ndim
    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tensor.to_local(), tuple(shape), tuple(offset)


def _draw(
    parameter: PlannedParameter, shape: tuple[int, ...], offset: tuple[int, ...], seed: int
) -> Tensor:
    """Standard normal numbers of the part that begins at `offset`: row by row, a chunk of rows from
    one generator.
    """
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
        generator = torch.Generator().manual_seed(_seed(seed, parameter.name, chunk))
        numbers = torch.empty(rows, *row, dtype=torch.float32).normal_(generator=generator)
        pieces.append(numbers[(slice(max(first - begin, 0), min(last - begin, rows)), *part)])
    return torch.cat(pieces) if pieces else torch.empty(shape)


def _seed(seed: int, name: str, chunk: int) -> int:
    digest = hashlib.sha256(f"{seed}\0{name}\0{chunk}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
