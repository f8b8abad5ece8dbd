"""Which device to use, and how many threads."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from mupscale.errors import OptionError


def device_named(name: str = "auto") -> torch.device:
    """The device of this name; "auto" is CUDA where there is one, otherwise the CPU.

    >>> device_named("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(name)
    except RuntimeError:
        raise OptionError(f"unknown device {name!r}. Use auto, cpu, cuda or cuda:0.") from None


@contextmanager
def one_thread() -> Generator[None]:
    """Trials run side by side, so more than one thread each would slow them all down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
