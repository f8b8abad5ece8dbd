"""Tensors that several ranks share (DTensor): the part here, the whole, and the way back.

Recognised by what they can do, as importing torch.distributed.tensor takes more than half a second.
"""

from typing import Any, cast

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def aligned(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor`, cut between the ranks as `like` is: itself if it is cut so already."""
    if not is_sharded(like) or cast(Any, tensor).placements == cast(Any, like).placements:
        return tensor
    return cast(Any, tensor).redistribute(cast(Any, like).device_mesh, cast(Any, like).placements)


def local(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of `tensor` on this rank, cut as `like` is: a view if it is cut so already."""
    return cast(Any, aligned(tensor, like)).to_local() if is_sharded(like) else tensor


def with_whole_matrices(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor` with every matrix whole: this rank's part if no matrix of `like` is cut, else all of
    it, gathered.
    """
    if not is_sharded(like):
        return tensor
    return cast(Any, tensor).full_tensor() if cuts_matrices(like) else local(tensor, like)


def cuts_matrices(tensor: Tensor) -> bool:
    """Whether some matrix (the last two axes) is on several ranks; stacked experts often are cut
    between matrices.
    """
    placements = cast(Any, tensor).placements
    return not all(
        p.is_replicate() or (p.is_shard() and p.dim < tensor.ndim - 2) for p in placements
    )


def write_back_(target: Tensor, values: Tensor) -> None:
    """Write what `with_whole_matrices(target, target)` gave, and was changed since, to where it
    came from.
    """
    if not is_sharded(target) or not cuts_matrices(target):
        return  # `values` is the target itself, or a view of it
    from torch.distributed.tensor import DTensor, Replicate

    shared = cast(DTensor, target)
    everywhere = DTensor.from_local(
        values, shared.device_mesh, [Replicate()] * shared.device_mesh.ndim
    )
    shared.copy_(everywhere.redistribute(shared.device_mesh, shared.placements))
