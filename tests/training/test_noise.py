"""The gradient noise scale: against a model with a known one, and inside a run."""

import json

import numpy as np
import pytest
import torch

from mupscale.data import Batches, open_corpus
from mupscale.errors import DimensionError
from mupscale.training import RunConfig, RunRecord, loop, run
from mupscale.training.metrics import read_lines
from mupscale.training.noise import NoiseParts, NoiseScale, noise_parts
from mupscale.training.preparation import on_meta, plan_for
from tests.training.test_run import config, stop_at

MEASURED = {"noise_every": 1, "checkpoint_every": 4, "eval_every": None}


def squares(small: int, large: int, seed: int, count: int = 4000) -> tuple[float, float]:
    """Mean squared norms of two batches' gradients, the small one a part of the large one.

    A token's gradient is G plus noise of standard deviation s: |G|² = 4, tr(Σ) = 50 s² = 1,250.
    """
    rng = np.random.default_rng(seed)
    mean, spread = np.full(50, 2 / np.sqrt(50)), 5.0
    part = mean + spread / np.sqrt(small) * rng.standard_normal((count, 50))
    rest = mean + spread / np.sqrt(large - small) * rng.standard_normal((count, 50))
    whole = (small * part + (large - small) * rest) / large
    return (part**2).sum(axis=1).mean(), (whole**2).sum(axis=1).mean()


class TestTheEstimate:
    @pytest.mark.parametrize(("small", "large"), [(64, 128), (32, 128), (100, 300)])
    def test_is_unbiased(self, small, large):
        """Over 4,000 steps the means are |G|² = 4 and tr(Σ) = 1,250, up to their noise."""
        parts = noise_parts(small, large, *squares(small, large, seed=1))
        assert parts.signal == pytest.approx(4, rel=0.1)
        assert parts.noise == pytest.approx(1250, rel=0.05)

    def test_recovers_the_expected_norms_exactly(self):
        signal, noise = 3.0, 700.0
        expected = (signal + noise / size for size in (16, 64))
        assert noise_parts(16, 64, *expected) == pytest.approx(NoiseParts(signal, noise))

    @pytest.mark.parametrize(("small", "large"), [(0, 2), (2, 2), (3, 2)])
    def test_needs_two_sizes(self, small, large):
        with pytest.raises(DimensionError, match="below large"):
            noise_parts(small, large, 1.0, 1.0)

    def test_averages_the_parts_before_it_divides(self):
        """The mean of the ratios would be (100/1 + 100/3)/2; steps count equally here."""
        scale = NoiseScale(memory=0.999999)
        for signal in (1.0, 3.0):
            scale.add(NoiseParts(signal, 100.0))
        assert scale.tokens == pytest.approx(200 / 4, rel=1e-4)

    def test_forgets(self):
        """After n measurements with memory m, the old level counts m^n."""
        scale = NoiseScale(memory=0.9)
        for noise in [100.0] * 200 + [300.0] * 5:
            scale.add(NoiseParts(1.0, noise))
        assert scale.tokens == pytest.approx(300 - 200 * 0.9**5)

    @pytest.mark.parametrize("parts", [NoiseParts(-1.0, 5.0), NoiseParts(1.0, -5.0)])
    def test_is_unknown_while_an_average_is_not_positive(self, parts):
        scale = NoiseScale()
        assert scale.tokens is None
        scale.add(parts)
        assert scale.tokens is None

    def test_leaves_out_what_is_not_finite(self):
        scale = NoiseScale()
        scale.add(NoiseParts(1.0, 8.0))
        scale.add(NoiseParts(float("nan"), 8.0))
        scale.add(NoiseParts(1.0, float("inf")))
        assert scale.tokens == pytest.approx(8)


def by_hand(chosen: RunConfig, first_half: list[int]) -> float:
    """The noise scale at step 0, from the gradients of the rows of one half and of all rows."""
    batch, sequence = loop.lengths(chosen).batch, chosen.data.sequence
    corpus = open_corpus(chosen.data.corpus)
    rows = Batches(corpus, batch=batch, sequence=sequence, seed=chosen.seed).at(0)
    planned = plan_for(chosen)
    model = on_meta(chosen.model).to_empty(device="cpu")
    planned.initialize_(model, std=chosen.optimizer.std, seed=chosen.seed)

    def squared(which: list[int]) -> float:
        model.zero_grad()
        model(rows.inputs[which], rows.targets[which]).backward()
        return sum(
            float((planned.parameters[name].folded * tensor.grad).square().sum())
            for name, tensor in model.named_parameters()
        )

    half, every = len(first_half), list(range(batch))
    small, large = half * sequence, batch * sequence
    parts = noise_parts(small, large, squared(first_half), squared(every))
    assert parts.signal > 0
    return parts.noise / parts.signal


