"""Whether a plan drew the weights: by their statistics, since their bits depend on the seed."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mupscale.planning.groups import PerRole, value_of
from mupscale.planning.rows import local_part
from mupscale.planning.values import PlannedParameter

SAMPLE = 1 << 16
"""Entries of a tensor that are inspected: enough for its size to 0.3 %."""
ERRORS = 6.0
"""Standard errors that are attributed to chance: one false alarm in 10⁹ tensors."""
SIZE, SHAPE = 0.05, 0.2
"""Tolerances beyond chance: 5 % of the root mean square, and 0.2 of the kurtosis, which is 3 for
normal numbers and 1.8 for uniform ones.
"""


@dataclass(frozen=True)
class _Sample:
    """Statistics of the numbers that were drawn with one standard deviation."""

    parameter: PlannedParameter
    factor: float
    """On the base's standard deviation."""
    count: int
    rms: float
    kurtosis: float

    @property
    def base_std(self) -> float:
        """The standard deviation of the base that would give this size."""
        return self.rms / self.factor

    def differs_from(self, expected: float) -> bool:
        allowed = SIZE + ERRORS / math.sqrt(2 * self.count)
        return abs(self.rms - expected) > allowed * expected

    @property
    def normal(self) -> bool:
        allowed = SHAPE + ERRORS * math.sqrt(24 / self.count)
        return self.rms == 0 or abs(self.kurtosis - 3) <= allowed


def unplanned_weights(
    parameters: Mapping[str, PlannedParameter],
    tensors: Mapping[str, Tensor],
    std: PerRole | None,
    padding: Mapping[str, int],
) -> list[str]:
    """One line per template whose weights differ from what the plan draws or sets.

    Without `std`, the sizes of the weights are compared with each other: all must come from one
    base value.
    """
    problems: dict[str, str] = {}
    samples: list[_Sample] = []
    for name, tensor in tensors.items():
        p = parameters[name]
        if not tensor.requires_grad or tensor.is_meta:
            continue
        if p.drawn and not p.kept:
            samples += _samples(p, tensor, padded=name in padding)
        elif p.start is not None and _differs(tensor, p.start):
            message = f"{p.template} is not {p.start:g}, the constant of the plan"
            problems.setdefault(p.template, message)
    for template, message in _of_samples(samples, std):
        problems.setdefault(template, message)
    return list(problems.values())


def _of_samples(samples: Sequence[_Sample], std: PerRole | None) -> Iterator[tuple[str, str]]:
    usable = [sample for sample in samples if sample.count and sample.factor]
    drawn = [sample.base_std for sample in usable if sample.rms]
    common = statistics.median_low(drawn) if drawn else 0.0
    for sample in usable:
        p = sample.parameter
        if std is None and not sample.rms:
            continue  # a base std of 0 for a role, such as a readout that starts at zero
        expected = sample.factor * (common if std is None else value_of(std, p.role))
        if sample.differs_from(expected):
            size = f"a root mean square of {sample.rms:.4g}"
            yield p.template, f"{p.template} has {size}, the plan draws it with {expected:.4g}"
        elif not sample.normal:
            kurtosis = f"its kurtosis is {sample.kurtosis:.3g} instead of 3"
            yield p.template, f"{p.template} is not normal: {kurtosis}"


@torch.no_grad()
def _differs(tensor: Tensor, start: float) -> bool:
    local = local_part(tensor)[0]
    return bool((local != torch.tensor(start, dtype=local.dtype, device=local.device)).any())


@torch.no_grad()
def _samples(p: PlannedParameter, tensor: Tensor, *, padded: bool) -> Iterator[_Sample]:
    local, _, offset = local_part(tensor)
    # One row of zeros shrinks the second and the fourth moment alike.
    rest = 1 - 1 / p.shape[0] if padded else 1.0
    for factor, part in _parts(p, local, offset[p.out_axis]):
        numbers = part.reshape(-1)[:: max(1, part.numel() // SAMPLE)].double()
        if numbers.numel() and rest:
            second, fourth = (numbers.pow(power).mean().item() / rest for power in (2, 4))
            kurtosis = fourth / second**2 if second else math.nan
            yield _Sample(p, factor, numbers.numel(), math.sqrt(second), kurtosis)


def _parts(p: PlannedParameter, local: Tensor, begin: int) -> Iterator[tuple[float, Tensor]]:
    """The local part of a tensor, split by the factors of its rows."""
    if not p.rows:
        yield p.init_std, local
        return
    end = begin + local.shape[p.out_axis]
    for block in p.rows:
        for start, stop in block.slices:
            low, high = max(start, begin), min(stop, end)
            if low < high:
                yield block.init_std, local.narrow(p.out_axis, low - begin, high - low)
