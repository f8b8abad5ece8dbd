"""Tensors that are sharded over ranks (DTensor): the local part, the whole, and writing back."""

from typing import Any, cast

from torch import Tensor

from mupscale.norms.matrices import is_sharded


def aligned(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor` with the sharding of `like`; itself if it has that already."""
    if not is_sharded(like) or cast(Any, tensor).placements == cast(Any, like).placements:
        return tensor
    return cast(Any, tensor).redistribute(cast(Any, like).device_mesh, cast(Any, like).placements)


def local(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of `tensor` on this rank, sharded like `like`; a view if it already is."""
    return cast(Any, aligned(tensor, like)).to_local() if is_sharded(like) else tensor


def with_whole_matrices(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor` with every matrix whole: the local part if no matrix of `like` is split, otherwise
    gathered.
    """
    if not is_sharded(like):
        return tensor
    return cast(Any, tensor).full_tensor() if cuts_matrices(like) else local(tensor, like)


def cuts_matrices(tensor: Tensor) -> bool:
    """Whether a matrix (the last two axes) is split over ranks; stacked experts usually are not."""
    placements = cast(Any, tensor).placements
    return not all(
        p.is_replicate() or (p.is_shard() and p.dim < tensor.ndim - 2) for p in placements
    )


def write_back_(target: Tensor, values: Tensor) -> None:
    """Write changed `values` of `with_whole_matrices(target, target)` back to `target`."""
    if not is_sharded(target) or not cuts_matrices(target):
        return  # `values` is the target itself, or a view of it
    from torch.distributed.tensor import DTensor, Replicate

    mesh = target.device_mesh
    everywhere = DTensor.from_local(values, mesh, [Replicate()] * mesh.ndim)
    target.copy_(everywhere.redistribute(mesh, target.placements))