def measured(folder) -> list[float]:
    rows, _ = read_lines(folder / "metrics.jsonl")
    return [row["noise_scale_tokens"] for row in rows if "noise_scale_tokens" in row]


class TestARun:
    @pytest.mark.parametrize("micros", [1, 2, 4])
    def test_measures_what_the_gradients_of_its_halves_give(self, tmp_path, micros):
        chosen = config(record=MEASURED, length={"accumulate": micros, "steps": 1})
        record = run(chosen, tmp_path)
        assert measured(tmp_path)[0] == pytest.approx(by_hand(chosen, [0, 1]), rel=1e-3)
        assert record.noise_scale_tokens == measured(tmp_path)[-1]

    def test_of_three_slices_takes_the_first_as_the_small_batch(self, tmp_path):
        chosen = config(record=MEASURED, length={"accumulate": 3, "batch": 6, "steps": 1})
        run(chosen, tmp_path)
        assert measured(tmp_path)[0] == pytest.approx(by_hand(chosen, [0, 1]), rel=1e-3)

    def test_measures_the_same_with_folded_factors_and_with_hooks(self, tmp_path):
        found = []
        for way in ("fold", "hook"):
            chosen = config(record=MEASURED, optimizer={"multipliers": way}, length={"steps": 1})
            run(chosen, tmp_path / way)
            found.append(measured(tmp_path / way)[0])
        assert found[0] == pytest.approx(found[1], rel=1e-3)

    def test_trains_the_same_up_to_rounding(self, tmp_path):
        plain = run(config(), tmp_path / "plain").train_loss
        other = run(config(record=MEASURED), tmp_path / "measured").train_loss
        assert other == pytest.approx(plain, abs=1e-5)

    def test_measures_only_every_so_many_steps(self, tmp_path):
        run(config(record={"noise_every": 5, "log_every": 4}), tmp_path)
        rows, _ = read_lines(tmp_path / "metrics.jsonl")
        steps = [row["step"] for row in rows if "noise_scale_tokens" in row]
        assert steps == [5, 10]
        assert [row["step"] for row in rows] == [4, 5, 6, 8, 10, 12]

    def test_that_was_stopped_goes_on_to_the_same_digits(self, tmp_path):
        chosen = config(record=MEASURED)
        whole = run(chosen, tmp_path / "whole")
        with pytest.raises(loop.InterruptedRunError):
            run(chosen, tmp_path / "cut", report=stop_at(6))
        assert run(chosen, tmp_path / "cut") == whole
        assert measured(tmp_path / "cut") == measured(tmp_path / "whole")
        assert len(set(measured(tmp_path / "whole"))) == 12

    def test_needs_a_batch_with_two_halves(self, tmp_path):
        with pytest.raises(DimensionError, match=r"into halves, but length\.batch = 5"):
            run(config(record=MEASURED, length={"batch": 5}), tmp_path)
        run(config(record=MEASURED, length={"batch": 3, "accumulate": 3, "steps": 1}), tmp_path)

    @pytest.mark.parametrize("every", [0, -1])
    def test_needs_a_positive_number_of_steps(self, every):
        with pytest.raises(DimensionError, match=f"record.noise_every = {every} must be at least"):
            config(record={"noise_every": every})


class TestWithoutIt:
    def test_configs_and_records_are_as_before(self, tmp_path):
        chosen = config()
        assert "noise_every" not in chosen.to_dict()["record"]
        record = run(chosen, tmp_path)
        values = json.loads((tmp_path / "record.json").read_text())
        assert "noise_scale_tokens" not in values
        assert RunRecord(**values) == record
        assert record.noise_scale_tokens is None
        (checkpoint,) = (tmp_path / "checkpoint").glob("step-000000012.json")
        assert set(json.loads(checkpoint.read_text())["values"]) == {"first_loss"}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
