"""Schedules in the languages of the trainers: one row per schedule of `mupscale.training`."""

from collections.abc import Mapping
from dataclasses import dataclass

from mupscale.recipes.recipe import Recipe


@dataclass(frozen=True)
class ExportedSchedule:
    """How a trainer writes the fall of the rate. All of them warm up linearly."""

    python: str
    "From 1 to 0, as `done` goes from 0 to 1."
    torchtitan: str
    "Its decay_type. A decay at the end of the run has a decay_ratio too."
    megatron: str
    "Its --lr-decay-style."
    megatron_wsd: str | None = None
    "Its --lr-wsd-decay-style."


EXPORTED_SCHEDULES: Mapping[str, ExportedSchedule] = {
    "cosine": ExportedSchedule("0.5 * (1 + math.cos(math.pi * done))", "cosine", "cosine"),
    "linear": ExportedSchedule("(1 - done)", "linear", "linear"),
    "wsd": ExportedSchedule("(1 - done)", "linear", "WSD", "linear"),
}


def exported_schedule(recipe: Recipe) -> ExportedSchedule:
    return EXPORTED_SCHEDULES[recipe.training.schedule]
