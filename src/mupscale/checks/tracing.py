"""Inputs and outputs of matrices and blocks in one forward pass, at a few tokens."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

TOKENS = 64
"""Tokens sampled, evenly spaced over the batch: enough for a root mean square, at a low cost."""


@dataclass
class NormTrace:
    """Inputs and outputs (tokens, size) by the path of their module."""

    inputs: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    outputs: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    last: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Outputs of the last call of each module; `outputs` holds those of the first."""

    def comparable(self, earlier: "NormTrace", path: str) -> bool:
        """Whether a module's outputs have the same shape in both passes and can be subtracted."""
        now, then = self.outputs.get(path), earlier.outputs.get(path)
        return now is not None and then is not None and now.shape == then.shape


@contextmanager
def tracing(
    modules: Mapping[str, nn.Module], paths: Iterable[str], tokens: int | None
) -> Generator[NormTrace]:
    """Record the modules at `paths` during a forward pass, with hooks that are removed afterwards.

    If the number of tokens in the batch is known, calls with another number are left out.
    """
    trace = NormTrace()
    with ExitStack() as hooks:
        for path in paths:
            module, (before, after) = modules[path], _recorders(trace, path, tokens)
            # First in line, because the input of a plan's hook belongs to the weight's multiplier:
            # x is the input before that hook.
            hooks.callback(
                module.register_forward_pre_hook(before, prepend=True, with_kwargs=True).remove
            )
            hooks.callback(module.register_forward_hook(after).remove)
        yield trace


def _recorders(trace: NormTrace, path: str, tokens: int | None) -> tuple[Any, Any]:
    """Hooks for the first input and for the outputs of a module."""

    def before(_: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        values = (*arguments, *keywords.values())
        sample = _sample(next((v for v in values if isinstance(v, Tensor)), None), tokens)
        if sample is not None:
            trace.inputs.setdefault(path, sample)

    def after(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        sample = _sample(output[0] if isinstance(output, tuple) and output else output, tokens)
        if sample is not None:
            trace.outputs.setdefault(path, sample)
            trace.last[path] = sample

    return before, after


def _sample(tensor: Any, tokens: int | None) -> Tensor | None:
    """Some tokens of a batch of vectors; None for anything else, such as an expert's tokens."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.ndim < 2:
        return None
    rows = tensor.detach().reshape(-1, tensor.shape[-1])
    count = len(rows)
    if count == 0 or (tokens is not None and count != tokens):
        return None
    every = torch.linspace(0, count - 1, min(TOKENS, count), device=rows.device).round().long()
    return rows[every].float() if rows.dtype in (torch.float16, torch.bfloat16) else rows[every]


def rms(tensor: Tensor) -> float:
    """Root mean square over all entries."""
    return float(torch.linalg.vector_norm(tensor)) / tensor.numel() ** 0.5
