"""Two ranks give the losses of one process, also when a run goes on with another number of them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from mupscale.training import RunConfig
from mupscale.training.metrics import read_lines
from tests.training.test_noise import by_hand, measured

SETTINGS = [
    "--model.name",
    "cpu_32_r2",
    "--model.depth",
    "2",
    "--base.width",
    "16",
    "--data.sequence",
    "16",
    "--length.steps",
    "12",
    "--length.batch",
    "8",
    "--optimizer.lr",
    "0.02",
    "--optimizer.std",
    "0.1",
    "--optimizer.clip",
    "0.5",
    "--record.checkpoint_every",
    "6",
    "--record.eval_batches",
    "2",
]


def train(
    folder: Path, ranks: int, shard: str = "none", *settings: str
) -> subprocess.CompletedProcess[str]:
    torchrun = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        if ranks > 1
        else []
    )
    command = [
        sys.executable,
        *torchrun,
        "-m",
        "mupscale",
        "train",
        *SETTINGS,
        "--output",
        str(folder),
    ]
    return subprocess.run(
        [*command, "--shard", shard, *settings],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def losses(folder: Path) -> list[float]:
    rows, _ = read_lines(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13))
    return [row["loss"] for row in rows] + [rows[-1]["validation_loss"]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a whole run, by how its ranks share the model: one process, or two."""

    @cache
    def made(shard: str) -> Path:
        folder = tmp_path_factory.mktemp(shard)
        result = train(folder, 1 if shard == "none" else 2, shard)
        assert result.returncode == 0, result.stderr
        return folder

    return made


@pytest.mark.parametrize("shard", ["ddp", "fsdp"])
def test_two_ranks_follow_one(whole, shard):
    assert losses(whole(shard)) == pytest.approx(losses(whole("none")), abs=1e-5)


@pytest.mark.parametrize(("before", "after"), [("fsdp", "none"), ("none", "fsdp"), ("fsdp", "ddp")])
def test_a_run_goes_on_with_another_number_of_ranks(whole, tmp_path, before, after):
    """Cut back to its checkpoint at step 6, as a kill would leave it."""
    cut = shutil.copytree(whole(before), tmp_path / "cut")
    (cut / "record.json").unlink()
    for path in (cut / "checkpoint").glob("step-000000012.*"):
        path.unlink()
    result = train(cut, 1 if after == "none" else 2, after)
    assert result.returncode == 0, result.stderr
    assert "resuming after step 6" in result.stderr
    assert losses(cut) == pytest.approx(losses(whole("none")), abs=1e-5)


def test_ranks_without_a_way_to_share_are_refused(tmp_path):
    result = train(tmp_path, 2, "none")
    assert result.returncode != 0
    assert "2 processes, but machine.shard = none" in result.stderr


@pytest.mark.parametrize("shard", ["ddp", "fsdp"])
def test_two_ranks_measure_the_noise_of_their_halves(tmp_path, shard):
    """Each rank has four rows of eight: the first halves together are rows 0, 1, 4 and 5."""
    settings = ["--record.noise_every", "1", "--length.steps", "1", "--seed", "2"]
    result = train(tmp_path, 2, shard, *settings)
    assert result.returncode == 0, result.stderr
    chosen = RunConfig.load(tmp_path / "config.toml", {})
    assert measured(tmp_path)[0] == pytest.approx(by_hand(chosen, [0, 1, 4, 5]), rel=1e-3)


def test_ranks_without_halves_are_refused(tmp_path):
    result = train(tmp_path, 2, "ddp", "--record.noise_every", "1", "--length.batch", "6")
    assert result.returncode != 0
    assert "into halves on each of 2 ranks, but length.batch = 6. Choose a multiple of 4" in (
        result.stderr
    )
