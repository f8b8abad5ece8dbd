"""A trainer that is a command: what it is given, how its losses are read, and every way in which it
may end.
"""

import errno
import itertools
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mupscale.errors import MupscaleError, OptionError, StorageError, UnknownNameError
from mupscale.studies import commands, readings
from mupscale.studies.commands import arguments, check_command, filled
from mupscale.studies.config import Trainer
from mupscale.studies.curves import LossCurve, TrialStopped
from mupscale.studies.readings import LONGEST_LINE, Lines, metrics_in
from mupscale.studies.stopping import WINDOWS
from mupscale.studies.trainers import TrialAssignment, train
from tests.studies.assignments import HALFWAY, NEVER, assigned, strict

REGEX = r"regex:(?:step (?P<step>\d+) )?loss (?P<loss>\S+)"


def script(
    root: Path, code: str, *flags: str, stop=None, plan=None, time_limit=None, **trainer
) -> TrialAssignment:
    """The assignment of a trial that runs this Python."""
    path = root / "own_script.py"
    path.write_text(textwrap.dedent(code))
    command = ["{python}", str(path), *flags]
    own = Trainer(command=tuple(command), **trainer)
    return assigned(root, own, stop=stop, plan=plan, time_limit=time_limit)


def ran(root: Path, code: str, *flags: str, **settings) -> dict:
    return strict(train(script(root, code, *flags, **settings)))


def output(root: Path) -> bytes:
    return (root / "trials" / "mup.n_kv_heads-3" / "0007" / "output.txt").read_bytes()


