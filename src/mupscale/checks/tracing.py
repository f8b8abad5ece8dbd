"""What goes into and comes out of matrices and blocks in one forward pass, at a few tokens."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

TOKENS = 64
"""Tokens looked at, evenly spread over the batch: enough for a root mean square, a small share of
the cost.
"""


@dataclass
class NormTrace:
    """Inputs and outputs (tokens, size) by the path of their module."""

    inputs: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    outputs: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    last: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Outputs of the last call of a module, where the others are of the first."""

    def comparable(self, earlier: "NormTrace", path: str) -> bool:
        """Whether a module gave as much in both passes, so that its outputs can be subtracted."""
        now, then = self.outputs.get(path), earlier.outputs.get(path)
        return now is not None and then is not None and now.shape == then.shape


@contextmanager
def tracing(
    modules: Mapping[str, nn.Module], paths: Iterable[str], tokens: int | None
) -> Generator[NormTrace]:
    """Record the modules at `paths` while they are called for a batch; the model is unchanged.

    Where it is known how many tokens the batch has, what is called with another number is left out.
    """
    trace = NormTrace()
    with ExitStack() as hooks:
        for path in paths:
            module = modules[path]
            before, after = (
                _input_recorder(trace, path, tokens),
                _output_recorder(trace, path, tokens),
            )
            # What a plan's hook puts on the input belongs to the multiplier of the weight: x is
            # what comes before it.
            hooks.callback(
                module.register_forward_pre_hook(before, prepend=True, with_kwargs=True).remove
            )
            hooks.callback(module.register_forward_hook(after).remove)
        yield trace


def _input_recorder(trace: NormTrace, path: str, tokens: int | None) -> Any:
    def hook(_: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        given = next(
            (value for value in (*arguments, *keywords.values()) if isinstance(value, Tensor)), None
        )
        _keep(trace.inputs, path, _sample(given, tokens))

    return hook


def _output_recorder(trace: NormTrace, path: str, tokens: int | None) -> Any:
    def hook(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        made = _sample(output[0] if isinstance(output, tuple) and output else output, tokens)
        _keep(trace.outputs, path, made)
        if made is not None:
            trace.last[path] = made

    return hook


def _keep(kept: dict[str, Tensor], path: str, sampled: Tensor | None) -> None:
    """The first call of a module counts."""
    if sampled is not None and path not in kept:
        kept[path] = sampled


def _sample(tensor: Any, tokens: int | None) -> Tensor | None:
    """Some tokens of a batch of vectors; None for anything else, such as the tokens that reach one
    expert.
    """
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
