"""One forward pass of a model, on the meta device or on the CPU. The model is not changed."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mupscale.reading.following import Following, tensors_in
from mupscale.reading.structure import bare_name
from mupscale.reading.traces import UNSEEN, ForwardTrace, TraceFailed
from mupscale.reading.user_reading import Reading

SMALL = 1 << 26
"""The most parameters of a model that is run with numbers on the CPU."""

_TOKENS = 4


def follow(model: nn.Module, reading: Reading) -> ForwardTrace | TraceFailed:
    """Follow a forward pass on the meta device; a small model may fall back to the CPU."""
    on_meta = trace(model, reading, "meta")
    has_weights = not any(p.is_meta for p in model.parameters())
    if isinstance(on_meta, ForwardTrace) and not (on_meta.has_unseen_constant and has_weights):
        return on_meta
    if sum(p.numel() for p in model.parameters()) > SMALL:
        return on_meta
    on_cpu = trace(model, reading, "cpu")
    return on_cpu if isinstance(on_cpu, ForwardTrace) else on_meta


def trace(model: nn.Module, reading: Reading, device: str = "meta") -> ForwardTrace | TraceFailed:
    """Run the model once and record what each parameter does, or why it could not run."""
    failures: list[str] = []
    with _evaluating(model), _without_hooks(model), _quiet():
        for arguments, keywords in _calls(model, reading, device):
            try:
                return _traced(model, arguments, keywords, device)
            except Exception as error:  # whatever a model raises for inputs that it does not take
                failures.append(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return TraceFailed(failures[0])


@torch.no_grad()
def run_once(model: nn.Module, reading: Reading) -> Tensor | None:
    """The logits of a model with weights on a few tokens, or None if it cannot be run like this.

    Not for models that are sharded over devices, where every process would have to take part.
    """
    parameters = list(model.parameters())
    if not parameters or any(type(p) is not nn.Parameter or p.is_meta for p in parameters):
        return None
    with _evaluating(model), torch.random.fork_rng(devices=[]), _quiet():
        for arguments, keywords in _calls(model, reading, str(parameters[0].device)):
            try:
                output: Any = model(*arguments, **keywords)
            except Exception:  # whatever a model raises for inputs that it does not take
                continue
            logits = getattr(output, "logits", None)
            tensors = [logits] if isinstance(logits, Tensor) else tensors_in(output)
            return next((tensor.float() for tensor in tensors if tensor.is_floating_point()), None)
    return None


# How the model is run


@contextmanager
def _evaluating(model: nn.Module) -> Generator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _without_hooks(model: nn.Module) -> Generator[None]:
    """FSDP's hooks would gather weights, and those of a plan would hide constants."""
    registered: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for module in model.modules():
        inside: Any = module
        for hooks in (inside._forward_hooks, inside._forward_pre_hooks):
            registered.append((hooks, dict(hooks)))
            hooks.clear()
    try:
        yield
    finally:
        for hooks, before in registered:
            hooks.update(before)


@contextmanager
def _quiet() -> Generator[None]:
    """Hide logs and warnings: they are meant for real runs of the model."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _calls(
    model: nn.Module, reading: Reading, device: str
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Ways to call a model, the likeliest first."""
    call = reading.call(device)
    if call is not None:
        yield call
        return
    tokens = torch.zeros(1, _TOKENS, dtype=torch.long, device=device)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict") and _takes(model, getattr(model, "main_input_name", "input_ids")):
        yield from _hugging_face_calls(model, config, tokens, device)
    yield (tokens,), {}


def _takes(model: nn.Module, name: str) -> bool:
    """Whether the forward pass has an argument of this name; each call that fails costs a trace."""
    arguments = inspect.signature(model.forward).parameters.values()
    return any(one.name == name or one.kind is one.VAR_KEYWORD for one in arguments)


def _hugging_face_calls(
    model: nn.Module, config: Any, tokens: Tensor, device: str
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    main = getattr(model, "main_input_name", "input_ids")
    if main == "pixel_values":
        vision = getattr(config, "vision_config", config)
        size: Any = getattr(vision, "image_size", 32)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        pixels = torch.zeros(1, getattr(vision, "num_channels", 3), height, width, device=device)
        yield (), {"pixel_values": pixels}
    if main == "input_features":
        frames = 2 * getattr(config, "max_source_positions", 1500)
        features = torch.zeros(1, getattr(config, "num_mel_bins", 80), frames, device=device)
        yield (), {"input_features": features, "decoder_input_ids": tokens, "use_cache": False}
    if getattr(config, "is_encoder_decoder", False):
        yield (), {"input_ids": tokens, "decoder_input_ids": tokens, "use_cache": False}
    if getattr(config, "vision_config", None) and getattr(config, "text_config", None):
        vision = config.vision_config
        size = getattr(vision, "image_size", 32)
        if isinstance(size, int):
            pixels = torch.zeros(1, getattr(vision, "num_channels", 3), size, size, device=device)
            yield (), {"input_ids": tokens, "pixel_values": pixels}
    mask = torch.ones(1, 1, _TOKENS, _TOKENS, dtype=torch.bool, device=device)
    # With a complete mask, transformers does not look into tensors without numbers.
    yield (), {"input_ids": tokens, "attention_mask": mask, "use_cache": False}
    yield (), {"input_ids": tokens, "use_cache": False}


def _traced(
    model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], device: str
) -> ForwardTrace:
    following = Following(ForwardTrace(device=device))
    used: dict[str, Tensor] = {}
    for name, tensor in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        used[name] = _stand_in(tensor, device)
        if isinstance(tensor, nn.Parameter):
            following.mark_parameter(used[name], bare_name(name))
        elif tensor.numel() == 1:
            following.mark_constant(used[name], UNSEEN if tensor.is_meta else float(tensor))
    for value in (*arguments, *keywords.values()):
        if isinstance(value, Tensor):
            following.mark_input(value)
    with ExitStack() as stack:
        for path, module in model.named_modules():
            bare_path = bare_name(f"{path}.").removesuffix(".")
            stack.callback(module.register_forward_pre_hook(following.entering(bare_path)).remove)
            stack.callback(module.register_forward_hook(following.leaving).remove)
        stack.enter_context(torch.no_grad())
        if device == "meta":
            stack.enter_context(torch.device("meta"))
            stack.enter_context(_Numbers(following))
        else:
            stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(following)
        output = torch.func.functional_call(model, used, arguments, keywords)
    following.finish(output)
    return following.trace


class _Numbers(TorchFunctionMode):
    """Numbers turned into tensors (torch.tensor(8.0)) keep their value on the meta device."""

    def __init__(self, following: Following) -> None:
        super().__init__()
        self.following = following

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor) and args and isinstance(args[0], int | float):
            self.following.mark_constant(result, float(args[0]))
        return result


def _stand_in(tensor: Tensor, device: str) -> Tensor:
    """A tensor to run with in place of one of the model's, which stays as it is."""
    if device == "meta":
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if not tensor.is_meta:
        return tensor.detach().to(device, copy=True)
    if not tensor.is_floating_point():
        return torch.ones(tensor.shape, dtype=tensor.dtype, device=device)
    generator = torch.Generator().manual_seed(tensor.numel())
    numbers = torch.rand(tensor.shape, generator=generator) + 0.5
    return numbers.to(device=device, dtype=tensor.dtype)
