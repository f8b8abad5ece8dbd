"""Factors that stay in the forward pass as removable hooks; `bake` multiplies them in."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mupscale.errors import NotExactError, OptionError, UnreadableModelError
from mupscale.planning.rows import along, row_factors
from mupscale.planning.values import Hook
from mupscale.reading.structure import bare, bare_name, kind_of


class Multiply:
    """A forward hook (or pre-hook) that multiplies a module's output (or input) by a constant."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any = None) -> Any:
        if self.hook.where == "input":
            return (inputs[0] * self.hook.factor, *inputs[1:])
        return output * self.hook.factor


class MultiplyRows(Multiply):
    """A forward hook that multiplies rows of a linear layer's weight, but not of its bias."""

    def __init__(self, hook: Hook, weight: Tensor, outputs: int) -> None:
        super().__init__(hook)
        self.outputs = outputs
        self.factors = self._on(weight)

    def _on(self, like: Tensor) -> Tensor:
        """One factor per row, on the device of `like`, in at least its precision."""
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        return row_factors(self.outputs, self.hook.rows, dtype=dtype).to(like.device)

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any = None) -> Any:
        moved = self.factors.device != output.device
        if moved or (output.dtype == torch.float64 != self.factors.dtype):
            self.factors = self._on(output)
        factors, bias = self.factors.to(output.dtype), getattr(module, "bias", None)
        if bias is None:
            return output * factors
        bias = bias.to(output.dtype)
        return (output - bias) * factors + bias


def attach(model: nn.Module, hooks: Iterable[Hook]) -> None:
    """Attach the hooks to a model that has none; attaching the same ones again does nothing."""
    wanted, present = set(hooks), attached(model)
    if wanted == present:
        return
    if present:
        raise OptionError(
            f"the model has hooks of another plan, on {next(iter(present)).module}. Remove them "
            "with that plan's detach_ or bake_ first."
        )
    _refuse_compiled(model)
    modules = _modules(model)
    for hook in wanted:
        if hook.module not in modules:
            raise UnreadableModelError(
                f"the model has no module {hook.module!r}, to which the plan attaches a hook."
            )
        module = modules[hook.module]
        if kind_of(module) == "other":
            raise NotExactError(
                f"{hook.module} is a {type(module).__name__}, whose output may not be linear in "
                "its weight: a hook there may not be exact. Use multipliers='fold', or an "
                "optimizer that allows it."
            )
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
    return weight.shape[_out_axis(module)]


def _out_axis(module: nn.Module) -> int:
    return 1 if hasattr(module, "nf") else 0  # Conv1D of transformers stores its weight transposed


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        compiled = type(module).__name__ == "OptimizedModule" or getattr(
            module, "_compiled_call_impl", None
        )
        if compiled:
            raise OptionError(
                f"the model (module {name!r}) is already compiled, and compiled code ignores hooks "
                "added later. Call plan.initialize_ or plan.attach_ before torch.compile."
            )


def detach(model: nn.Module) -> None:
    """Remove every hook of a plan."""
    for registered, key, _ in _registered(model):
        del registered[key]


def attached(model: nn.Module) -> set[Hook]:
    """The plan hooks on a model."""
    return {function.hook for _, _, function in _registered(model)}


def _registered(model: nn.Module) -> list[tuple[dict[int, Any], int, Multiply]]:
    hooks: list[tuple[dict[int, Any], int, Multiply]] = []
    for module in bare(model).modules():
        inside: Any = module
        for registered in (inside._forward_hooks, inside._forward_pre_hooks):
            hooks += [
                (registered, key, f) for key, f in registered.items() if isinstance(f, Multiply)
            ]
    return hooks


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    named = bare(model).named_modules(remove_duplicate=False)
    return {bare_name(f"{name}.").removesuffix("."): module for name, module in named}


@torch.no_grad()
def bake(
    model: nn.Module, hooks: Iterable[Hook], final_norm: str | None, offsets: Mapping[str, float]
) -> None:
    """Multiply the hooks' factors into the weights, and remove the hooks."""
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
        """(tensor, factor, offset) in place of a hook; a gain acts as offset + tensor."""
        module: Any = self.modules[hook.module]
        if hook.where == "rows":
            factors = row_factors(_outputs(module), hook.rows)
            yield module.weight, along(_out_axis(module), factors, module.weight), 0.0
        elif not self._is_shared(module):
            yield from self._own(hook)
        elif hook.where == "output":
            # The embedding's: its weight takes the factor, and the readout must not.
            yield module.weight, hook.factor, 0.0
            yield from self._before_readout(hook, 1 / hook.factor)
        else:
            yield from self._before_readout(hook, hook.factor)

    def _own(self, hook: Hook) -> Iterator[Change]:
        tensors = dict(self.modules[hook.module].named_parameters(recurse=False))
        if not tensors:
            raise NotExactError(
                f"{hook.module} has no gain to carry the factor {hook.factor:g}. Keep the hook."
            )
        for name, tensor in tensors.items():
            if hook.where == "output" or name == "weight":
                yield tensor, hook.factor, self.offsets.get(f"{hook.module}.{name}", 0.0)

    def _before_readout(self, hook: Hook, factor: float) -> Iterator[Change]:
        if self.final_norm is None:
            raise NotExactError(
                f"{hook.module} shares its weight with the embedding or readout, and there is no "
                "final norm whose gain could carry the factor. Keep the hook, or untie the two "
                "before baking."
            )
        yield from self._own(Hook(self.final_norm, "output", factor))

    def _is_shared(self, module: nn.Module) -> bool:
        weight = getattr(module, "weight", None)
        owners = {
            id(m) for m in self.modules.values() for p in m.parameters(recurse=False) if p is weight
        }
        return len(owners) > 1
