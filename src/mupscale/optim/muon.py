"""Muon (Jordan 2024) for tensors that hold several matrices: fused, transposed, or stacked."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mupscale.errors import OptionError, UnknownNameError
from mupscale.optim.groupwise import GroupwiseOptimizer
from mupscale.optim.layouts import Block, as_matrices, blocks_of, check_axes, check_blocks
from mupscale.optim.options import Group, check_number, check_numbers, label
from mupscale.optim.orthogonal import LR_RATIOS, NS_COEFFICIENTS, lr_ratio, orthogonalized
from mupscale.optim.sharding import aligned, with_whole_matrices, write_back_


class Muon(GroupwiseOptimizer):
    """torch.optim.Muon, with the same arguments and state, that steps every matrix in a tensor
    separately.

    In addition to the constructor's settings, a group may describe the layout of its tensors:

    - `out_axis`: the axis of outputs, one of the last two (default: the first of these). A tensor
      with three axes is a stack of matrices.
    - `blocks`: for a fused tensor, (slices, lr_ratio, decay_ratio) for each matrix in it. `slices`
      are (start, stop) along the output axis; the ratios multiply the group's `lr` and
      `weight_decay`. Every row is in one block.

    `adjust_lr_fn` is "original" (also None), "match_rms_adamw" or "spectral"; it uses the shape of
    each matrix.

    Q with 4 rows, then K and V with 2 rows each and twice the rate. The size of a step does not
    depend on the size of the gradient:

    >>> wqkv = torch.nn.Parameter(torch.zeros(8, 4))
    >>> blocks = [([(0, 4)], 1.0, 1.0), ([(4, 6)], 2.0, 1.0), ([(6, 8)], 2.0, 1.0)]
    >>> optimizer = Muon([{"params": [wqkv], "blocks": blocks}], lr=1.0, adjust_lr_fn="spectral")
    >>> wqkv.grad = torch.cat([torch.eye(4), 10 * torch.eye(2, 4), 1000 * torch.eye(2, 4)])
    >>> optimizer.step()
    >>> [round(float(torch.linalg.matrix_norm(W, 2)), 1) for W in wqkv.detach().split([4, 2, 2])]
    [0.8, 1.6, 1.6]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = NS_COEFFICIENTS,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "out_axis": None,
            "blocks": None,
        }
        super().__init__(params, defaults)

    def check_group(self, group: Group) -> None:
        check_settings(group)
        for index, param in enumerate(group["params"]):
            name = label(group, index)
            check_axes(param.shape, group["out_axis"], name)
            check_blocks(group["blocks"], as_matrices(param, group["out_axis"]).size(-2), name)

    def step_group_(self, group: Group, params: list[Tensor]) -> None:
        for p in params:
            update = with_whole_matrices(self._momentum_(p, group), like=p)
            weights = with_whole_matrices(p, like=p)
            step_matrices_(
                as_matrices(weights, group["out_axis"]),
                as_matrices(update, group["out_axis"]),
                group,
            )
            write_back_(p, weights)

    def _momentum_(self, p: Tensor, group: Group) -> Tensor:
        """Update the momentum; returns the matrix to orthogonalize."""
        assert p.grad is not None
        state, momentum = self.state[p], group["momentum"]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(
                p, dtype=p.grad.dtype, memory_format=torch.preserve_format
            )
        buffer, grad = state["momentum_buffer"], aligned(p.grad, like=p)
        buffer.lerp_(grad, 1 - momentum)
        return grad.lerp(buffer, momentum) if group["nesterov"] else buffer


def check_settings(group: Group) -> None:
    check_number("lr", group["lr"], example=1e-3)
    check_number("weight_decay", group["weight_decay"], example=0.1)
    check_number("momentum", group["momentum"], example=0.95, below=1)
    check_numbers("ns_coefficients", group["ns_coefficients"], example=NS_COEFFICIENTS)
    check_number("eps", group["eps"], example=1e-7)
    if group["eps"] == 0:
        raise OptionError(
            "eps=0 divides a gradient of zeros by zero. Give a small number such as 1e-7."
        )
    if type(group["ns_steps"]) is not int or not 0 <= group["ns_steps"] < 100:
        raise OptionError(
            f"ns_steps={group['ns_steps']!r} must be a whole number from 0 to 99, such as 5."
        )
    if group["adjust_lr_fn"] is not None and group["adjust_lr_fn"] not in list(LR_RATIOS):
        raise UnknownNameError("adjust_lr_fn", group["adjust_lr_fn"], LR_RATIOS)


def step_matrices_(weights: Tensor, update: Tensor, group: Group) -> None:
    """Step `weights` (…, out, in) block by block."""
    for block in blocks_of(group["blocks"], weights.size(-2)):
        step_block_(weights, update, block, group)


def step_block_(weights: Tensor, update: Tensor, block: Block, group: Group) -> None:
    """Step the rows of one block as one matrix."""
    slices, block_lr_ratio, decay_ratio = block
    lr = float(group["lr"]) * block_lr_ratio
    # Decay uses the rate before `adjust_lr_fn`, as in torch.
    decay = 1 - lr * (group["weight_decay"] * decay_ratio)
    direction = orthogonalized(
        gathered(update, slices), group["ns_coefficients"], group["ns_steps"], group["eps"]
    )
    n_out, n_in = direction.shape[-2:]
    adjusted_lr = lr * lr_ratio(group["adjust_lr_fn"], n_out, n_in)
    pieces = direction.split([stop - start for start, stop in slices], dim=-2)
    for (start, stop), piece in zip(slices, pieces, strict=True):
        weights[..., start:stop, :].mul_(decay).add_(piece, alpha=-adjusted_lr)


def gathered(matrices: Tensor, slices: Sequence[tuple[int, int]]) -> Tensor:
    """The rows of all slices, one below the other."""
    pieces = [matrices[..., start:stop, :] for start, stop in slices]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-2)
