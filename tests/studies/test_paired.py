"""The paired search: it finds what a made landscape hides, moves only for what exceeds noise, and
depends on records alone.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from mupscale.analysis.families import analyse
from mupscale.errors import OptionError
from mupscale.studies import StudyConfig, TrialRecord
from mupscale.studies.cell_run import CellRun
from mupscale.studies.measured import measured
from mupscale.studies.paired import FIRST_STEP, on_the_line, replay
from mupscale.studies.quick import QUICK

SPACE = {
    "lr": ["2^-10", "2^-2"],
    "lr.embedding": ["2^-4", "2^4"],
    "std.readout": ["2^-4", "2^4"],
    "lr.gains": ["2^-4", "2^4"],
}
Loss = Callable[[Mapping[str, float], int], float | None]
"""Of log2 of each parameter and the seed."""


def configured(seeds=(1, 2, 3), **space) -> StudyConfig:
    search = {"method": "paired", "step": 1.0}
    return StudyConfig.from_dict(
        {**QUICK, "seeds": list(seeds), "space": space or SPACE, "search": search}
    )


def noise(place: Mapping[str, float], seed: int) -> float:
    """Depends on the point and the seed alone, as that of a real run does."""
    numbers = [round(1e3 * (x + 100)) for _, x in sorted(place.items())]
    return 0.003 * float(np.random.default_rng([*numbers, seed]).normal())


def bowl(place: Mapping[str, float], seed: int) -> float:
    """The rate is best at 2^-6.5, the embedding's at × 4, the readout's std at × 1; the rate of
    gains does not matter.
    """
    squares = 0.05 * (place["lr"] + 6.5) ** 2 + 0.02 * (place["lr.embedding"] - 2) ** 2
    squares += 0.01 * place["std.readout"] ** 2
    return 2 + 0.02 * seed + squares + noise(place, seed)


def carried_out(config: StudyConfig, loss: Loss) -> list[TrialRecord]:
    (cell,) = config.cells()
    run = CellRun(config, cell, ())
    ended: list[TrialRecord] = []
    while (proposed := run.next()) is not None:
        params = proposed.point.params
        value = loss({k: math.log2(v) for k, v in params.items()}, proposed.point.seed)
        ended.append(
            TrialRecord(
                cell=cell.name, rule=cell.rule_name, variant=cell.variant, number=proposed.number,
                round=proposed.round, seed=proposed.point.seed, params=params, loss=value,
                status="diverged" if value is None else "finished", step=9, steps=9, tokens=9,
            )
        )  # fmt: skip
        run.add(ended[-1])
    assert run.done
    return ended


@pytest.fixture(scope="module")
def trials() -> list[TrialRecord]:
    return carried_out(configured(), bowl)


def searched(trials: list[TrialRecord], config: StudyConfig | None = None):
    config = config or configured()
    return replay(config.cells()[0].space, config.seeds, trials, config.search.step)


def test_it_finds_what_matters_and_reports_what_does_not(trials: list[TrialRecord]):
    found = searched(trials)
    assert found.done
    assert found.point["lr"] == pytest.approx(-6.5, abs=0.51)
    assert found.point["lr.embedding"] == pytest.approx(2, abs=0.01)
    assert found.point["std.readout"] == 0
    assert found.point["lr.gains"] == 0
    assert {one.verdict for one in found.last_of("lr.gains")} == {"no difference"}
    assert {one.verdict for one in found.last_of("std.readout")} == {"worse"}
    assert {one.step for one in found.last_of("lr.gains")} == {FIRST_STEP}  # not tried again
    assert {one.step for one in found.last_of("std.readout")} == {1.0}
    moves = [one.name for one in found.comparisons if one.accepted]
    assert "lr.embedding × 4" in moves
    assert len(trials) < 100


def test_values_are_tuned_before_factors(trials: list[TrialRecord]):
    found = searched(trials)
    assert {name: x for name, x in found.before_factors.items() if name != "lr"} == {
        "lr.embedding": 0, "std.readout": 0, "lr.gains": 0,
    }  # fmt: skip
    first = next(k for k, t in enumerate(trials) if t.params["lr.embedding"] != 1)
    assert all(t.params["std.readout"] == t.params["lr.gains"] == 1 for t in trials[:first])


def test_every_comparison_is_on_the_same_seeds_and_each_pair_is_compared_once(trials):
    found = searched(trials)
    for one in found.comparisons:
        assert set(one.differences) == {1, 2, 3}
        assert one.estimate.value == pytest.approx(sum(one.differences.values()) / 3)
    runs = [(tuple(sorted(t.params.items())), t.seed) for t in trials]
    assert len(set(runs)) == len(runs)


def test_a_replay_of_any_part_of_the_records_asks_for_the_next_ones(trials: list[TrialRecord]):
    def places(points) -> set:
        return {
            (tuple(sorted((name, round(x, 6)) for name, x in place.items())), seed)
            for place, seed in points
        }

    for last in range(max(t.round for t in trials) + 1):
        asked = searched([t for t in trials if t.round < last]).missing
        ran = [
            ({name: math.log2(value) for name, value in t.params.items()}, t.seed)
            for t in trials
            if t.round == last
        ]
        assert places(asked) == places(ran)
    (cell,) = configured().cells()
    assert CellRun(configured(), cell, trials).done


def test_no_parameter_is_dropped_before_the_noise_is_known():
    """With two seeds each comparison has one degree of freedom, so the first factor is judged with
    four. Then the point moves, and it is tried again there; the last factor, judged with more, is
    not.
    """
    names = ("lr.gains", "lr.embedding", "std.readout")
    space = {"lr": ["2^-8", "2^-4"]} | {name: ["2^-2", "2^2"] for name in names}
    config = configured(seeds=(1, 2), **space)

    def loss(place: Mapping[str, float], seed: int) -> float:
        bowl = 0.05 * (place["lr"] + 6) ** 2 + 0.2 * (place["lr.embedding"] - 2) ** 2
        return 2 + bowl + noise(place, seed)

    found = searched(carried_out(config, loss), config)
    steps = {
        name: {one.step for one in found.comparisons if one.direction[0][0] == name}
        for name in names
    }
    assert steps["lr.gains"] == {2.0, 1.0}
    assert steps["std.readout"] == {2.0}


def test_what_the_first_comparisons_could_not_decide_is_judged_again():
    """Two noisy comparisons of the rate hide a gain of 0.028 nats. Six quiet ones show that they
    were an exception: × 4 is taken, although × 2 gains nothing.
    """
    names = ("lr.embedding", "lr.gains", "std.readout", "std.embedding")
    space = {"lr": ["2^-8", "2^-4"]} | {name: ["2^-2", "2^2"] for name in names}
    config = configured(seeds=(1, 2), **space)
    sides = {2.0: -0.028, 1.0: 0.0, 0.0: 0.0, -1.0: 0.05, -2.0: 0.05}

    def loss(place: Mapping[str, float], seed: int) -> float:
        away = abs(place["lr"] + 6)
        noisy = 0.02 * (1 if seed == 1 else -1) * (away > 0)
        return 2 + 0.15 * away + noisy + sides[round(place["lr.embedding"], 6)]

    found = searched(carried_out(config, loss), config)
    assert found.point["lr.embedding"] == 2
    assert [one.name for one in found.comparisons if one.accepted] == ["lr.embedding × 4"]


def test_noise_alone_moves_nothing_far():
    """Where nothing matters, each comparison is a false alarm with probability 1/40 per side."""
    moved = [
        sum(one.accepted for one in searched(carried_out(configured(), flat(seed))).comparisons)
        for seed in range(10)
    ]
    assert sum(moved) <= 4


def flat(number: int) -> Loss:
    def loss(place: Mapping[str, float], seed: int) -> float:
        return 2 + noise({**place, "world": float(number)}, seed)

    return loss


def test_a_start_that_diverges_is_left_for_one_that_trains():
    def loss(place: Mapping[str, float], seed: int) -> float | None:
        return None if place["lr"] > -7 else bowl(place, seed)

    found = searched(carried_out(configured(), loss))
    assert found.done
    assert -8.6 < found.point["lr"] <= -7
    assert found.point["lr.embedding"] == pytest.approx(2, abs=0.01)


def test_two_that_interact_are_moved_together():
    """A narrow valley along lr × std.readout, which no single parameter follows."""
    space = {"lr": ["2^-10", "2^-2"], "std.readout": ["2^-4", "2^4"]}

    def loss(place: Mapping[str, float], seed: int) -> float:
        along, across = (
            place["lr"] + 6 + place["std.readout"],
            place["lr"] + 6 - place["std.readout"],
        )
        return 2 + 0.02 * seed + 0.4 * across**2 + 0.02 * (along - 4) ** 2 + noise(place, seed)

    config = configured(**space)
    found = searched(carried_out(config, loss), config)
    assert found.point == pytest.approx({"lr": -4, "std.readout": 2}, abs=0.01)
    assert any(len(one.direction) == 2 and one.accepted for one in found.comparisons)


def test_the_analysis_sees_the_rates_around_the_best_point(trials: list[TrialRecord], tmp_path):
    found = searched(trials)
    line = list(on_the_line(trials, found.point))
    rates = sorted({t.log2_lr for t in line})
    assert len(rates) >= 5
    assert {len([t for t in line if t.log2_lr == rate]) for rate in rates} == {3}
    config = configured()

    class Stood:
        def __init__(self) -> None:
            self.config, self.trials = config, trials

    runs, _ = measured(Stood())  # pyright: ignore[reportArgumentType]
    (cell,) = analyse(runs).cells
    assert len(runs) == len(line)
    assert cell.optimum is not None
    assert cell.optimum.value == pytest.approx(-6.5, abs=0.2)
    assert cell.lowest is not None
    assert cell.lowest.params["lr.embedding"] == 4


def test_one_seed_is_refused():
    with pytest.raises(OptionError, match=r"seeds = \[1\] shows no noise"):
        configured(seeds=(1,))


def test_the_budget_ends_it(trials: list[TrialRecord]):
    config = configured()
    config = replace(config, search=replace(config.search, trials=20))
    assert len(carried_out(config, bowl)) == 20