def is_alive(process: int) -> bool:
    """A zombie is dead."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.02)


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr("mupscale.engines.keeper.GRACE_SECONDS", 0.5)


class TestPlaceholders:
    def test_are_replaced_and_numbers_keep_their_last_digit(self, tmp_path):
        code = """
            import json, os, sys
            print(json.dumps({'loss': 1, 'a': sys.argv[1:], 'e': dict(os.environ)}))
        """
        flags = [
            "--lr={lr}",
            "{seed}",
            "{n_kv_heads}/{rule}",
            "{folder}",
            "{plan}",
            "{{lr}}",
            "{{{lr}}}",
            "$HOME;*",
            "",
        ]
        plan = {"format": "π", "parameters": {"w": {"lr": 0.1}}}
        result = ran(tmp_path, code, *flags, plan=plan, environment={"OWN": "{lr}"})
        printed = json.loads(output(tmp_path))
        folder = tmp_path / "trials" / "mup.n_kv_heads-3" / "0007"
        assert printed["a"] == [
            "--lr=0.0078125", "5", "3/mup", str(folder), str(folder / "plan.json"), "{lr}",
            "{0.0078125}", "$HOME;*", "",
        ]  # fmt: skip
        assert json.loads((folder / "plan.json").read_text(encoding="utf-8")) == plan
        assert printed["e"]["MUPSCALE_TRIAL"] == "mup.n_kv_heads-3/0007"
        assert printed["e"]["MUPSCALE_FOLDER"] == str(folder)
        assert printed["e"]["OWN"] == "{lr}"
        assert result["loss"] == 1

    @given(st.floats(allow_nan=False, allow_infinity=False))
    def test_a_number_is_read_back_as_it_was(self, number):
        assert float(filled(["{x}"], {"x": number})[0]) == number

    @given(st.text())
    @settings(max_examples=200)
    def test_doubled_braces_stand_for_themselves(self, text):
        doubled = text.replace("\0", "").replace("{", "{{").replace("}", "}}")
        assert filled([doubled], {}) == [text.replace("\0", "")]

    @given(st.text(alphabet="{}lr._[]0!:", max_size=12))
    @settings(max_examples=300)
    def test_nothing_else_is_evaluated(self, text):
        """A value, a literal brace, or an error: never an attribute, an item or a format."""
        try:
            (result,) = filled([text], {"lr": "VALUE"})
        except MupscaleError:
            return
        # As str.format would have it where it has no more than names; where it has more, we refuse.
        assert result == text.format(lr="VALUE")

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            (
                ["a", "{lr}", "{wieght_decay}"],
                "Did you mean 'weight_decay'? Known: lr, weight_decay, n_kv_heads, seed,",
            ),
            (["a", "{lr}", "{lr.__class__}"], "has a { outside of a placeholder"),
            (["a", "{lr!r}"], "has a { outside of a placeholder"),
            (
                ["a", "{lr}", '{"json": 1}'],
                "Write {name} for a placeholder, and {{ and }} for braces",
            ),
            (["a", "{lr}", "}"], "has a } outside of a placeholder"),
            (["a"], "has no {lr}: every trial would be the same"),
            (["a", "{{lr}}"], "has no {lr}"),
            ("python train.py --lr {lr}", "is one string, which only a shell could split"),
            ([], "is not a list of arguments"),
            (None, "is not a list of arguments"),
            (["a", "{lr}", 8], "8 is not a string"),
            (["a", "{lr}", "b\0"], "is not a string"),
        ],
    )
    def test_a_command_that_cannot_work_is_refused(self, command, message):
        with pytest.raises(MupscaleError) as error:
            check_command(arguments(command), "json", ["lr", "weight_decay", "n_kv_heads"])
        assert message in str(error.value)

    def test_a_plan_that_there_is_not_is_refused(self, tmp_path):
        with pytest.raises(UnknownNameError, match="placeholder in the command 'plan'"):
            train(script(tmp_path, "", "{plan}"))


class TestMetrics:
    @pytest.mark.parametrize(
        ("metrics", "message"),
        [
            ("regex:loss (", "is not a regular expression"),
            ("regex:loss ([0-9.]+)", "has no group for the loss"),
            ("regex:(?P<loss>.)(?P<stp>.)", "Did you mean 'step'"),
            ("file:../metrics.jsonl", "not a plain name"),
            ("file:/etc/passwd", "not a plain name"),
            ("file:", "not a plain name"),
            ("jsonl", "does not say where the losses are"),
            (3, "does not say where the losses are"),
        ],
    )
    def test_what_cannot_be_looked_for_is_refused(self, metrics, message):
        with pytest.raises(MupscaleError) as error:
            metrics_in(metrics, Path())
        assert message in str(error.value)

    def test_json_lines_among_other_output(self, tmp_path):
        code = """
            import json, sys
            print("epoch 1"); print("{'loss': 9}"); print("[1]"); print('{"loss": "many"}')
            print('{"loss": true}')
            print('{"loss": [1]}', "{" * 5000, "[" * 9000, sep="\\n")
            for step in range(1, 65):
                row = {"step": 10 * step, "steps": 640, "loss": 64 / step, "tokens": 100 * step}
                print("  " + json.dumps(row))
            print('{"eval_loss": 0.75, "step": 640}', file=sys.stderr)
        """
        result = ran(tmp_path, code)
        assert (result["status"], result["loss"], result["step"], result["steps"]) == (
            "finished",
            0.75,
            640,
            640,
        )
        assert result["tokens"] == 6400
        assert result["curve"] == [[10 * step, float(f"{64 / step:.6g}")] for step in range(1, 65)]
        assert result["train_loss"] == pytest.approx((64 / 63 + 1) / 2)

    def test_without_a_validation_loss_the_last_window_counts(self, tmp_path):
        code = "for step in range(1, 101): print(f'step {step} loss {10 / step}')"
        result = ran(tmp_path, code, metrics=REGEX)
        assert (
            result["loss"]
            == result["train_loss"]
            == pytest.approx(sum(10 / step for step in (97, 98, 99, 100)) / 4)
        )
        assert (result["step"], result["steps"]) == (100, None)

    def test_all_that_an_expression_finds_in_a_line_is_one_report(self, tmp_path):
        metrics = (
            r"regex:iter (?P<step>\d+)/(?P<steps>\d+)|val (?P<validation_loss>\S+)"
            r"|loss (?P<loss>\S+)"
        )
        result = ran(tmp_path, "print('loss 2.5 | iter 7/8 | val 2.25')", metrics=metrics)
        assert (result["step"], result["steps"], result["loss"]) == (7, 8, 2.25)
        assert result["curve"] == [[7, 2.5]]

    def test_progress_bars_and_a_last_line_without_end(self, tmp_path):
        code = r"import sys; sys.stdout.write('\r 10% loss 3.0\r 20% loss 2.0\r 30% loss 1.0')"
        assert ran(tmp_path, code, metrics=REGEX)["curve"] == [[1, 3.0], [2, 2.0], [3, 1.0]]

    def test_a_file_that_the_command_appends_to(self, tmp_path):
        code = """
            import json, os, time
            print('{"loss": 100}')
            path = os.path.join(os.environ["MUPSCALE_FOLDER"], "logs", "metrics.jsonl")
            os.makedirs(os.path.dirname(path))
            time.sleep(0.3)
            for step in (1, 2, 3):
                with open(path, "a") as file:
                    file.write(json.dumps({"step": step, "loss": 4 - step})[:-1])
                    file.flush(); time.sleep(0.12)
                    file.write("}\\n" if step < 3 else "}")
        """
        result = ran(tmp_path, code, metrics="file:logs/metrics.jsonl")
        assert (result["status"], result["curve"]) == ("finished", [[1, 3], [2, 2], [3, 1]])

    def test_a_file_that_is_begun_anew_or_gone_on_with(self, tmp_path):
        """As trainers do that resume: cut back to a checkpoint, replaced, or from the start."""
        for mode, rows in {
            "w": [(1, 9), (2, 8), (3, 7)],
            "a": [(3, 6), (4, 5)],
            "x": [(1, 3), (2, 2)],
        }.items():
            code = f"""
                import json, os
                path = os.path.join(os.environ["MUPSCALE_FOLDER"], "m.jsonl")
                with open(path + ".new" if {mode!r} == "x" else path, {mode!r}) as file:
                    for step, loss in {rows}:
                        file.write(json.dumps(dict(step=step, loss=loss)) + "\\n")
                if {mode!r} == "x": os.replace(path + ".new", path)
            """
            result = ran(tmp_path, code, metrics="file:m.jsonl")
            expected = (
                [[1, 9], [2, 8], [3, 6], [4, 5]] if mode == "a" else [list(row) for row in rows]
            )
            assert result["curve"] == expected
        assert result["attempts"] == 3

    def test_a_file_that_is_replaced_while_it_is_read(self, tmp_path):
        path, curve = tmp_path / "m.jsonl", LossCurve()
        metrics = readings.metrics_in("file:m.jsonl", tmp_path)
        metrics.look(curve, last=False)
        path.write_text('{"loss": 5}\n{"loss": 4}\n{"lo')
        metrics.look(curve, last=False)
        assert curve.points() == [[1, 5], [2, 4]]
        (tmp_path / "new").write_text('{"loss": 3}\n')
        os.replace(tmp_path / "new", path)
        metrics.look(curve, last=True)
        assert curve.points() == [[1, 3]]

    @given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
    def test_lines_do_not_depend_on_how_the_bytes_come(self, content, cuts):
        whole, parts = Lines(), Lines()
        places = [0, *sorted(cuts), len(content)]
        seen = [line for a, b in itertools.pairwise(places) for line in parts.feed(content[a:b])]
        assert seen + parts.end() == whole.feed(content) + whole.end()

    def test_long_lines_are_left_out_and_not_held(self):
        lines = Lines()
        seen = [line for _ in range(50) for line in lines.feed(b"x" * 65536)]
        assert len(lines._rest) <= LONGEST_LINE + 1
        assert seen + lines.feed(b"\nloss 1\n" + b"y" * LONGEST_LINE + b"\n") == [
            "loss 1",
            "y" * LONGEST_LINE,
        ]


class TestTheCurve:
    def test_windows_are_judged_by_their_means_at_their_ends(self, monkeypatch):
        for every, steps in [(1, 100), (10, 640), (1, 8), (7, 100)]:
            judged = []
            monkeypatch.setattr(
                "mupscale.studies.curves.hopeless",
                lambda _, share, loss, judged=judged: judged.append((share, loss)),
            )
            curve, told = LossCurve(stop=NEVER, steps=steps), {}
            for step in range(every, steps + 1, every):
                curve.add(1 / step, step)
                told.setdefault(math.ceil(step * WINDOWS / steps), []).append(step)
            ends = [
                (max(w) / steps, pytest.approx(sum(1 / s for s in w) / len(w)))
                for w in told.values()
            ]
            assert judged == [end for end in ends if end[0] < 1]

    @given(st.lists(st.floats(0.1, 10), min_size=1, max_size=500), st.integers(0, 400))
    def test_what_is_kept_is_short_and_keeps_the_mean(self, losses, more):
        curve = LossCurve(steps=len(losses) + more)
        for loss in losses:
            curve.add(loss)
        points = curve.points()
        assert len(points) <= 64
        assert points[-1][0] == len(losses)
        ends = [0, *(int(step) for step, _ in points)]
        for begin, end, (_, mean) in zip(ends, ends[1:], points, strict=False):
            assert mean == pytest.approx(sum(losses[begin:end]) / (end - begin), rel=1e-4)

    def test_going_back_forgets_what_was_told_from_there_on(self):
        curve = LossCurve()
        for step in (1, 2, 3):
            curve.add(step, step)
        curve.add(0.5, 2, validation=True)
        curve.add(0.25, 3, validation=True)
        curve.add(7, 3)
        assert (curve.points(), curve.loss) == ([[1, 1], [2, 2], [3, 7]], 0.5)

    def test_a_validation_before_the_training_loss_of_its_step_stays(self):
        curve = LossCurve()
        curve.add(3, 10)
        curve.add(0.5, 20, validation=True)
        curve.add(2, 20)
        assert curve.loss == 0.5

    @pytest.mark.parametrize("validation", [False, True])
    @pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
    def test_a_loss_that_is_not_finite_ends_it(self, loss, validation):
        curve = LossCurve()
        curve.add(1, 1)
        with pytest.raises(TrialStopped, match="diverged at step 2"):
            curve.add(loss, 2, validation=validation)
        assert curve.result("diverged")["step"] == 2


class TestHowItEnds:
    def test_a_status_other_than_zero_fails_with_the_end_of_the_output(self, tmp_path):
        code = (
            "print('loss 1.0'); print('\\x1b[31mred\\x07')\n"
            "raise ValueError('the flag --lr is unknown')"
        )
        result = ran(tmp_path, code, metrics=REGEX)
        assert (result["status"], result["loss"]) == ("failed", None)
        assert "exited with status 1" in result["error"]
        assert "ValueError: the flag --lr is unknown" in result["error"]
        assert "\x1b" not in result["error"]
        assert "\x07" not in result["error"]
        assert result["curve"] == [[1, 1.0]]

    def test_a_signal_is_named(self, tmp_path):
        code = "import os; print('loss 1', flush=True); os.kill(os.getpid(), 9)"
        assert "was killed by SIGKILL" in ran(tmp_path, code, metrics=REGEX)["error"]

    @pytest.mark.parametrize(
        ("metrics", "looked_for"),
        [
            ("json", 'lines of JSON with a "loss" in the output'),
            ("file:metrics.jsonl", 'lines of JSON with a "loss" in the file metrics.jsonl'),
            (REGEX, "lines of the output that match"),
        ],
    )
    def test_no_loss_at_all_says_what_was_looked_for(self, tmp_path, metrics, looked_for):
        result = ran(tmp_path, "print('all is', 'well')", metrics=metrics)
        assert result["status"] == "failed"
        assert f"reported no loss. Expected {looked_for}" in result["error"]
        assert "all is well" in result["error"]

    def test_silence(self, tmp_path):
        assert "It printed nothing." in ran(tmp_path, "")["error"]

    def test_garbage(self, tmp_path):
        """Bytes that are no text, a line without end, and a loss in between."""
        code = r"""
            import sys
            out = sys.stdout.buffer
            out.write(bytes(range(256)) * 40 + b"\nloss 1.5\n")
            for _ in range(200): out.write(b"\xff" * 100_000)
        """
        result = ran(tmp_path, code, metrics=REGEX)
        assert (result["status"], result["loss"]) == ("finished", 1.5)
        assert len(output(tmp_path)) == 256 * 40 + 10 + 20_000_000
        result = ran(
            tmp_path, "import sys; sys.stdout.buffer.write(b'\\xff\\xfe' * 9999)", metrics=REGEX
        )
        assert result["status"] == "failed"
        assert len(result["error"]) < 4000

    def test_a_line_that_would_take_an_expression_for_ever_is_not_looked_at(self, tmp_path):
        code = "print('a' * 10_001 + 'b'); print('loss 1')"
        assert ran(tmp_path, code, metrics="regex:(?:a+)+$|loss (?P<loss>.)")["loss"] == 1

    @pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
    def test_a_loss_that_is_not_finite_is_a_divergence_and_ends_it(self, tmp_path, text):
        code = f"import time; print('step 1 loss 2'); print('step 2 loss {text}'); time.sleep(60)"
        began = time.monotonic()
        result = ran(tmp_path, code, metrics=REGEX)
        assert (result["status"], result["loss"], result["step"]) == ("diverged", None, 2)
        assert (result["train_loss"], result["error"]) == (None, None)
        assert time.monotonic() - began < 20

    @pytest.mark.parametrize(
        "row",
        ['{"loss": NaN}', '{"loss": null}', '{"loss": 9, "diverged": true}', '{"eval_loss": NaN}'],
    )
    def test_divergence_in_json_also_if_it_then_fails(self, tmp_path, row):
        assert ran(tmp_path, f"print('''{row}'''); raise SystemExit(1)")["status"] == "diverged"

    def test_a_hopeless_one_is_stopped(self, tmp_path):
        code = """
            import json, time
            for step in range(1, 51): print(json.dumps({"step": step, "steps": 100, "loss": 5}))
            time.sleep(60)
        """
        result = ran(tmp_path, code, stop=HALFWAY)
        assert (result["status"], result["loss"], result["step"]) == ("stopped", None, 40)

    def test_one_that_hangs_is_ended_at_its_time_limit(self, tmp_path):
        code = "import time; print('loss 1'); time.sleep(60)"
        result = ran(tmp_path, code, metrics=REGEX, time_limit=1.5)
        assert (result["status"], result["loss"]) == ("timeout", None)
        assert "time limit of 1.5 seconds" in result["error"]
        assert 1.5 <= result["seconds"] < 15

    def test_one_that_floods_its_output_is_ended_too(self, tmp_path):
        result = ran(tmp_path, "while True: print('x' * 100)", time_limit=1)
        assert result["status"] == "timeout"

    def test_asked_to_stop_it_may_save_its_state_and_say_so(self, tmp_path):
        code = """
            import signal, sys, time
            def save(*_):
                print("x" * 1_000_000); print("saved"); sys.exit(0)
            signal.signal(signal.SIGTERM, save)
            print("loss nan"); time.sleep(60)
        """
        assert ran(tmp_path, code, metrics=REGEX)["status"] == "diverged"
        assert output(tmp_path).endswith(b"saved\n")

    @pytest.mark.usefixtures("short_grace")
    def test_one_that_will_not_stop_is_killed_with_all_that_it_started(self, tmp_path):
        """Deaf to SIGTERM, with children in its group, in another session, and of a parent that is
        gone.
        """
        code = """
            import os, signal, subprocess, sys, time
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
            sleep = [sys.executable, "-c", code]
            alone = subprocess.Popen(sleep, start_new_session=True)
            started = [subprocess.Popen(sleep).pid, alone.pid]
            if os.fork() == 0:
                os.setsid(); child = os.fork()
                if child: os._exit(0)
                time.sleep(60)
            print("pids", os.getpid(), *started, flush=True)
            time.sleep(0.5)
            print("loss nan", flush=True)
            time.sleep(60)
        """
        assert ran(tmp_path, code, metrics=REGEX)["status"] == "diverged"
        pids = [int(pid) for pid in output(tmp_path).split(b"\n")[0].split()[1:]]
        assert len(pids) == 3
        assert [pid for pid in pids if is_alive(pid)] == []
        mentioned = str(tmp_path / "own_script.py").encode()
        assert [p for p in Path("/proc").glob("[0-9]*/cmdline") if mentioned in _read(p)] == []

    def test_what_it_leaves_behind_is_ended(self, tmp_path):
        code = """
            import subprocess, sys
            sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
            child = subprocess.Popen(sleep, start_new_session=True)
            print("loss", 1.5); print("left", child.pid)
        """
        began = time.monotonic()
        assert ran(tmp_path, code, metrics=REGEX)["status"] == "finished"
        assert time.monotonic() - began < 20
        assert not is_alive(int(output(tmp_path).split()[-1]))

    def test_a_program_that_is_not_there_fails(self, tmp_path):
        given = assigned(tmp_path, Trainer(command=("no-such-program", "{lr}")))
        result = strict(train(given))
        assert result["status"] == "failed"
        assert "could not start no-such-program: No such file or directory" in result["error"]

    def test_it_reads_nothing_from_the_terminal(self, tmp_path):
        assert (
            ran(tmp_path, "import sys; print('loss', 1 + len(sys.stdin.read()))", metrics=REGEX)[
                "loss"
            ]
            == 1
        )

    def test_it_runs_in_the_folder_of_its_caller(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "own_script.py").write_text("print('loss 1')")
        command = Trainer(command=("{python}", "own_script.py"), metrics=REGEX)
        assert train(assigned(tmp_path, command))["status"] == "finished"

    def test_output_of_former_attempts_is_kept_and_not_read_again(self, tmp_path):
        ran(tmp_path, "print('loss 1')", metrics=REGEX)
        result = ran(tmp_path, "print('loss 2')", metrics=REGEX)
        assert (result["curve"], result["attempts"]) == ([[1, 2]], 2)
        assert output(tmp_path) == b"loss 1\nloss 2\n"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


# In one write: an unbuffered print writes the number and the end of its line one after the other.
TELLS_ITS_NUMBER = "import os, time; os.write(1, str(os.getpid()).encode()); time.sleep(60)"


class TestFaults:
    def test_a_full_disk_is_raised_and_ends_the_command(self, tmp_path, monkeypatch):
        """The result is not lost as a failure: the trial can run again when there is room."""
        given = script(tmp_path, TELLS_ITS_NUMBER)
        running = []

        def full(self, chunk):
            running.append(int(chunk))
            raise StorageError(os.strerror(errno.ENOSPC))

        monkeypatch.setattr(commands._Running, "_write", full)
        with pytest.raises(StorageError, match="No space left"):
            train(given)
        assert not is_alive(running[0])

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
    def test_an_output_that_cannot_be_written_is_named(self, tmp_path):
        given = script(tmp_path, "print('loss 1')", metrics=REGEX)
        folder = Path(given.folder)
        folder.mkdir(parents=True)
        (folder / "output.txt").symlink_to("/dev/full")
        with pytest.raises(StorageError, match=r"could not write .*output.txt: No space left"):
            train(given)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_it_dies_with_its_worker_and_the_next_attempt_waits_for_that(self, tmp_path, number):
        """The command saves its state for a second after the worker has gone; only then is its
        folder free.
        """
        code = """
            import os, pathlib, signal, sys, time
            folder = pathlib.Path(os.environ["MUPSCALE_FOLDER"])
            def save(*_):
                time.sleep(1); (folder / "saved").touch(); sys.exit(0)
            if (folder / "saved").exists(): print("loss 1"); sys.exit(0)
            signal.signal(signal.SIGTERM, save)
            (folder / "pid").write_text(str(os.getpid())); (folder / "started").touch()
            time.sleep(60)
        """
        given = script(tmp_path, code, metrics=REGEX)
        (tmp_path / "given").write_bytes(pickle.dumps(given))
        worker = (
            "import pickle, sys; from mupscale.studies.trainers import train\n"
            "train(pickle.load(open(sys.argv[1], 'rb')))"
        )
        folder = Path(given.folder)
        with subprocess.Popen([sys.executable, "-c", worker, str(tmp_path / "given")]) as process:
            wait_until((folder / "started").exists, 60)
            process.send_signal(number)
        command = int((folder / "pid").read_text())
        result = strict(train(given))
        assert not is_alive(command)
        assert (result["status"], result["attempts"]) == ("finished", 2)

    def test_ctrl_c_ends_it(self, tmp_path, monkeypatch):
        """Where the trial runs in the driver itself."""
        given = script(tmp_path, TELLS_ITS_NUMBER)
        running = []

        def interrupted(self, chunk):
            running.append(int(chunk))
            raise KeyboardInterrupt

        monkeypatch.setattr(commands._Running, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(given)
        assert not is_alive(running[0])

    def test_nothing_is_left_open(self, tmp_path):
        before = set(os.listdir("/proc/self/fd"))
        ran(tmp_path, "print('loss 1')", metrics=REGEX)
        ran(tmp_path, "print('loss nan')", metrics=REGEX)
        assert set(os.listdir("/proc/self/fd")) == before

    @pytest.mark.skipif(shutil.which("sh") is None, reason="no shell to be fooled")
    def test_no_shell_sees_the_arguments(self, tmp_path):
        victim = tmp_path / "victim"
        given = assigned(
            tmp_path,
            Trainer(command=("{python}", "-c", "print('loss 1')", "{name}"), metrics=REGEX),
            variant={"name": f"x; touch {victim}; $(touch {victim}) `touch {victim}`"},
        )
        assert train(given)["status"] == "finished"
        assert not victim.exists()

    def test_an_argument_list_that_is_too_long_is_said(self, tmp_path):
        given = script(tmp_path, "", "x" * (1 << 22))
        with pytest.raises(OptionError, match=r"could not start .*: Argument list too long"):
            train(given)
