"""Global gradient clipping that does not depend on folding, and detection of a second clipping.

A factor a that was folded into a weight (W' = aW) leaves the gradient g/a. The norm is taken of
a·g', which the model would have with its factors in the forward pass. Rows of a fused matrix with
a factor c have the gradient c·g.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from mupscale.errors import NonFiniteError, OptionError
from mupscale.norms.matrices import is_sharded
from mupscale.planning.rows import along, row_factors
from mupscale.planning.values import PlannedParameter

LOOK_EVERY, LOOK_AT = 100, 5
"""Of every 100 steps the first 5 are inspected: reading a norm makes the host wait."""
SAME, DIFFERENT = 1e-3, 1e-2
"""Norms of all gradients that differ by less than `SAME` were clipped to one value, if the norms of
one tensor differ by more than `DIFFERENT`.
"""


def clip(
    parameters: Mapping[str, PlannedParameter],
    tensors: Iterable[tuple[str, Tensor]],
    max_norm: float,
    *,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients so that their norm without folding is at most `max_norm`; returns it."""
    check_max_norm(max_norm)
    with_gradient = _with_gradient(parameters, tensors)
    norm = _norm(with_gradient)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise NonFiniteError(f"the norm of the gradients is {norm.item()}: they cannot be clipped.")
    clip_grads_with_norm_([tensor for _, tensor in with_gradient], max_norm, norm)
    return norm


def norm(
    parameters: Mapping[str, PlannedParameter], tensors: Iterable[tuple[str, Tensor]]
) -> Tensor:
    """The norm of all gradients without folding."""
    return _norm(_with_gradient(parameters, tensors))


def _with_gradient(
    parameters: Mapping[str, PlannedParameter], tensors: Iterable[tuple[str, Tensor]]
) -> list[tuple[PlannedParameter, Tensor]]:
    return [(parameters[name], tensor) for name, tensor in tensors if tensor.grad is not None]


def check_max_norm(max_norm: float) -> None:
    if not max_norm > 0 or not math.isfinite(max_norm):
        raise OptionError(f"max_norm={max_norm} must be positive and finite.")


@torch.no_grad()
def _norm(with_gradient: list[tuple[PlannedParameter, Tensor]]) -> Tensor:
    by_factor: dict[float, list[Tensor]] = {}
    for parameter, tensor in with_gradient:
        assert tensor.grad is not None
        gradient = _without_row_factors(parameter, tensor.grad)
        by_factor.setdefault(parameter.folded, []).append(gradient)
    norms = [_whole(get_total_norm(gradients)) * factor for factor, gradients in by_factor.items()]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def _without_row_factors(parameter: PlannedParameter, gradient: Tensor) -> Tensor:
    if not parameter.row_multipliers:
        return gradient
    inverse = [(slices, 1 / factor) for slices, factor in parameter.row_multipliers]
    axis = parameter.out_axis
    # Made on the gradient's device, so that no step waits for a copy.
    factors = row_factors(
        parameter.shape[axis], inverse, dtype=gradient.dtype, device=gradient.device
    )
    return gradient * along(axis, factors, gradient)


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if is_sharded(norm) else norm


# Before each step of an optimizer


