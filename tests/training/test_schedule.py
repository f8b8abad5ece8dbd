"""The factor on the learning rate over a run: laws of every schedule, and other implementations."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import LinearLR, SequentialLR
from transformers import get_wsd_schedule

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.training.schedule import DECAY_SHARE, SCHEDULES, Schedule, ScheduleName

PLAIN = [name for name, row in SCHEDULES.items() if not row.stable]
STABLE = [name for name, row in SCHEDULES.items() if row.stable]


@st.composite
def schedules(draw: st.DrawFn, names: list[str] = list(SCHEDULES)) -> Schedule:  # noqa: B006
    """Any schedule that fits into its run."""
    name, steps = draw(st.sampled_from(names)), draw(st.integers(1, 500))
    warmup, floor = draw(st.integers(0, 600)), draw(st.floats(0, 1))
    share = draw(st.none() | st.floats(0, 1, exclude_min=True)) if name in STABLE else None
    try:
        return Schedule(name, steps, warmup, floor, share)
    except DimensionError:
        assume(False)
        raise


def factors(schedule: Schedule) -> list[float]:
    return [schedule.at(step) for step in range(schedule.steps)]


@given(schedules())
def test_every_schedule_rises_to_one_and_falls_to_its_floor(schedule):
    values, warmup = factors(schedule), schedule.warmup
    assert all(0 <= value <= 1 for value in values)
    rising, falling = values[:warmup], values[warmup:]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert all(value >= schedule.floor for value in falling)
    if 0 < warmup <= schedule.steps:
        assert rising[-1] == 1
    if falling:
        assert falling[0] == 1
    if len(falling) > 1:
        assert falling[-1] == schedule.floor


@given(schedules(names=STABLE))
def test_the_rate_is_exactly_the_peak_between_warmup_and_decay(schedule):
    begin = schedule.steps - schedule.decay_steps
    values = factors(schedule)
    assert set(values[schedule.warmup : begin]) <= {1.0}
    if schedule.floor < 0.5 and begin > schedule.warmup:
        assert all(value < 1 for value in values[begin:])


@given(
    steps=st.integers(1, 300), share=st.floats(0, 1, exclude_min=True), warmup=st.integers(0, 300)
)
def test_the_decay_takes_the_last_share_of_the_steps(steps, share, warmup):
    decay = max(1, round(share * steps))
    if warmup + decay > steps:
        with pytest.raises(DimensionError, match=f"a warmup of {warmup} steps and a decay of"):
            Schedule("wsd", steps, warmup, decay_share=share)
        return
    below = [f < 1 for f in factors(Schedule("wsd", steps, warmup, decay_share=share))[warmup:]]
    # A decay that begins with the first step after warmup leaves that step at the peak.
    assert sum(below) == min(decay, steps - 1 - warmup if steps > warmup else 0)


@given(steps=st.integers(2, 300), data=st.data(), floor=st.floats(0, 1))
def test_a_decay_of_all_steps_after_warmup_is_that_of_linear(steps, data, floor):
    warmup = data.draw(st.integers(0, steps - 1))
    whole = Schedule("wsd", steps, warmup, floor, (steps - warmup) / steps)
    assert factors(whole) == factors(Schedule("linear", steps, warmup, floor))


@given(steps=st.integers(1, 400), warmup=st.integers(0, 450), floor=st.floats(0, 1))
def test_a_cosine_is_to_the_bit_what_it_was_before_there_were_others(steps, warmup, floor):
    """Records of older runs, and interrupted ones, depend on it."""

    def before(step):
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, steps - 1 - warmup)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    assert factors(Schedule("cosine", steps, warmup, floor)) == [before(k) for k in range(steps)]


def followed(scheduler, steps):
    """The factors of a torch scheduler whose base rate is 1."""
    found = []
    for _ in range(steps):
        found.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return found


def sgd():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
@pytest.mark.parametrize(("steps", "warmup", "floor"), [(50, 10, 0.0), (31, 7, 0.1), (9, 2, 1.0)])
def test_linear_is_torchs_linear_warmup_and_decay(steps, warmup, floor):
    optimizer = sgd()
    stages = [
        LinearLR(optimizer, 1 / warmup, 1.0, total_iters=warmup - 1),
        LinearLR(optimizer, 1.0, floor, total_iters=steps - 1 - warmup),
    ]
    theirs = followed(SequentialLR(optimizer, stages, milestones=[warmup]), steps)
    assert factors(Schedule("linear", steps, warmup, floor)) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize(("steps", "warmup", "floor"), [(50, 10, 0.0), (31, 7, 0.1), (200, 0, 0.2)])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_wsd_is_that_of_transformers_in_its_conventions(steps, warmup, floor, share):
    """transformers reaches the floor one step after the last, hence `steps - 1`, and its warmup
    starts at the floor instead of at 1/warmup, so only the rest is compared.
    """
    ours = Schedule("wsd", steps, warmup, floor, share)
    scheduler = get_wsd_schedule(
        sgd(),
        num_warmup_steps=warmup,
        num_decay_steps=ours.decay_steps,
        num_training_steps=steps - 1,
        decay_type="linear",
        min_lr_ratio=floor,
    )
    theirs = followed(scheduler, steps)
    assert factors(ours)[warmup:] == pytest.approx(theirs[warmup:], abs=1e-12)


def test_the_default_decay_is_a_fifth_of_the_run():
    assert DECAY_SHARE == 0.2
    assert factors(Schedule("wsd", 100, 10)) == factors(Schedule("wsd", 100, 10, decay_share=0.2))


def test_every_name_that_a_config_takes_has_a_row():
    assert list(get_args(ScheduleName)) == list(SCHEDULES)


def test_an_unknown_schedule_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown schedule 'wds'. Did you mean 'wsd'\?"):
        Schedule("wds", 10, 0)


@pytest.mark.parametrize("name", PLAIN)
def test_a_share_of_a_schedule_without_a_stable_part_is_refused(name):
    with pytest.raises(OptionError, match=f"decay_share = 0.2 is a setting of .* wsd, and {name}"):
        Schedule(name, 10, 0, decay_share=0.2)


@pytest.mark.parametrize("share", [0, 0.0, -0.1, 1.5, math.nan, math.inf])
def test_a_share_that_is_no_share_is_refused(share):
    with pytest.raises(OptionError, match=r"decay_share = \S+ must be above 0 and at most 1"):
        Schedule("wsd", 10, 0, decay_share=share)


def test_a_warmup_and_a_decay_that_do_not_fit_are_refused_not_shortened():
    assert Schedule("wsd", 100, 40, decay_share=0.6).at(40) == 1
    with pytest.raises(DimensionError) as caught:
        Schedule("wsd", 100, 41, decay_share=0.6)
    assert str(caught.value) == (
        "a warmup of 41 steps and a decay of 60 (decay_share = 0.6) exceed the run of 100 steps. "
        "Lower warmup or decay_share, or choose linear, which decays from the end of warmup."
    )
