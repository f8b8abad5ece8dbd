"""Whether weights are those that a plan draws: by their statistics, since their bits depend on the
seed.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from mupscale.planning.groups import PerRole, value_of
from mupscale.planning.values import PlannedParameter

SAMPLE = 1 << 16
"""Entries of a tensor that are looked at: enough for its size to 0.3 %."""
ERRORS = 6.0
"""Standard errors that are put down to chance: one false alarm in 10⁹ tensors."""
SIZE, SHAPE = 0.05, 0.2
"""What else may be off: the root mean square by 5 %, the kurtosis, 3 for normal numbers and 1.8 for
uniform, by 0.2.
"""


@dataclass(frozen=True)
class _Sample:
    """What was seen of the numbers that one standard deviation was meant for."""

    parameter: PlannedParameter
    factor: float
    "On the base's standard deviation."
    count: int
    rms: float
    kurtosis: float

    @property
    def base_std(self) -> float:
        """What the base's standard deviation would have been."""
        return self.rms / self.factor

    def differs_from(self, expected: float) -> bool:
        allowed = SIZE + ERRORS / math.sqrt(2 * self.count)
        return abs(self.rms - expected) > allowed * expected

    @property
    def normal(self) -> bool:
        return self.rms == 0 or abs(self.kurtosis - 3) <= SHAPE + ERRORS * math.sqrt(
            24 / self.count
        )


def unplanned_weights(
    parameters: Mapping[str, PlannedParameter],
    tensors: Mapping[str, Tensor],
    std: PerRole | None,
    padding: Mapping[str, int],
) -> list[str]:
    """One line for each template whose weights a plan would not have drawn, or set, so.

    Without `std`, the sizes of the weights are compared with each other: all must come from one
    base value.
    """
    here = {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.requires_grad and not tensor.is_meta
    }
    found: dict[str, str] = {}
    samples: list[_Sample] = []
    for name, tensor in here.items():
        p = parameters[name]
        if (not p.drawn or p.kept) and p.start is not None:
            if _differs(tensor, p.start):
                found.setdefault(
                    p.template, f"{p.template} is not at {p.start:g}, where the plan sets it"
                )
        elif p.drawn and not p.kept:
            samples += _samples(p, tensor, padded=name in padding)
    for template, said in _of_samples(samples, std):
        found.setdefault(template, said)
    return list(found.values())


def _of_samples(samples: Sequence[_Sample], std: PerRole | None) -> Iterator[tuple[str, str]]:
    usable = [one for one in samples if one.count and one.factor]
    drawn = [one.base_std for one in usable if one.rms]
    common = statistics.median_low(drawn) if drawn else 0.0
    for one in usable:
        p = one.parameter
        if std is None and not one.rms:
            continue  # a base std of 0 for a role, as for a readout that starts at zero
        expected = one.factor * (common if std is None else value_of(std, p.role))
        if one.differs_from(expected):
            yield (
                p.template,
                f"{p.template} has a root mean square of {one.rms:.4g}, the plan draws it with "
                f"{expected:.4g}",
            )
        elif not one.normal:
            yield (
                p.template,
                f"{p.template} is not normal: its kurtosis is {one.kurtosis:.3g}, that of what the "
                "plan draws 3",
            )


@torch.no_grad()
def _differs(tensor: Tensor, start: float) -> bool:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return bool((local != torch.tensor(start, dtype=local.dtype, device=local.device)).any())


@torch.no_grad()
def _samples(p: PlannedParameter, tensor: Tensor, *, padded: bool) -> Iterator[_Sample]:
    local, begin = tensor, 0
    if isinstance(tensor, DTensor):
        local = tensor.to_local()
        _, offset = compute_local_shape_and_global_offset(
            tensor.shape, tensor.device_mesh, tensor.placements
        )
        begin = offset[p.out_axis]
    rest = (
        1 - 1 / p.shape[0] if padded else 1.0
    )  # one row of zeros shrinks the second and the fourth moment alike
    for factor, part in _parts(p, local, begin):
        numbers = part.reshape(-1)[:: max(1, part.numel() // SAMPLE)].double()
        if numbers.numel() and rest:
            second, fourth = (numbers.pow(power).mean().item() / rest for power in (2, 4))
            kurtosis = fourth / second**2 if second else math.nan
            yield _Sample(p, factor, numbers.numel(), math.sqrt(second), kurtosis)


def _parts(p: PlannedParameter, local: Tensor, begin: int) -> Iterator[tuple[float, Tensor]]:
    """The local part of a tensor by the factors of its rows."""
    if not p.rows:
        yield p.init_std, local
        return
    end = begin + local.shape[p.out_axis]
    for block in p.rows:
        for start, stop in block.slices:
            low, high = max(start, begin), min(stop, end)
            if low < high:
                yield block.init_std, local.narrow(p.out_axis, low - begin, high - low)
