"""What follows what: one forward pass on the meta device, watched.

A branch that ends in a norm (x + norm(W·y)) cannot be told from a pre-norm one by names: `post_attention_layernorm`
is the one in Gemma and the other in Llama. So the model is run once with tensors that have shapes and no numbers, and a
norm whose input *is* the output of a matrix is seen to follow it. The model is not changed.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mupscale.reading.saying import Reading
from mupscale.reading.structure import kind_of

_TOKENS = 4


@dataclass
class Watched:
    """What one forward pass showed."""

    norm_after: dict[str, str] = field(default_factory=dict[str, str])
    """For each branch whose output goes straight into a norm, the path of that norm."""
    last_norm: str | None = None
    """The norm that was called last."""


def watch(model: nn.Module, branches: Mapping[str, Sequence[str]], reading: Reading) -> Watched | None:
    """Run the model once on the meta device and see what follows what; None where it cannot be run like this.

    `branches` says for each which modules it may come out of.
    """
    with _plain(model):
        for arguments, keywords in _calls(model, reading):
            seen = Watched()
            with _watching(dict(model.named_modules()), branches, seen):
                try:
                    _run(model, arguments, keywords)
                except Exception:  # whatever a model raises for inputs that it does not take
                    continue
                return seen
    return None


@contextmanager
def _plain(model: nn.Module) -> Generator[None]:
    """The model in evaluation mode and without hooks: FSDP's would gather weights, a plan's would hide what follows."""
    training = [module for module in model.modules() if module.training]
    registered: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for module in model.modules():
        inside: Any = module
        for hooks in (inside._forward_hooks, inside._forward_pre_hooks):
            registered.append((hooks, dict(hooks)))
            hooks.clear()
    model.eval()
    try:
        yield
    finally:
        for hooks, before in registered:
            hooks.update(before)
        for module in training:
            module.training = True


@contextmanager
def _watching(
    modules: Mapping[str, nn.Module], branches: Mapping[str, Sequence[str]], seen: Watched
) -> Generator[None]:
    # Outputs are kept, so that no other tensor can come to have the identity of one that has gone.
    outputs: dict[int, tuple[Tensor, list[str]]] = {}

    def note_output(branch: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, Tensor):
                outputs.setdefault(id(first), (first, []))[1].append(branch)

        return hook

    def note_input(norm: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            seen.last_norm = norm
            if inputs and id(inputs[0]) in outputs:
                seen.norm_after.update(dict.fromkeys(outputs[id(inputs[0])][1], norm))

        return hook

    with ExitStack() as hooks:
        for branch, paths in branches.items():
            for path in paths:
                hooks.callback(modules[path].register_forward_hook(note_output(branch)).remove)
        for path, module in modules.items():
            if kind_of(module) == "norm":
                hooks.callback(module.register_forward_pre_hook(note_input(path)).remove)
        yield


def _calls(model: nn.Module, reading: Reading) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Ways to call a language model, the likeliest first."""
    said = reading.call("meta")
    if said is not None:
        yield said
        return
    tokens = torch.zeros(1, _TOKENS, dtype=torch.long, device="meta")
    mask = torch.ones(1, 1, _TOKENS, _TOKENS, dtype=torch.bool, device="meta")
    if hasattr(model, "config"):
        # A mask that is given whole keeps transformers from looking into tensors that hold nothing.
        yield (), {"input_ids": tokens, "attention_mask": mask, "use_cache": False}
        yield (), {"input_ids": tokens, "use_cache": False}
    yield (tokens,), {}


def _run(model: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Any]) -> None:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    meta = {name: torch.empty(t.shape, dtype=t.dtype, device="meta") for name, t in tensors.items()}
    with torch.no_grad(), torch.device("meta"), torch.compiler.set_stance("force_eager"), _AnyGroupedProduct():
        torch.func.functional_call(model, meta, arguments, keywords)


class _AnyGroupedProduct(TorchFunctionMode):
    """Products of experts take bfloat16 only; here only their shape is wanted."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "grouped_mm" in getattr(func, "__name__", ""):
            return args[0].new_empty(args[0].shape[0], args[1].shape[-1])
        return func(*args, **(kwargs or {}))
