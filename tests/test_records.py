"""Files are whole or not there, and JSON is strict."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from mupscale.errors import NonFiniteError, StorageError
from mupscale.records import differences, drop_torn_line, read_lines, write_rows, write_whole


@dataclass(frozen=True)
class Row:
    r: int
    value: float


def test_rows_are_one_json_object_a_line(tmp_path):
    path = tmp_path / "new" / "folder" / "rows.jsonl"
    write_rows(path, [Row(1, 0.1), {"r": 2, "value": None}])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"r": 1, "value": 0.1},
        {"r": 2, "value": None},
    ]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_json_lacks_is_refused_and_the_old_file_kept(bad, tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, [Row(1, 1.0)])
    with pytest.raises(NonFiniteError, match=r"rows\.jsonl"):
        write_rows(path, [Row(1, bad)])
    assert json.loads(path.read_text()) == {"r": 1, "value": 1.0}


def test_a_full_disk_leaves_the_old_file_and_nothing_half_written(tmp_path):
    """A real limit on the size of files, set in a process of its own, stands in for the full
    disk.
    """
    path = tmp_path / "rows.jsonl"
    path.write_text("old")
    code = (
        "import resource, signal, sys; from pathlib import Path; from mupscale.records import "
        "write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, "
        "(1000, 1000))\n"
        "from mupscale.errors import StorageError\n"
        f"try: write_whole(Path({str(path)!r}), b'x' * 5000)\n"
        "except StorageError as error: print(error); sys.exit(error.exit_status)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 4
    assert str(path) in result.stdout
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("old")
    code = (
        "import os; from pathlib import Path; import mupscale.records as records\n"
        "records.os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
        f"records.write_whole(Path({str(path)!r}), b'new')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert path.read_text() == "old"


def test_a_folder_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"could not write .*file/rows\.jsonl"):
        write_whole(tmp_path / "file" / "rows.jsonl", b"")


class TestLines:
    def test_what_is_written_is_read(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        assert read_lines(path) == ([], False)
        write_rows(path, [Row(1, 0.1), {"r": 2, "value": None}])
        assert read_lines(path) == ([{"r": 1, "value": 0.1}, {"r": 2, "value": None}], False)

    def test_a_torn_last_line_is_left_out_and_said_wherever_it_is_torn(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        write_rows(path, [{"r": 1}, {"r": 2}])
        content = path.read_bytes()
        whole = content[: content.index(b"\n") + 1]
        for length in range(len(whole) + 1, len(content)):
            path.write_bytes(content[:length])
            assert read_lines(path) == ([{"r": 1}], True)
            drop_torn_line(path)
            assert path.read_bytes() == whole

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("not json", "is not JSON"),
            ("", "is not JSON"),
            ("[1]", "is not a JSON object"),
            ('{"r": NaN}', "holds NaN"),
        ],
    )
    def test_a_broken_line_inside_is_an_error_that_names_file_and_line(self, line, words, tmp_path):
        path = tmp_path / "rows.jsonl"
        path.write_text(f'{{"r": 1}}\n{line}\n{{"r": 3}}\n')
        with pytest.raises(StorageError, match=rf"rows\.jsonl, line 2 .*{words}|line 2 {words}"):
            read_lines(path)

    def test_a_folder_in_its_place_is_named(self, tmp_path):
        with pytest.raises(StorageError, match=f"could not read {tmp_path}"):
            read_lines(tmp_path)


def test_differences_between_configs_name_what_was_added_removed_and_changed():
    old = {"lr": 0.1, "model": {"width": 64, "depth": 2}, "machine": {"device": "cpu", "seed": 1}}
    new = {"model": {"width": 128, "depth": 2}, "machine": {"device": "cuda", "seed": 1}, "r": 4}
    assert list(differences(old, new, ignore=["machine.device"])) == [
        "lr: 0.1 → absent",
        "model.width: 64 → 128",
        "r: absent → 4",
    ]
    assert list(differences(old, old)) == []
