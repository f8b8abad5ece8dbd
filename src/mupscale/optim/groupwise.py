"""Base class of optimizers that check parameter groups and step one at a time."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from mupscale.errors import MupscaleError, OptionError
from mupscale.optim.options import Group, label

Loss = TypeVar("Loss")


class GroupwiseOptimizer(Optimizer, ABC):
    """Abstract: subclasses define which groups are valid and how a group is stepped."""

    @abstractmethod
    def check_group(self, group: Group) -> None:
        """Raise if `group` cannot be stepped."""

    @abstractmethod
    def step_group_(self, group: Group, params: list[Tensor]) -> None:
        """Step `params`, those of the group that have a gradient."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # pyright: ignore
        """Take one step; `closure` recomputes the loss and returns it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if params := with_gradient(group):
                self.step_group_(group, params)
        return loss

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, with defaults for missing settings. An invalid group is not kept."""
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1])
        except MupscaleError:
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load a saved state. Settings that it lacks keep their value: a state of torch's Muon has
        no layouts.
        """
        groups: list[Group] = state["param_groups"]
        for loaded, own in zip(groups, getattr(self, "param_groups", groups), strict=True):
            loaded.update({key: value for key, value in own.items() if key not in loaded})
            self._check(loaded)
        super().__setstate__(state)

    def _check(self, group: Group) -> None:
        for index, param in enumerate(group["params"]):
            if param.is_complex():
                raise OptionError(
                    f"{label(group, index)} has dtype {param.dtype}. {type(self).__name__} needs "
                    "real numbers: store torch.view_as_real(...) of it."
                )
        self.check_group(group)


def with_gradient(group: Group) -> list[Tensor]:
    """The parameters of a group that have a gradient, all of which must be dense."""
    for index, param in enumerate(group["params"]):
        if param.grad is not None and param.grad.layout is not torch.strided:
            raise OptionError(
                f"{label(group, index)} has a gradient with layout {param.grad.layout}. "
                "Give it a dense one: nn.Embedding(..., sparse=False)."
            )
    return [param for param in group["params"] if param.grad is not None]
