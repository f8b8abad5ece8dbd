"""A batch depends on the seed and the step, and on nothing else."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mupscale.data import Batches, Corpus, ValidationBatches, open_corpus
from mupscale.errors import DimensionError, OptionError


def counting(length: int) -> np.ndarray:
    """Each token is its own place, so a batch says where it was read."""
    return np.arange(length, dtype=np.uint32)


def corpus(
    train: np.ndarray, validation: np.ndarray | None = None, vocabulary: int = 2**31
) -> Corpus:
    held = train[:0] if validation is None else validation
    return Corpus("made", vocabulary, "print", "none", train, held)


def test_inputs_and_targets_are_the_same_text_shifted_by_one():
    inputs, targets = Batches(counting(1000), batch=8, sequence=16, seed=3).at(5)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.shape == targets.shape == (8, 16)
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    assert torch.equal(inputs + 1, targets)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_the_starts_are_philox_under_seed_and_step():
    """The stream is written down here by other means, so that no change of ours moves a finished
    study's data.
    """
    inputs, _ = Batches(counting(1000), batch=4, sequence=10, seed=7).at(2)
    raw = np.random.Philox(key=7 + (2 << 64)).random_raw(4)
    assert inputs[:, 0].tolist() == [int(word) % 990 for word in raw]


def test_another_process_draws_the_same():
    code = (
        "from mupscale.data import Batches, open_corpus; corpus = open_corpus('python-stdlib');"
        "batches = Batches(corpus, batch=4, sequence=8, seed=1);"
        "print(corpus.fingerprint, [batches.at(s).inputs.tolist() for s in (0, 9)])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = open_corpus("python-stdlib")
    batches = Batches(here, batch=4, sequence=8, seed=1)
    assert (
        out.stdout.strip()
        == f"{here.fingerprint} {[batches.at(s).inputs.tolist() for s in (0, 9)]}"
    )


@given(
    share=st.integers(1, 4),
    ranks=st.integers(1, 9),
    micros=st.integers(1, 4),
    step=st.integers(0, 2**64 - 1),
    seed=st.integers(0, 2**64 - 1),
)
def test_the_shares_of_ranks_and_accumulation_are_the_global_batch(
    share, ranks, micros, step, seed
):
    batches = Batches(counting(500), batch=share * ranks * micros, sequence=5, seed=seed)
    whole = batches.at(step)
    of_ranks = [batches.at(step, rank=r, ranks=ranks) for r in range(ranks)]
    parts = [
        batches.at(step, rank=r, ranks=ranks, micro=m, micros=micros)
        for r in range(ranks)
        for m in range(micros)
    ]
    for side in (0, 1):
        assert torch.equal(torch.cat([part[side] for part in of_ranks]), whole[side])
        assert torch.equal(torch.cat([part[side] for part in parts]), whole[side])


@given(length=st.integers(2, 60), sequence=st.integers(1, 59), step=st.integers(0, 10**15))
def test_windows_are_in_range(length, sequence, step):
    if sequence >= length:
        with pytest.raises(DimensionError):
            Batches(counting(length), batch=1, sequence=sequence, seed=0)
        return
    inputs, targets = Batches(counting(length), batch=64, sequence=sequence, seed=0).at(step)
    assert inputs.min() >= 0
    assert targets.max() <= length - 1
    assert torch.equal(inputs + 1, targets)


def test_every_start_is_as_likely_as_any_other():
    starts = starts_of(Batches(counting(110), batch=100, sequence=10, seed=0), steps=500)
    observed = np.bincount(starts, minlength=100)
    assert len(observed) == 100  # the first and the last possible start are drawn, and none beyond
    assert 0.001 < stats.chisquare(observed).pvalue < 0.999


def test_neighbouring_steps_and_seeds_have_nothing_in_common():
    long = counting(10**6)
    first = Batches(long, batch=512, sequence=4, seed=0)
    for other in (first.at(1), Batches(long, batch=512, sequence=4, seed=1).at(0)):
        here, there = first.at(0).inputs[:, 0].numpy(), other.inputs[:, 0].numpy()
        assert len(np.intersect1d(here, there)) <= 3
        assert abs(np.corrcoef(here, there)[0, 1]) < 0.15


def starts_of(batches: Batches, steps: int) -> np.ndarray:
    return torch.cat([batches.at(step).inputs[:, 0] for step in range(steps)]).numpy()


def test_every_step_differs_however_far():
    batches = Batches(counting(10**6), batch=4, sequence=8, seed=0)
    steps = [*range(2000), 2**32, 2**32 + 1, 10**12, 10**12 + 1, 2**63, 2**64 - 1]
    assert len({tuple(batches.at(step).inputs[:, 0].tolist()) for step in steps}) == len(steps)


def test_order_of_asking_does_not_matter():
    batches = Batches(counting(1000), batch=4, sequence=8, seed=0)
    forward = [batches.at(step).inputs for step in range(10)]
    assert all(torch.equal(batches.at(step).inputs, forward[step]) for step in (7, 0, 9, 3))


def test_a_map_larger_than_memory_is_read_where_it_is_needed(tmp_path):
    """A file of 64 GiB without blocks on the disk: whoever read it whole would be found out."""
    path = tmp_path / "train.bin"
    with path.open("wb") as file:
        file.truncate(2**36)
    tokens = np.memmap(path, dtype="<u2", mode="r")
    inputs, _ = Batches(corpus(tokens, vocabulary=10), batch=8, sequence=1024, seed=0).at(0)
    assert inputs.shape == (8, 1024)
    assert len(ValidationBatches(tokens, batch=8, sequence=1024, limit=3)) == 3


def test_a_token_outside_of_the_vocabulary_is_named_where_it_is_read():
    batches = Batches(
        corpus(np.full(100, 300, dtype=np.uint16), vocabulary=300), batch=2, sequence=4, seed=0
    )
    with pytest.raises(
        OptionError, match="train part of made holds the token 300, but the vocabulary ends at 299"
    ):
        batches.at(0)


def test_validation_windows_follow_each_other_and_do_not_overlap():
    batches = ValidationBatches(corpus(counting(5), counting(1000)), batch=4, sequence=16)
    assert len(batches) == 999 // 16 // 4
    targets = torch.cat([batch.targets.flatten() for batch in batches])
    assert torch.equal(targets, torch.arange(1, 1 + len(batches) * 64))
    assert all(torch.equal(inputs + 1, targets) for inputs, targets in batches)
    assert torch.equal(batches[-1].inputs, batches[len(batches) - 1].inputs)
    assert [b.inputs[0, 0] for b in batches[1:3]] == [64, 128]


@pytest.mark.parametrize("length", [63, 64, 65, 66])
def test_the_last_window_ends_with_the_last_token_that_has_a_target(length):
    batches = ValidationBatches(counting(length), batch=1, sequence=16)
    assert len(batches) == (4 if length > 64 else 3)
    assert batches[-1].targets[0, -1] == 16 * len(batches)


@given(limit=st.integers(1, 40))
def test_a_limit_spreads_fixed_batches_over_the_whole_part(limit):
    everything = ValidationBatches(counting(1000), batch=4, sequence=16)
    some = ValidationBatches(counting(1000), batch=4, sequence=16, limit=limit)
    firsts = [int(batch.inputs[0, 0]) for batch in some]
    assert len(some) == min(limit, len(everything))
    assert sorted(set(firsts)) == firsts
    gaps = np.diff([*firsts, 64 * len(everything)])
    assert gaps.max() - gaps.min() <= 64  # a batch more or less
    assert set(firsts) <= {int(batch.inputs[0, 0]) for batch in everything}
    with pytest.raises(IndexError):
        some[len(some)]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Batches(counting(128), batch=8, sequence=128, seed=0),
            DimensionError,
            r"the array has 128 tokens, but sequence=128 needs 129.*at most 127",
        ),
        (
            lambda: ValidationBatches(corpus(counting(9)), 1, 8),
            DimensionError,
            r"validation part of made has 0",
        ),
        (
            lambda: ValidationBatches(counting(33), 5, 8),
            DimensionError,
            r"has 4 windows of 8 tokens.*batch=5.*most 4",
        ),
        (
            lambda: Batches(counting(99), batch=0, sequence=8, seed=0),
            DimensionError,
            r"batch=0 is not a positive",
        ),
        (
            lambda: Batches(counting(99), batch=2.0, sequence=8, seed=0),
            DimensionError,
            r"batch=2\.0 is not",
        ),
        (lambda: ValidationBatches(counting(99), 1, 8, limit=0), DimensionError, r"limit=0 is not"),
        (
            lambda: Batches(counting(99), batch=2, sequence=8, seed=-1),
            OptionError,
            r"seed=-1 must be",
        ),
        (
            lambda: Batches(np.zeros((9, 9), np.uint8), batch=1, sequence=2, seed=0),
            OptionError,
            r"shape \(9, 9\)",
        ),
        (lambda: Batches(np.zeros(9), batch=1, sequence=2, seed=0), OptionError, r"float64"),
        (lambda: eight().at(-1), OptionError, r"step=-1 must be an integer from 0"),
        (lambda: eight().at(2**64), OptionError, r"step=18446744073709551616"),
        (lambda: eight().at(1.5), OptionError, r"step=1\.5"),
        (
            lambda: eight().at(0, ranks=3),
            DimensionError,
            r"batch=8 is not a multiple of ranks=3. Choose batch=9",
        ),
        (
            lambda: eight().at(0, ranks=4, micros=4),
            DimensionError,
            r"ranks=4 × micros=4. Choose batch=16",
        ),
        (lambda: eight().at(0, rank=2, ranks=2), OptionError, r"rank=2 of ranks=2"),
        (lambda: eight().at(0, micro=-1), OptionError, r"micro=-1 of micros=1"),
    ],
)
def test_what_cannot_be_is_refused_with_its_numbers(make, error, message):
    with pytest.raises(error, match=message):
        make()


def eight() -> Batches:
    return Batches(counting(99), batch=8, sequence=4, seed=0)


def test_steps_of_numpy_and_torch_count_as_whole_numbers():
    assert torch.equal(eight().at(np.int64(3)).inputs, eight().at(3).inputs)
    assert torch.equal(eight().at(torch.tensor(3)).inputs, eight().at(3).inputs)
