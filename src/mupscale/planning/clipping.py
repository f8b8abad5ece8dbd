"""Global gradient clipping that does not depend on where a multiplier was put.

A factor a that was folded into a weight (W' = aW) leaves the gradient g/a; the norm is taken of a·g', which is what the
model with its factors in the forward pass would have. Rows of a fused matrix with a factor c have the gradient c·g.
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from mupscale.errors import NonFiniteError, OptionError
from mupscale.planning.values import PlannedParameter


def clip(
    parameters: Mapping[str, PlannedParameter],
    tensors: Iterable[tuple[str, Tensor]],
    max_norm: float,
    *,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients so that their norm, without what was folded, is at most `max_norm`; returns the norm."""
    if not max_norm > 0 or not math.isfinite(max_norm):
        raise OptionError(f"max_norm={max_norm} is not a positive number.")
    with_gradient = [(parameters[name], tensor) for name, tensor in tensors if tensor.grad is not None]
    norm = _norm(with_gradient)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise NonFiniteError(f"the norm of the gradients is {norm.item()}, so they cannot be clipped.")
    clip_grads_with_norm_([tensor for _, tensor in with_gradient], max_norm, norm)
    return norm


@torch.no_grad()
def _norm(with_gradient: list[tuple[PlannedParameter, Tensor]]) -> Tensor:
    by_factor: dict[float, list[Tensor]] = {}
    for parameter, tensor in with_gradient:
        assert tensor.grad is not None
        by_factor.setdefault(parameter.folded, []).append(_without_row_factors(parameter, tensor.grad))
    norms = [_whole(get_total_norm(gradients)) * factor for factor, gradients in by_factor.items()]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def _without_row_factors(parameter: PlannedParameter, gradient: Tensor) -> Tensor:
    if all(block.multiplier == 1 for block in parameter.rows):
        return gradient
    factors = torch.ones(parameter.shape[parameter.out_axis], dtype=gradient.dtype, device=gradient.device)
    for block in parameter.rows:
        for start, stop in block.slices:
            factors[start:stop] = 1 / block.multiplier
    factors = factors.reshape([-1 if axis == parameter.out_axis else 1 for axis in range(gradient.ndim)])
    if isinstance(gradient, DTensor):
        mesh = gradient.device_mesh
        return gradient * distribute_tensor(factors, mesh, [Replicate()] * mesh.ndim)
    return gradient * factors


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
