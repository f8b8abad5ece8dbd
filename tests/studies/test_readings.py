"""Losses in a file that a command writes, without the command."""

from mupscale.studies.curves import LossCurve
from mupscale.studies.readings import Lines, metrics_in


def test_a_file_that_is_cut_and_begun_anew_counts_from_its_start(tmp_path):
    path, curve, metrics = tmp_path / "m.jsonl", LossCurve(), metrics_in("file:m.jsonl", tmp_path)
    path.write_text('{"loss": 5}\n{"loss": 4}\n')
    metrics.look(curve, last=False)
    path.write_text('{"loss": 3}\n')  # the same file, but shorter
    metrics.look(curve, last=False)
    assert curve.points() == [[1, 3]]


def test_what_was_read_is_not_read_again(tmp_path):
    path, curve, metrics = tmp_path / "m.jsonl", LossCurve(), metrics_in("file:m.jsonl", tmp_path)
    path.write_text('{"loss": 5}\n')
    metrics.look(curve, last=False)
    path.write_text('{"loss": 9}\n{"loss": 4}\n')  # the same file, and longer
    metrics.look(curve, last=False)
    assert curve.points() == [[1, 5], [2, 4]]


def test_a_line_may_have_ten_thousand_bytes():
    longest = b"x" * 10_000
    assert Lines().feed(longest + b"\n" + longest + b"x\n") == [longest.decode()]


def test_a_cleared_curve_has_not_even_a_step_zero():
    curve = LossCurve()
    curve.add(3.0, step=0)
    curve.add(2.0, step=1)
    curve.clear()
    assert curve.points() == []
    assert curve.loss is None
