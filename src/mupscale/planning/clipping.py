"""Global gradient clipping that does not depend on where a multiplier was put, and who else clips.

A factor a that was folded into a weight (W' = aW) leaves the gradient g/a; the norm is taken of
a·g', which is what the model with its factors in the forward pass would have. Rows of a fused
matrix with a factor c have the gradient c·g.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from mupscale.errors import NonFiniteError, OptionError
from mupscale.planning.values import PlannedParameter

LOOK_EVERY, LOOK_AT = 100, 5
"""Of every so many steps, the first few are looked at: reading a norm makes the host wait for the
device.
"""
SAME, DIFFERENT = 1e-3, 1e-2
"""Norms closer than the one were clipped to one number; those of one tensor further apart than the
other were not.
"""


def clip(
    parameters: Mapping[str, PlannedParameter],
    tensors: Iterable[tuple[str, Tensor]],
    max_norm: float,
    *,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients so that their norm, without what was folded, is at most `max_norm`;
    returns the norm.
    """
    check_max_norm(max_norm)
    with_gradient = [
        (parameters[name], tensor) for name, tensor in tensors if tensor.grad is not None
    ]
    norm = _norm(with_gradient)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise NonFiniteError(
            f"the norm of the gradients is {norm.item()}, so they cannot be clipped."
        )
    clip_grads_with_norm_([tensor for _, tensor in with_gradient], max_norm, norm)
    return norm


def check_max_norm(max_norm: float) -> None:
    if not max_norm > 0 or not math.isfinite(max_norm):
        raise OptionError(f"max_norm={max_norm} is not a positive number.")


@torch.no_grad()
def _norm(with_gradient: list[tuple[PlannedParameter, Tensor]]) -> Tensor:
    by_factor: dict[float, list[Tensor]] = {}
    for parameter, tensor in with_gradient:
        assert tensor.grad is not None
        by_factor.setdefault(parameter.folded, []).append(
            _without_row_factors(parameter, tensor.grad)
        )
    norms = [_whole(get_total_norm(gradients)) * factor for factor, gradients in by_factor.items()]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def _without_row_factors(parameter: PlannedParameter, gradient: Tensor) -> Tensor:
    if all(block.multiplier == 1 for block in parameter.rows):
        return gradient
    factors = torch.ones(
        parameter.shape[parameter.out_axis], dtype=gradient.dtype, device=gradient.device
    )
    for block in parameter.rows:
        for start, stop in block.slices:
            factors[start:stop] = 1 / block.multiplier
    factors = factors.reshape(
        [-1 if axis == parameter.out_axis else 1 for axis in range(gradient.ndim)]
    )
    if isinstance(gradient, DTensor):
        mesh = gradient.device_mesh
        return gradient * distribute_tensor(factors, mesh, [Replicate()] * mesh.ndim)
    return gradient * factors


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


# Before each step of an optimizer


@dataclass
class ClipBeforeStep:
    """A hook that clips whenever an optimizer steps, and that warns once if somebody else has
    clipped before it.
    """

    parameters: Mapping[str, PlannedParameter]
    names: Sequence[str]
    "Of the parameters, in the order of the optimizer's groups."
    max_norm: float
    steps: int = 0
    warned: bool = False
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list[tuple[Tensor, Tensor]])
    "Of some steps running: the norm of all gradients as they came, and that of the first."

    def __call__(
        self, optimizer: Optimizer, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        # torch hands over all arguments of step, the optimizer first.
        if any(argument is not None for argument in (*arguments[1:], named.get("closure"))):
            raise OptionError(
                "this optimizer steps with a closure, which makes the gradients only after "
                "clip_before_step could clip "
                "them. Call plan.clip_grad_norm_(model, max_norm) inside of the closure, after "
                "backward; in Lightning, "
                "in the module's configure_gradient_clipping."
            )
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        if not self.warned:
            self._look([tensor.grad for tensor in tensors if tensor.grad is not None])
        clip(self.parameters, zip(self.names, tensors, strict=True), self.max_norm)

    @torch.no_grad()
    def _look(self, gradients: Sequence[Tensor]) -> None:
        if self.steps % LOOK_EVERY < LOOK_AT and gradients:
            self.seen.append(
                (_whole(get_total_norm(gradients)), _whole(get_total_norm(gradients[:1])))
            )
        self.steps += 1
        if self.steps % LOOK_EVERY != LOOK_AT:
            return
        whole, first = (torch.stack(norms).double().cpu() for norms in zip(*self.seen, strict=True))
        self.seen.clear()
        # A constant norm alone may be one batch seen again and again at a tiny rate: then no
        # tensor's own norm moves.
        if len(whole) == LOOK_AT and _spread(whole) < SAME and _spread(first) > DIFFERENT:
            self.warned = True
            warnings.warn(
                f"gradients arrive clipped already: in each of {LOOK_AT} steps running their norm "
                "was "
                f"{whole.mean():.4g} before clip_before_step(…, {self.max_norm:g}) saw them. "
                "Switch the trainer's own "
                "clipping off: max_grad_norm=0 in transformers, gradient_clip_val=None in "
                "Lightning.",
                UserWarning,
                stacklevel=2,
            )


def _spread(norms: Tensor) -> float:
    """By which share the largest exceeds the least; not a number, which is beyond no limit, where
    one is 0 or not.
    """
    low, high = norms.min().item(), norms.max().item()
    return high / low - 1 if low > 0 else math.nan


def hook_of(optimizer: Optimizer) -> ClipBeforeStep | None:
    """The hook that clips before this optimizer's steps, if there is one."""
    hooks: Mapping[int, object] = getattr(optimizer, "_optimizer_step_pre_hooks", {})
    return next((hook for hook in hooks.values() if isinstance(hook, ClipBeforeStep)), None)


# A trainer that clips by itself


def own_clipping(trainer: object) -> str | None:
    """The setting by which a trainer of transformers (or its arguments) or of Lightning clips; None
    where it does not.

    >>> from types import SimpleNamespace
    >>> own_clipping(SimpleNamespace(max_grad_norm=1.0)), own_clipping(SimpleNamespace(gradient_clip_val=None))
    ('max_grad_norm=1', None)
    """
    for holder in (trainer, getattr(trainer, "args", None)):
        for name in ("max_grad_norm", "gradient_clip_val"):
            if hasattr(holder, name):
                value = getattr(holder, name)
                return f"{name}={value:g}" if value else None
    raise OptionError(
        f"trainer={type(trainer).__name__} has neither max_grad_norm nor gradient_clip_val, so "
        "whether it clips is not "
        "known. Give a Trainer or TrainingArguments of transformers, or a Trainer of Lightning."
    )


def clipped_twice(
    parameters: Iterable[PlannedParameter], hook: ClipBeforeStep | None, trainer: object
) -> str | None:
    """What is wrong with a trainer's own clipping, None where nothing is."""
    setting = own_clipping(trainer)
    if setting is None:
        return None
    off = f"Switch it off ({setting.partition('=')[0]}={'0' if setting.startswith('max') else 'None'})"
    if hook is not None:
        again = f"clip_before_step(…, {hook.max_norm:g}) clips them again"
        return f"the trainer clips gradients ({setting}), and {again}. {off}."
    if any(p.folded != 1 or any(block.multiplier != 1 for block in p.rows) for p in parameters):
        return (
            f"the trainer clips gradients ({setting}) by their norm after folding, which is not "
            "that of the base. "
            f"{off} and use plan.clip_before_step(optimizer, max_norm)."
        )
    return None
