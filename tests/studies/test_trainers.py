"""One trial: by the reference model, by a function, and what is refused before anything runs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mupscale.errors import (
    InterruptedRunError,
    MupscaleError,
    OptionError,
    StorageError,
)
from mupscale.records import read_lines
from mupscale.studies import StudyConfig, trainers
from mupscale.studies.config import Trainer
from mupscale.studies.trainers import TrialAssignment, check_trainer, train
from mupscale.studies.trials import TrialRecord
from mupscale.training import RunConfig, run
from tests.studies.assignments import HALFWAY, NEVER, assigned, strict

CONFIG = {
    "model": {"name": "cpu_32_r2", "depth": 2},
    "base": {"width": 16},
    "data": {"sequence": 16},
    "length": {"steps": 40, "batch": 4, "warmup": 2},
    "optimizer": {"lr": 0.02, "std": 0.1, "clip": 1.0},
    "record": {"checkpoint_every": 4, "eval_batches": 2},
}


def reference(folder: Path, **changes) -> TrialAssignment:
    config = {
        name: {**CONFIG.get(name, {}), **changes.pop(name, {})} for name in {*CONFIG, "machine"}
    }
    return assigned(folder, None, config=RunConfig.from_dict(config), **changes)


def without_time(result: dict) -> dict:
    return {name: value for name, value in result.items() if name not in ("seconds", "attempts")}


class TestTheReferenceModel:
    def test_gives_the_numbers_of_a_run(self, tmp_path):
        given = reference(tmp_path)
        threads = torch.get_num_threads()
        result = strict(train(given))
        record = run(given.config, tmp_path / "alone")
        rows, _ = read_lines(tmp_path / "alone" / "metrics.jsonl")
        assert result["status"] == "finished"
        assert (result["loss"], result["step"], result["steps"]) == (record.validation_loss, 40, 40)
        assert (result["tokens"], result["attempts"]) == (record.tokens, 1)
        assert result["curve"] == [
            [row["step"], pytest.approx(row["loss"], rel=1e-5)] for row in rows
        ]
        # The last of 32 windows of 40 steps begins after step 38.75.
        assert result["train_loss"] == pytest.approx((rows[-2]["loss"] + rows[-1]["loss"]) / 2)
        assert torch.get_num_threads() == threads

    def test_a_noise_scale_is_kept_if_it_was_measured(self, tmp_path):
        result = train(reference(tmp_path / "a", record={"noise_every": 4}))
        assert result["noise_scale_tokens"] > 0
        plain = strict(train(reference(tmp_path / "b")))
        assert "noise_scale_tokens" not in plain
        about = {"cell": "mup", "rule": "mup", "variant": {}, "number": 0, "round": 0, "seed": 1}
        for values in (result, plain):
            trial = TrialRecord(**about, params={"lr": 0.1}, **values)
            kept = trial.to_dict()
            assert kept.get("noise_scale_tokens") == values.get("noise_scale_tokens")
            assert ("noise_scale_tokens" in kept) == (values is result)
            assert TrialRecord.from_dict(trial.key, kept) == trial

    def test_a_diverged_run_is_a_result(self, tmp_path):
        result = strict(train(reference(tmp_path, optimizer={"lr": 1e6, "clip": None})))
        assert (result["status"], result["loss"], result["train_loss"]) == ("diverged", None, None)
        assert 0 < result["step"] < result["steps"] == 40

    def test_a_hopeless_run_is_stopped_and_another_is_not(self, tmp_path):
        stopped = strict(train(reference(tmp_path / "a", stop=HALFWAY)))
        assert (stopped["status"], stopped["loss"], stopped["step"]) == ("stopped", None, 16)
        assert stopped["tokens"] == 16 * 4 * 16
        assert stopped["curve"][-1][0] == 16
        assert train(reference(tmp_path / "b", stop=NEVER))["status"] == "finished"

    @pytest.mark.parametrize("log_every", [1, 3])
    @pytest.mark.parametrize("stop", [None, HALFWAY])
    def test_a_run_that_was_interrupted_ends_as_one_that_was_not(
        self, tmp_path, monkeypatch, stop, log_every
    ):
        record = {"record": {"log_every": log_every}}
        whole = train(reference(tmp_path / "whole", stop=stop, **record))
        original = trainers.run

        def interrupted(config, folder, report):
            def killed(progress):
                report(progress)
                if progress.step == 11:
                    raise InterruptedRunError(15, 11, str(folder))

            return original(config, folder, report=killed)

        monkeypatch.setattr(trainers, "run", interrupted)
        given = reference(tmp_path / "cut", stop=stop, **record)
        with pytest.raises(InterruptedRunError):
            train(given)
        monkeypatch.undo()
        again = train(given)
        assert without_time(again) == without_time(whole)
        assert (whole["attempts"], again["attempts"]) == (1, 2)

    def test_a_finished_run_is_read_back(self, tmp_path, monkeypatch):
        given = reference(tmp_path)
        first = train(given)
        monkeypatch.setattr("mupscale.training.loop._Training", None)  # nothing is trained again
        assert without_time(train(given)) == without_time(first)

    @pytest.mark.parametrize("stop", [None, HALFWAY])
    def test_ranks_of_one_trial_give_what_one_process_gives(self, tmp_path, stop):
        alone = train(reference(tmp_path / "one", stop=stop))
        given = reference(tmp_path / "two", stop=stop, machine={"shard": "fsdp"}, ranks=2)
        result = strict(train(given))
        assert (result["status"], result["step"]) == (alone["status"], alone["step"])
        if stop is None:
            assert result["loss"] == pytest.approx(alone["loss"], abs=1e-4)
            assert result["tokens"] == alone["tokens"]
            assert np.array(result["curve"]) == pytest.approx(np.array(alone["curve"]), abs=1e-4)

    def test_ranks_without_a_way_to_share_are_refused(self, tmp_path):
        with pytest.raises(
            OptionError, match=r'ranks = 2 and machine.shard = "none": choose "ddp" or "fsdp"'
        ):
            train(reference(tmp_path, ranks=2))


OWN = """
import json, math, os, sys
import torch
from mupscale.studies.trainers import TrialStopped

