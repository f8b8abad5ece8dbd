"""Which device to use."""

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
