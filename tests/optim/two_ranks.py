"""One of two ranks: steps tensors that both share, and plain copies of them; run by
test_sharding.py.

python two_ranks.py RANK STORE
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.debug import CommDebugMode

from mupscale.optim import Lion, Muon

BLOCKS = [([(0, 5), (9, 11)], 1.0, 1.0), ([(5, 9)], 0.5, 2.0), ([(11, 13)], 2.0, 0.5)]
CASES = [(Lion, {}), (Muon, {}), (Muon, {"nesterov": False}), (Muon, {"blocks": BLOCKS})]


def shared(tensor: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    if isinstance(placement, Partial):  # the sum over ranks is the tensor
        return DTensor.from_local(tensor / mesh.size(), mesh, [placement])
    return distribute_tensor(tensor.clone(), mesh, [placement])


def calls_while_stepping(
    optimizer: type[torch.optim.Optimizer],
    group: dict[str, object],
    shape: tuple[int, ...],
    mesh: DeviceMesh,
    placement: Placement,
    gradient_placements: list[Placement],
) -> list[int]:
    """How often ranks spoke at each step; raises if shared and plain parameters part."""
    torch.manual_seed(1)
    plain = nn.Parameter(torch.randn(shape))
    parted = nn.Parameter(shared(plain.detach(), mesh, placement))
    optimizers = [
        optimizer([{"params": [p], **group}], lr=0.05, weight_decay=0.3) for p in (plain, parted)
    ]
    calls: list[int] = []
    for cut in gradient_placements:
        plain.grad = torch.randn(shape)
        parted.grad = shared(plain.grad, mesh, cut)
        optimizers[0].step()
        with CommDebugMode() as spoken:
            optimizers[1].step()
        calls.append(spoken.get_total_counts())
    state = next(iter(optimizers[1].state.values()))
    assert [buffer.placements for buffer in state.values()] == [(placement,)]
    # A rank with fewer experts multiplies smaller batches, whose last bfloat16 digit can differ.
    torch.testing.assert_close(parted.full_tensor(), plain.detach(), rtol=0, atol=1e-3)
    return calls


def main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(store, 2))
    mesh = init_device_mesh("cpu", (2,))
    for optimizer, group in CASES:
        for placement in (Shard(0), Shard(1), Replicate()):
            for shape in ((13, 7), (5, 13, 7), (1, 13, 7)):
                cuts = [Replicate(), Partial(), placement, placement]
                calls = calls_while_stepping(optimizer, group, shape, mesh, placement, cuts)
                whole_matrices = placement == Replicate() or (
                    placement == Shard(0) and len(shape) == 3
                )
                assert (calls[-1] == 0) == (optimizer is Lion or whole_matrices), (
                    optimizer,
                    placement,
                    shape,
                    calls,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
