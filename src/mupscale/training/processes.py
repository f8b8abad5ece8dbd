"""One process or many: this process's rank, how a model is sharded, and how its tensors are
gathered.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mupscale.errors import OptionError
from mupscale.models import GPT
from mupscale.norms.matrices import is_sharded
from mupscale.planning.rows import local_part
from mupscale.training.config import Machine
from mupscale.training.devices import device_named


@dataclass(frozen=True)
class Processes:
    """The place of this process among those that torchrun started."""

    rank: int
    ranks: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def mean(self, value: Tensor) -> Tensor:
        if self.ranks > 1:
            dist.all_reduce(value, op=dist.ReduceOp.SUM)
            value /= self.ranks
        return value

    def agreed(self, number: int) -> int:
        """The largest number of all ranks, so that all act alike: a signal may reach some ranks a
        step later.
        """
        if self.ranks == 1:
            return number
        largest = torch.tensor(number, device=self.device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest.item())

    def wait(self) -> None:
        if self.ranks > 1:
            dist.barrier()


@contextmanager
def joined(machine: Machine) -> Generator[Processes]:
    """Join the process group described by torchrun's environment variables, if there is one."""
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = device_named(machine.device)
    if device.type == "cuda":
        if device.index is None:  # pyright: ignore[reportUnnecessaryComparison]
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if ranks > 1 and machine.shard == "none":
        raise OptionError(
            f"{ranks} processes, but machine.shard = none. Choose ddp or fsdp (--shard ddp)."
        )
    if machine.shard == "none":
        yield Processes(0, 1, device)
        return
    if "WORLD_SIZE" not in os.environ:
        raise OptionError(
            f"machine.shard = {machine.shard} needs several processes. Start them with torchrun -m "
            "mupscale train …"
        )
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(rank, ranks, device)
        dist.barrier()  # gloo may abort a rank whose peers have left before it
    finally:
        dist.destroy_process_group()


def shared(model: GPT, machine: Machine, processes: Processes) -> nn.Module:
    """The model on this process's device, wrapped or sharded, with uninitialized weights."""
    if machine.shard == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    model.to_empty(device=processes.device)
    if machine.shard == "ddp":
        # Every rank draws the same weights, so none have to be broadcast.
        return DistributedDataParallel(model)
    return model


def whole(tensor: Tensor) -> Tensor:
    """A tensor on the CPU, gathered from all ranks if it is sharded. Every rank must call this."""
    full = tensor.full_tensor() if is_sharded(tensor) else tensor
    return full.detach().cpu().contiguous()


@torch.no_grad()
def fill_(tensor: Tensor, value: Tensor) -> None:
    """Set a tensor, or this rank's shard of it, from the whole value."""
    (tensor.to_local() if is_sharded(tensor) else tensor).copy_(_share(tensor, value))


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """A tensor of an optimizer's state, placed like its parameter."""
    if not is_sharded(parameter) or value.shape != parameter.shape:
        return value.to(parameter.device) if value.ndim else value
    from torch.distributed.tensor import DTensor

    local = _share(parameter, value).to(parameter.device).clone()
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def _share(tensor: Tensor, value: Tensor) -> Tensor:
    """The shard of this rank. Nothing is sent: every rank has the whole value."""
    if not is_sharded(tensor):
        return value
    _, shape, offset = local_part(tensor)
    ends = zip(offset, shape, strict=True)
    return value[tuple(slice(start, start + length) for start, length in ends)]
