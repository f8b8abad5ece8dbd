"""One run: it learns, follows its plan, ends as a result, and survives what may happen to it."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mupscale.errors import InterruptedRunError, MupscaleError, StorageError
from mupscale.planning import Plan
from mupscale.training import RunConfig, checkpoints, loop, run
from mupscale.training.metrics import MetricsFile, read_lines
from mupscale.training.schedule import Schedule

ROOT = Path(__file__).parents[2]
TINY = {
    "model": {"name": "cpu_32_r2", "depth": 2},
    "base": {"width": 16},
    "data": {"sequence": 16},
    "length": {"steps": 12, "batch": 4, "warmup": 2},
    "optimizer": {"lr": 0.02, "std": 0.1, "clip": 1.0},
    "record": {"checkpoint_every": 4, "eval_every": 6, "eval_batches": 2},
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def config(**changes) -> RunConfig:
    values = {name: {**value, **changes.pop(name, {})} for name, value in TINY.items()}
    return RunConfig.from_dict(values | changes)


def stop_at(step: int, number: int = signal.SIGTERM):
    """A report that asks the process to stop, as a scheduler would."""
    return lambda progress: os.kill(os.getpid(), number) if progress.step == step else None


class TestARun:
    def test_leaves_what_it_was_and_what_came_out(self, tmp_path):
        seen = []
        record = run(config(), tmp_path, report=seen.append)
        assert (record.status, record.step, record.tokens) == ("finished", 12, 12 * 4 * 16)
        rows, torn = read_lines(tmp_path / "metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(1, 13))
        assert not torn
        assert [row["step"] for row in rows if "validation_loss" in row] == [6, 12]
        assert record.validation_loss == rows[-1]["validation_loss"]
        assert [p.step for p in seen] == list(range(1, 13))
        assert RunConfig.load(tmp_path / "config.toml", {}) == config()
        assert Plan.load(tmp_path / "plan.json").base["width"] == 16
        assert record.data["fingerprint"]

    def test_ends_with_its_weights(self, tmp_path):
        run(config(record={"checkpoint_every": 100}), tmp_path)
        found, _ = checkpoints.load_latest(tmp_path / "checkpoint")
        assert found.step == 12
        assert found.tensors["model/tokens.weight"].shape == (256, 32)

    def test_that_is_done_is_read_back(self, tmp_path):
        record = run(config(), tmp_path)
        assert run(config(), tmp_path, report=lambda _: pytest.fail("it trained again")) == record

    def test_depends_on_its_seed_and_on_nothing_else(self, tmp_path):
        losses = [
            run(config(seed=seed), tmp_path / str(k)).train_loss for k, seed in enumerate((1, 1, 2))
        ]
        assert losses[0] == losses[1] != losses[2]

    @pytest.mark.parametrize("length", [{}, {"schedule": "linear"}, {"schedule": "wsd"}])
    def test_trains_at_the_rates_of_its_schedule(self, tmp_path, monkeypatch, length):
        seen, made = [], loop.optimizers

        def watched(*arguments):
            running = made(*arguments)
            group = running[0].param_groups[0]
            running[0].register_step_pre_hook(
                lambda *_: seen.append(group["lr"] / group["initial_lr"])
            )
            return running

        monkeypatch.setattr(loop, "optimizers", watched)
        chosen = config(length={"floor": 0.1, **length})
        run(chosen, tmp_path)
        schedule = Schedule(length.get("schedule", "cosine"), 12, 2, 0.1)
        assert seen == pytest.approx([schedule.at(step) for step in range(12)])

    @pytest.mark.parametrize("micros", [2, 4])
    def test_is_the_same_in_slices(self, tmp_path, micros):
        whole = run(config(), tmp_path / "whole").train_loss
        sliced = run(config(length={"accumulate": micros}), tmp_path / "sliced").train_loss
        assert sliced == pytest.approx(whole, abs=1e-5)

    @pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "momentum", "lion", "muon"])
    def test_with_every_optimizer(self, tmp_path, name):
        record = run(config(optimizer={"name": name, "weight_decay": 1e-4}), tmp_path)
        first = read_lines(tmp_path / "metrics.jsonl")[0][0]["loss"]
        assert record.train_loss < first

    def test_an_optimizer_without_a_run_is_refused(self, tmp_path):
        with pytest.raises(MupscaleError, match="unknown optimizer for a run 'shampoo'"):
            run(config(optimizer={"name": "shampoo"}), tmp_path)

    def test_folded_and_hooked_plans_give_the_same_losses(self, tmp_path):
        losses = [
            run(config(optimizer={"multipliers": way}), tmp_path / way).train_loss
            for way in ("fold", "hook")
        ]
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)

    def test_its_plan_is_applied(self, tmp_path):
        """A base of other dimensions changes the rates; without clipping and by SGD that shows at
        once.
        """
        losses = [
            run(config(base={"width": width}), tmp_path / str(width)).train_loss
            for width in (16, 32)
        ]
        assert losses[0] != losses[1]

    def test_compiled(self, tmp_path):
        plain = run(config(), tmp_path / "plain").train_loss
        compiled = run(config(machine={"compile": True}), tmp_path / "compiled").train_loss
        assert compiled == pytest.approx(plain, abs=1e-4)

    def test_in_bf16(self, tmp_path):
        plain = run(config(), tmp_path / "plain").train_loss
        narrow = run(config(machine={"precision": "bf16"}), tmp_path / "narrow").train_loss
        assert narrow == pytest.approx(plain, abs=0.05)
        assert narrow != plain

    def test_metrics_every_so_many_steps(self, tmp_path):
        run(config(record={"log_every": 5}), tmp_path)
        assert [row["step"] for row in read_lines(tmp_path / "metrics.jsonl")[0]] == [5, 6, 10, 12]


class TestDivergence:
    def test_is_a_result(self, tmp_path):
        record = run(config(optimizer={"lr": 1e6, "clip": 1e9}), tmp_path)
        assert record.status == "diverged"
        assert 1 < record.diverged_at < 12
        assert json.loads((tmp_path / "record.json").read_text())["status"] == "diverged"
        assert run(config(optimizer={"lr": 1e6, "clip": 1e9}), tmp_path) == record

    def test_a_loss_that_is_not_finite_is_null(self, tmp_path, monkeypatch):
        losses = iter([1.0, 1.5, float("nan")])
        monkeypatch.setattr(loop._Training, "_train_step", lambda self: next(losses))
        record = run(config(), tmp_path)
        assert (record.status, record.diverged_at, record.train_loss) == ("diverged", 3, None)
        assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()

    def test_far_above_the_start_is_too_far(self, tmp_path, monkeypatch):
        losses = iter([1.0, 1.9, 2.1])
        monkeypatch.setattr(loop._Training, "_train_step", lambda self: next(losses))
        assert run(config(), tmp_path).diverged_at == 3


class TestResuming:
    def undisturbed(self, folder: Path) -> dict[str, bytes]:
        run(config(), folder)
        return left(folder)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_stops_after_the_step_and_loses_nothing(self, tmp_path, number):
        with pytest.raises(
            InterruptedRunError, match=r"stopped after step 7.*Run the same command"
        ) as caught:
            run(config(), tmp_path / "a", report=stop_at(7, number))
        assert caught.value.exit_status == 128 + number
        remarks = []
        run(config(), tmp_path / "a", remark=remarks.append)
        assert remarks == ["resuming after step 7"]
        assert (
            left(tmp_path / "a")["metrics.jsonl"]
            == self.undisturbed(tmp_path / "b")["metrics.jsonl"]
        )
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    def test_lines_beyond_the_checkpoint_and_a_torn_one_are_dropped(self, tmp_path):
        with pytest.raises(InterruptedRunError):
            run(config(), tmp_path / "a", report=stop_at(7))
        with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
            file.write('{"step": 8, "loss": 1.0}\n{"step": 9, "lo')
        run(config(), tmp_path / "a")
        assert (
            left(tmp_path / "a")["metrics.jsonl"]
            == self.undisturbed(tmp_path / "b")["metrics.jsonl"]
        )

    @pytest.mark.parametrize("way", ["truncated", "flipped", "no tensors", "manifest"])
    def test_a_broken_checkpoint_is_set_aside_for_the_one_before(self, tmp_path, way):
        with pytest.raises(InterruptedRunError):
            run(config(), tmp_path / "a", report=stop_at(9))
        folder = tmp_path / "a" / "checkpoint"
        spoil(folder / "step-000000009.safetensors", way)
        remarks = []
        run(config(), tmp_path / "a", remark=remarks.append)
        assert "set aside as step-000000009.corrupt" in remarks[0]
        assert remarks[1] == "resuming after step 8"
        assert (folder / "step-000000009.corrupt").exists()
        assert (
            left(tmp_path / "a")["metrics.jsonl"]
            == self.undisturbed(tmp_path / "b")["metrics.jsonl"]
        )

    def test_without_a_whole_checkpoint_it_does_not_begin_anew(self, tmp_path):
        with pytest.raises(InterruptedRunError):
            run(config(), tmp_path, report=stop_at(9))
        for path in (tmp_path / "checkpoint").glob("*.safetensors"):
            spoil(path, "flipped")
        with pytest.raises(StorageError, match=r"all checkpoints in .* are damaged"):
            run(config(), tmp_path)

    def test_another_config_in_the_same_folder_is_refused(self, tmp_path):
        with pytest.raises(InterruptedRunError):
            run(config(), tmp_path, report=stop_at(5))
        with pytest.raises(MupscaleError, match=r"another config \(optimizer\.lr: 0\.02 → 0\.03\)"):
            run(config(optimizer={"lr": 0.03}), tmp_path)
        with pytest.raises(InterruptedRunError):
            run(config(machine={"device": "cpu"}), tmp_path, report=stop_at(8))

    def test_another_schedule_in_the_same_folder_is_refused(self, tmp_path):
        with pytest.raises(InterruptedRunError):
            run(config(), tmp_path, report=stop_at(5))
        with pytest.raises(
            MupscaleError, match=r'another config \(length\.schedule: "cosine" → "linear"\)'
        ):
            run(config(length={"schedule": "linear"}), tmp_path)

    def test_a_config_that_never_began_may_be_mended(self, tmp_path):
        with pytest.raises(MupscaleError, match="vocabulary"):
            run(config(model={"vocabulary": 100}), tmp_path)
        assert run(config(), tmp_path).status == "finished"

    def test_two_checkpoints_are_kept(self, tmp_path):
        run(config(record={"checkpoint_every": 2}), tmp_path)
        names = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
        assert names == [
            f"step-0000000{n}.{kind}" for n in (10, 12) for kind in ("json", "safetensors")
        ]

    def test_kills_at_any_moment_change_nothing(self):
        result = subprocess.run(
            [sys.executable, ROOT / "drills" / "kill_and_resume.py", "4", "150"],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            timeout=300,
        )
        assert result.returncode == 0, result.stdout + result.stderr


class TestFaults:
    def test_a_disk_that_takes_no_checkpoint(self, tmp_path):
        """A limit on the size of files stands for a full disk: the write fails in the same way."""
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limit[1]))
            with pytest.raises(
                StorageError, match=r"could not write .*step-000000004\.safetensors"
            ) as caught:
                run(config(), tmp_path / "a")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, before)
        assert caught.value.exit_status == 4
        assert not list((tmp_path / "a" / "checkpoint").iterdir())
        run(config(), tmp_path / "a")
        run(config(), tmp_path / "b")
        assert left(tmp_path / "a") == left(tmp_path / "b")

    @pytest.mark.skipif(
        shutil.which("mount") is None or os.geteuid() != 0, reason="needs a small disk of its own"
    )
    def test_a_disk_that_is_full(self, tmp_path):
        small = tmp_path / "small"
        small.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", small],
            check=False,
            capture_output=True,
        )
        if mounted.returncode:
            pytest.skip("may not mount")
        try:
            with pytest.raises(StorageError, match="No space left on device"):
                run(config(), small / "a")
            rows, torn = read_lines(small / "a" / "metrics.jsonl")
            assert rows
            assert not torn
            subprocess.run(["mount", "-o", "remount,size=9000k", small], check=True)
            record = run(config(), small / "a")
        finally:
            subprocess.run(["umount", small], check=True)
        assert record == run(config(), tmp_path / "b")

    def test_a_corpus_shorter_than_one_sequence(self, tmp_path):
        (tmp_path / "short.txt").write_text("too short")
        with pytest.raises(MupscaleError, match="tokens"):
            run(config(data={"corpus": f"text:{tmp_path / 'short.txt'}"}), tmp_path / "a")

    def test_metrics_with_a_broken_line_inside_are_not_touched(self, tmp_path):
        path = tmp_path / "metrics.jsonl"
        path.write_text('{"step": 1}\nnot json\n{"step": 3}\n')
        with pytest.raises(StorageError, match="line 2 is not JSON"):
            MetricsFile(path, 3)
        assert path.read_text().count("\n") == 3

    def test_tensorboard_that_is_not_installed(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(MupscaleError, match=r"mupscale\[tensorboard\]"):
            run(config(record={"tensorboard": True}), tmp_path)


def test_a_short_real_run_learns(tmp_path):
    """Below 2.4 nats a byte on what was held out of Python's own library, after 300 steps of 6 ×
    128.
    """
    made = RunConfig.from_dict(
        {
            "model": {"name": "cpu_96_r2", "positions": "rope", "qk_norm": True},
            "length": {"steps": 300, "batch": 6},
            "optimizer": {"lr": 2**-6.5, "std": 0.08, "clip": 1.0},
        }
    )
    record = run(made, str(tmp_path))
    assert record.validation_loss < 2.4


def left(folder: Path) -> dict[str, bytes]:
    """What a run has computed."""
    files = [
        folder / "metrics.jsonl",
        folder / "record.json",
        *sorted((folder / "checkpoint").glob("*.safetensors")),
    ]
    return {path.name: path.read_bytes() for path in files if path.exists()}


def spoil(path: Path, way: str) -> None:
    content = path.read_bytes()
    if way == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif way == "flipped":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif way == "no tensors":
        path.unlink()
    else:
        path.with_suffix(".json").write_text("{")


def test_a_checkpoint_comes_back_to_the_bit(tmp_path):
    tensors = {"a": torch.randn(3, 2), "b": torch.arange(4)}
    checkpoints.save(tmp_path, checkpoints.Checkpoint(5, tensors, {"first_loss": 1.25}))
    found, remarks = checkpoints.load_latest(tmp_path)
    assert (found.step, found.values, remarks) == (5, {"first_loss": 1.25}, [])
    assert all(torch.equal(tensors[name], found.tensors[name]) for name in tensors)
    assert checkpoints.load_latest(tmp_path / "nowhere") == (None, [])
