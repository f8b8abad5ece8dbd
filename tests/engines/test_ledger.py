"""The ledger: each finished job is on disk once, and nothing that happens to the file is passed
over.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mupscale.engines import Local, run_jobs
from mupscale.engines.ledger import Ledger
from mupscale.errors import NonFiniteError, OptionError, StorageError

HERE = Local(workers=0)
ABOUT = {"lr": 0.1, "model": {"width": 64}}
JOBS = {"a": 1, "b": 2, "c": 3}
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "new" / "jobs.jsonl"


def carry(path: Path, *, function=lambda n: n * n, jobs=JOBS, about=ABOUT, **more) -> dict:
    return run_jobs(function, jobs, ledger=path, about=about, engine=HERE, **more)


def not_again(_):
    pytest.fail("it was run again")


def test_it_says_what_is_run_and_then_each_result(path):
    carry(path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"about": ABOUT},
        {"job": "a", "result": 1},
        {"job": "b", "result": 4},
        {"job": "c", "result": 9},
    ]


def test_what_is_in_it_is_not_run_again(path):
    first = carry(path)
    content = path.read_bytes()
    seen = []
    assert carry(path, function=not_again, report=lambda *at: seen.append(at)) == first
    assert (path.read_bytes(), seen) == (content, [(3, 3)])


def test_jobs_may_be_added_and_left_out(path):
    carry(path, jobs={"a": 1, "b": 2})
    run = []
    assert carry(path, jobs={"d": 4, "b": 2}, function=lambda n: run.append(n) or n * n) == {
        "d": 16,
        "b": 4,
    }
    assert run == [4]
    assert list(carry(path, function=lambda n: n * n)) == ["a", "b", "c"]


def test_a_result_is_on_disk_before_anyone_hears_of_it(path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda file: (fsync(file), synced.append(path.read_bytes() if path.exists() else b"")),
    )

    def check(done, total):
        assert synced[-1].count(b"\n") == done + 1

    carry(path, report=check)


@settings(max_examples=15)
@given(results=st.dictionaries(st.text(), VALUES))
def test_what_is_written_is_what_is_read(results, tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / "jobs.jsonl"
    for _ in range(2):
        assert carry(path, function=lambda value: value, jobs=results) == results


class TestAnotherConfig:
    def test_is_refused_with_what_differs(self, path):
        carry(path)
        content = path.read_bytes()
        differing = r"lr: 0\.1 → absent; model\.width: 64 → 128; seed: absent → null"
        with pytest.raises(
            OptionError, match=rf"another config \({differing}\)\. Choose another folder"
        ):
            carry(path, about={"model": {"width": 128}, "seed": None})
        assert path.read_bytes() == content

    def test_the_order_of_keys_and_tuples_do_not_matter(self, path):
        carry(path, about={"a": (1, 2), "b": 1})
        carry(path, about={"b": 1, "a": [1, 2]}, function=not_again)

    @pytest.mark.parametrize(
        ("about", "error"), [({"lr": float("nan")}, NonFiniteError), ({"x": {1}}, OptionError)]
    )
    def test_that_json_cannot_carry(self, path, about, error):
        with pytest.raises(error, match="the description of the jobs"):
            carry(path, about=about)
        assert not path.exists()


class TestDamage:
    def test_a_torn_tail_is_dropped_wherever_it_is_torn(self, path):
        carry(path)
        content = path.read_bytes()
        before = content[: content.rindex(b"\n", 0, -1) + 1]
        for length in range(len(before) + 1, len(content)):
            path.write_bytes(content[:length])
            run = []
            carry(path, function=lambda n, run=run: run.append(n) or n * n)
            assert run == [3]
            assert path.read_bytes() == content

    def test_it_is_repaired_before_anything_is_appended(self, path):
        carry(path, jobs={"a": 1})
        content = path.read_bytes()
        path.write_bytes(content + b'{"job": "b", "res')
        with Ledger(path, ABOUT) as ledger:
            assert path.read_bytes() == content
            assert ledger.results == {"a": 1}

    @pytest.mark.parametrize(
        "line",
        [
            "not json",
            "[1]",
            '{"job": "b", "result": NaN}',
            '{"job": "b"}',
            '{"job": "a", "result": 1}',
            '{"about": {}}',
        ],
    )
    def test_a_broken_line_inside_is_an_error_that_names_it(self, path, line):
        carry(path)
        lines = path.read_text().splitlines()
        lines[2] = line
        path.write_text("\n".join(lines) + "\n")
        content = path.read_bytes()
        with pytest.raises(StorageError, match=r"jobs\.jsonl, line 3 is not"):
            carry(path, function=not_again)
        assert path.read_bytes() == content

    @pytest.mark.parametrize(
        "content", ["my notes, without an end of line", '{"step": 1}\n{"step": 2}\n']
    )
    def test_a_file_that_is_no_ledger_is_left_alone(self, path, content):
        path.parent.mkdir()
        path.write_text(content)
        with pytest.raises(StorageError, match="is not a ledger"):
            carry(path)
        assert path.read_text() == content

    def test_an_empty_file_is_a_new_ledger(self, path):
        path.parent.mkdir()
        path.touch()
        assert carry(path) == {"a": 1, "b": 4, "c": 9}

    def test_a_folder_in_its_place(self, path):
        path.mkdir(parents=True)
        with pytest.raises(StorageError, match="could not read"):
            carry(path)


class TestTwoDrivers:
    def test_the_second_is_refused_at_once(self, path):
        def second(done, total):
            with pytest.raises(
                OptionError, match=rf"is in use by another process \({os.getpid()}\)"
            ):
                carry(path)

        assert len(carry(path, report=second)) == 3
        assert carry(path, function=not_again)

    def test_a_driver_that_was_killed_holds_nothing(self, path):
        code = (
            "import sys, time; from pathlib import Path; from mupscale.engines.ledger import "
            "Ledger\n"
            f"with Ledger(Path(sys.argv[1]), {ABOUT}): print('open', flush=True); time.sleep(60)"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(OptionError, match=rf"in use by another process \({other.pid}\)"):
            carry(path)
        other.kill()
        other.communicate()
        assert len(carry(path)) == 3

    def test_one_that_failed_lets_go(self, path):
        carry(path)
        with pytest.raises(OptionError, match="another config"):
            carry(path, about={})
        with pytest.raises(ZeroDivisionError):
            carry(path, jobs={"z": 0}, function=lambda n: n, report=lambda *_: 1 / 0)
        assert len(carry(path)) == 3


class TestReading:
    def test_is_possible_while_another_writes_and_changes_nothing(self, path):
        def look(done, total):
            content = path.read_bytes()
            about, results = Ledger.read(path)
            assert (about, len(results)) == (ABOUT, done)
            assert path.read_bytes() == content

        carry(path, report=look)
        assert Ledger.read(path) == (ABOUT, {"a": 1, "b": 4, "c": 9})

    def test_leaves_out_a_line_that_is_not_whole(self, path):
        carry(path, jobs={"a": 1})
        content = path.read_bytes() + b'{"job": "b", "res'
        path.write_bytes(content)
        assert Ledger.read(path) == (ABOUT, {"a": 1})
        assert path.read_bytes() == content

    @pytest.mark.parametrize("content", [None, "", "my notes", '{"step": 1}\n'])
    def test_what_is_no_ledger_is_said(self, path, content):
        path.parent.mkdir()
        if content is not None:
            path.write_text(content)
        with pytest.raises(StorageError, match="is not a ledger"):
            Ledger.read(path)

    def test_a_broken_line_inside_is_an_error(self, path):
        carry(path)
        path.write_text(path.read_text().replace('"job": "b"', '"job": "a"'))
        with pytest.raises(StorageError, match=r"jobs\.jsonl, line 3 is not"):
            Ledger.read(path)


class TestADiskThatIsFull:
    def test_a_limit_on_files_stands_for_it(self, path):
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limit[1]))
            with pytest.raises(
                StorageError, match=r"could not write .*jobs\.jsonl: File too large"
            ) as caught:
                carry(path, function=lambda n: "x" * 1000 * n)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, before)
        assert caught.value.exit_status == 4
        self.check_whole_and_resume(path, finished=2)

    @pytest.mark.skipif(
        shutil.which("mount") is None or os.geteuid() != 0, reason="needs a small disk of its own"
    )
    def test_and_a_small_one_is_it(self, tmp_path):
        small = tmp_path / "small"
        small.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("may not mount")
        try:
            with pytest.raises(
                StorageError, match=r"could not write .*jobs\.jsonl: No space left on device"
            ):
                carry(small / "jobs.jsonl", function=lambda n: "x" * 30_000 * n)
            subprocess.run(["mount", "-o", "remount,size=900k", small], check=True)
            self.check_whole_and_resume(small / "jobs.jsonl", finished=1)
        finally:
            subprocess.run(["umount", small], check=True)

    def check_whole_and_resume(self, path: Path, finished: int) -> None:
        content = path.read_bytes()
        assert content.endswith(b"\n")
        assert content.count(b"\n") == 1 + finished
        run = []
        carry(path, function=run.append)
        assert run == list(JOBS.values())[finished:]
        assert path.read_bytes().startswith(content)