def falling(trial):
    assert (trial.lr, trial.weight_decay, trial.seed, trial.rule) == (2**-7, None, 5, "mup")
    assert trial.variant == {"n_kv_heads": 3} and trial.folder.is_dir()
    for step in range(1, 101):
        trial.report(step, 10 / step, steps=100)
    return {"loss": 0.5, "tokens": 6400, "accuracy": 0.3}

def resuming(trial):
    saved = trial.folder / "saved"
    start = int(saved.read_text()) if saved.exists() else 0
    for step in range(start + 1, 101):
        trial.report(step, 10 / step, steps=100)
        if step % 10 == 0:
            saved.write_text(str(step))
        if step == 37 and not start:
            raise KeyboardInterrupt
    return 0.5

def diverging(trial):
    for step, loss in enumerate([3.0, 2.0, math.nan, 1.0], start=1):
        trial.report(step, loss)
    return 1.0

def stubborn(trial):
    for step in range(1, 101):
        try:
            trial.report(step, torch.tensor(5.0), steps=100)
        except Exception:
            pass
    return 5.0

def deaf(trial):
    try:
        stubborn_report(trial)
    except TrialStopped:
        raise ValueError("of my own")

def stubborn_report(trial):
    for step in range(1, 101):
        trial.report(step, 5.0, steps=100)

def planned(trial):
    assert json.loads((trial.folder / "plan.json").read_text()) == trial.plan == {"format": "π"}
    return 1.0

def one(trial): return 1
def zero(trial): return torch.zeros(()).item()
def nan(trial): return {"loss": math.nan, "steps": 7}
def infinite(trial): return -math.inf
def numpy(trial):
    import numpy
    return numpy.float32(1.5)