@dataclass
class ClipBeforeStep:
    """A hook that clips before each step, and warns once if gradients arrive already clipped."""

    parameters: Mapping[str, PlannedParameter]
    names: Sequence[str]
    """Of the parameters, in the order of the optimizer's groups."""
    max_norm: float
    steps: int = 0
    warned: bool = False
    norms: list[tuple[Tensor, Tensor]] = field(default_factory=list[tuple[Tensor, Tensor]])
    """For a few consecutive steps: the norm of all gradients on arrival, and that of the first."""

    def __call__(
        self, optimizer: Optimizer, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        # torch passes all arguments of step, the optimizer first.
        if any(argument is not None for argument in (*arguments[1:], named.get("closure"))):
            raise OptionError(
                "this optimizer steps with a closure, which computes the gradients after "
                "clip_before_step would clip them. Call plan.clip_grad_norm_(model, max_norm) "
                "inside the closure, after backward; in Lightning, in the module's "
                "configure_gradient_clipping."
            )
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        if not self.warned:
            self._inspect([tensor.grad for tensor in tensors if tensor.grad is not None])
        clip(self.parameters, zip(self.names, tensors, strict=True), self.max_norm)

    @torch.no_grad()
    def _inspect(self, gradients: Sequence[Tensor]) -> None:
        if self.steps % LOOK_EVERY < LOOK_AT and gradients:
            both = (_whole(get_total_norm(part)) for part in (gradients, gradients[:1]))
            self.norms.append((next(both), next(both)))
        self.steps += 1
        if self.steps % LOOK_EVERY != LOOK_AT:
            return
        whole, first = (
            torch.stack(norms).double().cpu() for norms in zip(*self.norms, strict=True)
        )
        self.norms.clear()
        # A constant norm alone may come from one batch repeated at a tiny rate: then the norm of
        # each single tensor is constant too.
        if len(whole) == LOOK_AT and _spread(whole) < SAME and _spread(first) > DIFFERENT:
            self.warned = True
            warnings.warn(
                f"gradients arrive already clipped: in {LOOK_AT} consecutive steps their norm was "
                f"{whole.mean():.4g} before clip_before_step(…, {self.max_norm:g}). Turn the "
                "trainer's own clipping off: max_grad_norm=0 in transformers, "
                "gradient_clip_val=None in Lightning.",
                UserWarning,
                stacklevel=2,
            )


def _spread(norms: Tensor) -> float:
    """(largest - smallest) / smallest; NaN, which exceeds no limit, if a norm is zero or NaN."""
    low, high = norms.min().item(), norms.max().item()
    return high / low - 1 if low > 0 else math.nan


def hook_of(optimizer: Optimizer) -> ClipBeforeStep | None:
    """The clipping hook of this optimizer, if it has one."""
    hooks: Mapping[int, object] = getattr(optimizer, "_optimizer_step_pre_hooks", {})
    return next((hook for hook in hooks.values() if isinstance(hook, ClipBeforeStep)), None)


# Trainers that clip by themselves


def own_clipping(trainer: object) -> str | None:
    """The setting by which a trainer of transformers (or its arguments) or Lightning clips, if any.

    >>> from types import SimpleNamespace
    >>> own_clipping(SimpleNamespace(max_grad_norm=1.0))
    'max_grad_norm=1'
    >>> own_clipping(SimpleNamespace(gradient_clip_val=None))
    """
    for holder in (trainer, getattr(trainer, "args", None)):
        for name in ("max_grad_norm", "gradient_clip_val"):
            if hasattr(holder, name):
                value = getattr(holder, name)
                return f"{name}={value:g}" if value else None
    raise OptionError(
        f"trainer={type(trainer).__name__} has neither max_grad_norm nor gradient_clip_val, so "
        "mupscale cannot see whether it clips. Pass a Trainer or TrainingArguments of "
        "transformers, or a Trainer of Lightning."
    )


def clipped_twice(
    parameters: Iterable[PlannedParameter], hook: ClipBeforeStep | None, trainer: object
) -> str | None:
    """The problem with a trainer's own clipping, if there is one."""
    setting = own_clipping(trainer)
    if setting is None:
        return None
    name = setting.partition("=")[0]
    off = f"Turn it off ({name}={'0' if name == 'max_grad_norm' else 'None'})"
    if hook is not None:
        again = f"clip_before_step(…, {hook.max_norm:g}) clips them again"
        return f"the trainer clips gradients ({setting}), and {again}. {off}."
    if any(p.folded != 1 or p.row_multipliers for p in parameters):
        return (
            f"the trainer clips gradients ({setting}) by their norm after folding, which differs "
            f"from the base's. {off} and use plan.clip_before_step(optimizer, max_norm)."
        )
    return None
