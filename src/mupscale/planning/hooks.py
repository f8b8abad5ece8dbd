"""Factors that stay in the forward pass, as removable hooks; and `bake`, which puts them into the
weights for good.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from mupscale.errors import NotExactError, OptionError, UnreadableModelError
from mupscale.planning.values import Hook
from mupscale.reading.structure import bare, bare_name, kind_of


class Multiply:
    """A forward hook (or pre-hook) that multiplies what a module gives (or takes) by a constant."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any = None) -> Any:
        if self.hook.where == "input":
            return (inputs[0] * self.hook.factor, *inputs[1:])
        return output * self.hook.factor


class MultiplyRows(Multiply):
    """A forward hook that multiplies some rows of a linear layer's weight by constants, and leaves
    its bias alone.
    """

    def __init__(self, hook: Hook, weight: Tensor, outputs: int) -> None:
        super().__init__(hook)
        self.outputs = outputs
        self.factors = _row_factors(hook, outputs, weight)

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any = None) -> Any:
        moved = self.factors.device != output.device
        if moved or (output.dtype == torch.float64 != self.factors.dtype):
            self.factors = _row_factors(self.hook, self.outputs, output)
        factors, bias = self.factors.to(output.dtype), getattr(module, "bias", None)
        if bias is None:
            return output * factors
        bias = bias.to(output.dtype)
        return (output - bias) * factors + bias


def _row_factors(hook: Hook, outputs: int, like: Tensor) -> Tensor:
    """One factor a row, on the device of `like` and at least as exact."""
    factors = torch.ones(
        outputs, dtype=torch.float64 if like.dtype == torch.float64 else torch.float32
    )
    for slices, factor in hook.rows:
        for start, stop in slices:
            factors[start:stop] = factor
    return factors.to(like.device)


def attach(model: nn.Module, hooks: Iterable[Hook]) -> None:
    """Put the hooks onto a model that has none; the same ones again change nothing."""
    wanted, present = set(hooks), attached(model)
    if wanted == present:
        return
    if present:
        raise OptionError(
            f"the model carries hooks of another plan, on {next(iter(present)).module}. Remove "
            "them with that "
            "plan's detach_ or bake_ first."
        )
    _refuse_compiled(model)
    modules = _modules(model)
    for hook in wanted:
        if hook.module not in modules:
            raise UnreadableModelError(
                f"the model has no module {hook.module!r}, which the plan puts a hook on."
            )
        _check(hook, modules[hook.module])
    for hook in wanted:
        _register(hook, modules[hook.module])


def _register(hook: Hook, module: nn.Module) -> None:
    if hook.where == "input":
        module.register_forward_pre_hook(Multiply(hook))
    elif hook.where == "output":
        module.register_forward_hook(Multiply(hook))
    else:
        weight: Any = module.weight
        module.register_forward_hook(MultiplyRows(hook, weight, _outputs(module)))


def _outputs(module: nn.Module) -> int:
    weight: Any = module.weight
    return weight.shape[1 if hasattr(module, "nf") else 0]


def _check(hook: Hook, module: nn.Module) -> None:
    if kind_of(module) == "other":
        raise NotExactError(
            f"{hook.module} is a {type(module).__name__}, of which it is not known that its output "
            "is linear in its "
            "weight: a hook there may not be exact. Use multipliers='fold', or an optimizer that "
            "allows it."
        )


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        compiled = type(module).__name__ == "OptimizedModule" or getattr(
            module, "_compiled_call_impl", None
        )
        if compiled:
            raise OptionError(
                f"the model (module {name!r}) is compiled already, and compiled code does not see "
                "hooks that come "
                "later. Call plan.initialize_ or plan.attach_ before torch.compile."
            )


def detach(model: nn.Module) -> None:
    """Take every hook of a plan off."""
    for registered, key, _ in _registered(model):
        del registered[key]


def attached(model: nn.Module) -> set[Hook]:
    """The hooks that a model carries."""
    return {function.hook for _, _, function in _registered(model)}


def _registered(model: nn.Module) -> list[tuple[dict[int, Any], int, Multiply]]:
    found: list[tuple[dict[int, Any], int, Multiply]] = []
    for module in bare(model).modules():
        inside: Any = module
        for registered in (inside._forward_hooks, inside._forward_pre_hooks):
            found += [
                (registered, key, f) for key, f in registered.items() if isinstance(f, Multiply)
            ]
    return found


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    named = bare(model).named_modules(remove_duplicate=False)
    return {bare_name(f"{name}.").removesuffix("."): module for name, module in named}


@torch.no_grad()
def bake(
    model: nn.Module, hooks: Iterable[Hook], final_norm: str | None, offsets: Mapping[str, float]
) -> None:
    """Multiply the weights by what the hooks multiply by, and take the hooks off."""
    baking = _Baking(_modules(model), final_norm, offsets)
    changes = [change for hook in hooks for change in baking.changes(hook)]
    for weight, factor, offset in changes:
        weight.add_(offset).mul_(factor).sub_(offset) if offset else weight.mul_(factor)
    detach(model)


Change = tuple[Tensor, Tensor | float, float]


@dataclass(frozen=True)
class _Baking:
    modules: Mapping[str, nn.Module]
    final_norm: str | None
    offsets: Mapping[str, float]

    def changes(self, hook: Hook) -> Iterator[Change]:
        """What to multiply by what, in place of a hook; the third value is what the tensor's effect
        has on top.
        """
        module: Any = self.modules[hook.module]
        if hook.where == "rows":
            yield module.weight, _along_rows(hook, module), 0.0
        elif not self._is_shared(module):
            yield from self._own(hook)
        elif (
            hook.where == "output"
        ):  # the embedding's: its weight takes it, and the readout must not
            yield module.weight, hook.factor, 0.0
            yield from self._before_readout(hook, 1 / hook.factor)
        else:
            yield from self._before_readout(hook, hook.factor)

    def _own(self, hook: Hook) -> Iterator[Change]:
        tensors = dict(self.modules[hook.module].named_parameters(recurse=False))
        if not tensors:
            raise NotExactError(
                f"{hook.module} has no gain that could take the factor {hook.factor:g}: keep the "
                "hook."
            )
        for name, tensor in tensors.items():
            if hook.where == "output" or name == "weight":
                yield tensor, hook.factor, self.offsets.get(f"{hook.module}.{name}", 0.0)

    def _before_readout(self, hook: Hook, factor: float) -> Iterator[Change]:
        if self.final_norm is None:
            raise NotExactError(
                f"{hook.module} shares its weight with the embedding or readout, and there is no "
                "final norm whose gain "
                "could take the factor. Keep the hook, or untie the two before baking."
            )
        yield from self._own(Hook(self.final_norm, "output", factor))

    def _is_shared(self, module: nn.Module) -> bool:
        weight = getattr(module, "weight", None)
        owners = {
            id(m) for m in self.modules.values() for p in m.parameters(recurse=False) if p is weight
        }
        return len(owners) > 1


def _along_rows(hook: Hook, module: nn.Module) -> Tensor:
    weight: Any = module.weight
    factors = _row_factors(hook, _outputs(module), weight).to(weight.dtype)
    factors = factors if hasattr(module, "nf") else factors[:, None]
    if isinstance(weight, DTensor):
        return distribute_tensor(
            factors, weight.device_mesh, [Replicate()] * weight.device_mesh.ndim
        )
    return factors