def nothing(trial): return None
def text(trial): return "2.5"
def yes(trial): return True
def tensor(trial): return torch.tensor(1.0)
def lossless(trial): return {"los": 1.0}
def broken(trial): return [][trial.seed]
def leaving(trial): sys.exit(3)
def no_memory(trial): raise MemoryError
def no_memory_of_torch(trial): torch.empty(1 << 60)
def full(trial): raise OSError(28, "No space left on device", "weights.pt")
number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The functions above, in the current folder."""
    (tmp_path / "own_functions.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield lambda name, **changes: assigned(
        tmp_path, Trainer(function=f"own_functions:{name}"), **changes
    )
    sys.modules.pop("own_functions", None)


class TestAFunction:
    def test_gets_the_point_and_its_reports_are_the_curve(self, own):
        result = strict(train(own("falling")))
        assert (result["status"], result["loss"], result["tokens"], result["step"]) == (
            "finished",
            0.5,
            6400,
            100,
        )
        assert result["error"] is None
        assert [step for step, _ in result["curve"]] == sorted(
            {-(-k * 100 // 64) - (k * 100 % 64 > 0) for k in range(1, 65)}
        )
        assert result["train_loss"] == pytest.approx(
            np.mean([10 / step for step in (97, 98, 99, 100)])
        )

    def test_that_goes_on_from_its_own_checkpoint_goes_on_with_its_curve(self, own):
        whole = train(own("falling"))
        with pytest.raises(KeyboardInterrupt):
            train(own("resuming"))
        again = train(own("resuming"))
        assert again["curve"] == whole["curve"]
        assert again["attempts"] == 3

    @pytest.mark.parametrize(("name", "step"), [("diverging", 3), ("nan", 7), ("infinite", 0)])
    def test_a_loss_that_is_not_finite_is_a_divergence(self, own, name, step):
        result = strict(train(own(name)))
        assert (result["status"], result["loss"], result["step"]) == ("diverged", None, step)

    @pytest.mark.parametrize("name", ["stubborn", "deaf"])
    def test_a_hopeless_one_is_stopped_also_if_it_will_not_hear(self, own, name):
        result = strict(train(own(name, stop=HALFWAY)))
        assert (result["status"], result["error"]) == ("stopped", None)

    @pytest.mark.parametrize(("name", "loss"), [("one", 1.0), ("zero", 0.0), ("numpy", 1.5)])
    def test_may_return_the_loss_alone(self, own, name, loss):
        assert train(own(name))["loss"] == loss

    @pytest.mark.parametrize("name", ["nothing", "text", "yes", "tensor", "lossless"])
    def test_anything_else_is_a_failure_that_says_what_to_return(self, own, name):
        result = strict(train(own(name)))
        assert result["status"] == "failed"
        assert f"own_functions:{name} returned " in result["error"]
        assert "Return the loss as a number (tensor.item())" in result["error"]

    def test_an_error_in_it_is_a_failure_that_shows_where(self, own):
        result = strict(train(own("broken")))
        assert result["status"] == "failed"
        assert "own_functions:broken raised IndexError: list index out of range" in result["error"]
        assert "own_functions.py" in result["error"]

    def test_one_that_leaves_fails(self, own):
        assert "raised SystemExit: 3" in train(own("leaving"))["error"]

    @pytest.mark.parametrize(
        ("name", "kind"),
        [("no_memory", MemoryError), ("no_memory_of_torch", RuntimeError), ("full", StorageError)],
    )
    def test_what_runs_out_is_raised_for_the_engine_to_judge(self, own, name, kind):
        with pytest.raises(kind):
            train(own(name))

    def test_gets_the_plan(self, own):
        assert train(own("planned", plan={"format": "π"}))["loss"] == 1.0


class TestBeforeAnythingRuns:
    def check(self, trainer, **engine):
        values = {"name": "s", "space": {"lr": [1e-4, 1e-2]}, "trainer": trainer, "engine": engine}
        check_trainer(StudyConfig.from_dict(values).trainer, ["lr"])

    @pytest.mark.parametrize(
        ("trainer", "engine", "message"),
        [
            ({"comand": ["a"]}, {}, "unknown setting in trainer 'comand'. Did you mean 'command'"),
            ({"function": "math:sin", "command": ["a"]}, {}, "give either command or function"),
            ({}, {}, "give either command or function"),
            ({"function": "train"}, {}, "'train' is not a function. Write module:function"),
            ({"function": "no_such_module:train"}, {}, "no module no_such_module"),
            ({"function": "math:sinn"}, {}, "Did you mean 'sin'"),
            ({"command": []}, {}, "[] is not a list of arguments"),
            ({"command": "a {lr}"}, {}, "is one string, which only a shell could split"),
            ({"command": ["a", "{lr}"]}, {"ranks": 0}, "ranks = 0 must be at least 1"),
            ({"command": ["a", "{lr}"]}, {"time_limit": 0}, "time_limit=0.0 must be positive"),
            ({"command": ["a", "{lr}"]}, {"time_limit": "1h"}, "time_limit = '1h' has type str"),
            ({"command": ["a", "{lr}"], "environment": {"A": 1}}, {}, 'Write A = "1"'),
            ({"command": ["a", "{lr}"], "environment": {"A=": "1"}}, {}, "is invalid"),
            ({"command": ["a", "{lr}"], "environment": ["A"]}, {}, "is not a table"),
        ],
    )
    def test_a_trainer_that_cannot_work_is_refused(self, trainer, engine, message):
        with pytest.raises(MupscaleError) as error:
            self.check(trainer, **engine)
        assert message in str(error.value)

    def test_what_works_is_not(self, own):
        check_trainer(None, ["lr"])
        check_trainer(own("one").trainer, ["lr"])
        self.check({"command": ["a", "{lr}"], "environment": {"A": "1"}}, time_limit=1)


class TestTheFolder:
    @pytest.mark.parametrize("trial", ["../0007", "cell/..", "/etc", "cell//0007", "cell/a b"])
    def test_cannot_be_left_by_a_name(self, own, tmp_path, trial):
        with pytest.raises(OptionError):
            train(own("one", trial=trial, folder=str(tmp_path / "trials") + "/" + trial))
        assert not (tmp_path / "trials").exists()

    def test_must_be_that_of_the_trial(self, own, tmp_path):
        with pytest.raises(OptionError, match="is not that of the trial"):
            train(own("one", folder=str(tmp_path / "elsewhere")))
        assert not (tmp_path / "elsewhere").exists()

    def test_cannot_be_left_by_a_link(self, own, tmp_path):
        (tmp_path / "outside").mkdir()
        (tmp_path / "trials").mkdir()
        (tmp_path / "trials" / "mup.n_kv_heads-3").symlink_to(tmp_path / "outside")
        with pytest.raises(OptionError, match="by a symbolic link"):
            train(own("one"))
        assert not list((tmp_path / "outside").iterdir())

    def test_is_held_by_one_attempt_alone(self, own, tmp_path, monkeypatch):
        monkeypatch.setattr(trainers, "LOCK_SECONDS", 0.2)
        folder = Path(own("one").folder)
        folder.mkdir(parents=True)
        code = (
            "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, 2)\n"
            "print('held', flush=True); sys.stdin.read()"
        )
        held = [sys.executable, "-c", code, str(folder / ".lock")]
        with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout.readline() == b"held\n"
            with pytest.raises(OptionError, match="is in use by another process"):
                train(own("one"))
            other.kill()
        assert train(own("one"))["status"] == "finished"

    def test_a_count_that_is_spoiled_begins_anew(self, own):
        given = own("one")
        train(given)
        (Path(given.folder) / "attempts").write_bytes(b"")
        assert train(given)["attempts"] == 1
        assert train(given)["attempts"] == 2

    def test_that_cannot_be_made_is_said(self, own, tmp_path):
        (tmp_path / "trials").write_text("a file")
        with pytest.raises(StorageError, match="could not create"):
            train(own("one"))
