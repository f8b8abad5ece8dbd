"""The figure of spectral against expected norm: its data, its theory, its files."""

import csv
import json

import pytest
import torch

from mupscale.paper.expected_norms import EXPERIMENT, Config, run, summarize

SMALL = Config(width=96, repetitions=(1, 4, 12), draws=200)


@pytest.fixture(scope="module")
def draws():
    return run(SMALL)


def test_repetition_raises_the_spectral_norm_and_leaves_the_expected_one(draws):
    points = {(p.norm, p.r): p for p in summarize(SMALL, draws)}
    for r in SMALL.repetitions:
        assert points["spectral", r].theory == pytest.approx(1 + r**0.5)
        assert points["expected", r].theory == 1
        assert points["spectral", r].mean == pytest.approx(1 + r**0.5, rel=0.05)
        assert points["expected", r].mean == pytest.approx(1, rel=0.03)


def test_the_spread_of_one_input_grows_with_repetition(draws):
    """Relative sd of ‖W⊕x‖/‖x‖ over draws is √(r/2n); 200 draws estimate it to 5 %, so 20 % is four
    of those.
    """
    points = {p.r: p for p in summarize(SMALL, draws) if p.norm == "expected"}
    for r in SMALL.repetitions:
        assert points[r].sd == pytest.approx((r / (2 * SMALL.width)) ** 0.5, rel=0.2)


def test_norms_are_those_of_the_matrix_that_is_really_stacked():
    config = Config(width=12, repetitions=(4,), draws=2, seed=3)
    generator = torch.Generator().manual_seed(3)
    W = torch.randn(2, 3, 12, generator=generator)
    stacked = W.repeat(1, 4, 1)
    spectral = torch.linalg.matrix_norm(stacked, 2) / 12**0.5
    assert [draw.spectral for draw in run(config)] == pytest.approx(spectral.tolist(), rel=1e-3)


def test_the_same_seed_gives_the_same_draws(draws):
    assert run(SMALL) == draws
    assert run(Config(width=96, repetitions=(1,), draws=4, seed=1)) != run(
        Config(width=96, repetitions=(1,), draws=4)
    )


def made_in(folder):
    EXPERIMENT.run_with(SMALL, folder, lambda done, total: None)
    return EXPERIMENT.findings_with(SMALL, folder).paths


def test_figure_and_data_are_written_and_written_alike_again(draws, tmp_path):
    first, second = (made_in(tmp_path / name) for name in ("a", "b"))
    assert [path.suffix for path in first] == [".jsonl", ".csv", ".png", ".svg", ".pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert len([json.loads(line) for line in first[0].read_text().splitlines()]) == len(draws)
    rows = list(csv.DictReader(first[1].read_text().splitlines()))
    assert [float(row["mean"]) for row in rows] == [point.mean for point in summarize(SMALL, draws)]


def test_progress_counts_every_draw():
    seen: list[tuple[int, int]] = []
    run(Config(width=12, repetitions=(1, 2), draws=5), lambda *count: seen.append(count))
    assert seen == [(5, 10), (10, 10)]
