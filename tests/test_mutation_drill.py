"""The mutants of `drills/mutations.py`: each is another program, and none changes only words."""

import ast
import json
import sys
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drills.mutations import (
    EQUIVALENT,
    KILLED,
    NOT_CALLED,
    ROOMS,
    SURVIVED,
    Coverage,
    Drill,
    Mutant,
    mutants_of,
    sampled,
    texts_of,
    traced,
)

PACKAGE = Path(__file__).parents[1] / "src/mupscale"
SOURCE = '''
from typing import TYPE_CHECKING, Literal
if TYPE_CHECKING:
    x = 1 + 1
Size = Literal[1, 2]
def f(a: Literal[3] = 4) -> int:
    """Docstring with 5 < 6."""
    if not a:
        raise ValueError(f"{a + 7} is not " + "right", 8)
    assert a > 9
    warnings.warn("no", stacklevel=10)
    return g(a, key=a * 11, strict=True)
class C:
    def __repr__(self) -> str:
        return f"{12}"
'''


MUTANT = Mutant("f.py", 4, "x = 1", 3, 0, 1, "1", "2", "1 → 2")


def mutated(text: str, mutant: Mutant) -> str:
    source = text.encode()
    return (source[: mutant.start] + f"({mutant.new})".encode() + source[mutant.end :]).decode()


@pytest.mark.parametrize("room", ROOMS)
def test_every_mutant_is_another_program(room):
    path = max((PACKAGE / room).glob("*.py"), key=lambda one: one.stat().st_size)
    text = path.read_text(encoding="utf-8")
    before = ast.dump(ast.parse(text))
    mutants = list(mutants_of(text, path.name))
    assert len(mutants) > 50
    for mutant in mutants[::7]:
        assert ast.dump(ast.parse(mutated(text, mutant))) != before, mutant


def test_words_annotations_and_errors_are_left_alone():
    changed = {mutant.what for mutant in mutants_of(SOURCE, "f.py")}
    assert changed == {
        "4 → 5",
        "not a → a",
        "g(a, key=a * 11, strict=True) → None",
        "g(…) without key",
        "a * 11 → a / 11",
        "11 → 12",
    }


def test_a_sample_is_the_same_for_the_same_seed_and_part_of_a_larger_one():
    mutants = list(mutants_of((PACKAGE / "theory/units.py").read_text(encoding="utf-8"), "f.py"))
    sample = sampled(mutants, 5, seed=0)
    assert sample == sampled(mutants, 5, seed=0) != sampled(mutants, 5, seed=1)
    assert sample == sampled(mutants, 9, seed=0)[:5]


def test_a_new_line_of_source_leaves_the_sample_almost_as_it_was():
    before = sampled(list(mutants_of(SOURCE, "f.py")), 3, seed=0)
    after = sampled(list(mutants_of("y = g(2)\n" + SOURCE, "f.py")), 4, seed=0)
    assert {one.what for one in before} <= {one.what for one in after}


def test_what_counts_as_equivalent_is_a_mutant_of_the_source():
    files = {file for file, _, _ in EQUIVALENT}
    texts = {file: (PACKAGE / file).read_text(encoding="utf-8") for file in files}
    found = [one for file in files for one in mutants_of(texts[file], f"src/mupscale/{file}")]
    keys = {(one.place.rpartition(":")[0], one.source, one.what) for one in found if one.equivalent}
    assert keys == set(EQUIVALENT)


def test_callers_come_first_and_the_fastest_of_them(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"test": "t::slow (call)", "child": false, "file": "f.py", "line": 3}\n'
        '{"test": "t::fast[1] (call)", "child": false, "file": "f.py", "line": 3}\n'
        '{"test": "t::other (call)", "child": false, "file": "f.py", "line": 9}\n'
        '{"report": "t::slow", "seconds": 5, "failed": false}\n'
        '{"report": "t::fast[1]", "seconds": 1, "failed": false}\n'
        '{"report": "t::other", "seconds": 0.5, "failed": false}\n'
        '{"report": "t::broken", "seconds": 0.1, "failed": true}\n'
    )
    tests, mutant = Coverage([trace]), MUTANT
    assert tests.tests_for(mutant, seconds=60) == ["t::fast", "t::slow", "t::other"]
    assert tests.tests_for(mutant, seconds=2) == ["t::fast"]
    assert tests.tests_for(mutant, seconds=5.5, first="slow") == ["t::slow"]


def test_every_function_of_a_traced_file_says_that_it_was_called(monkeypatch):
    text = (
        "def f():\n    'D.'\n    def g(): return 1\n    return g()\nclass C:\n    def h(self): f()"
    )
    calls: list[tuple[str, int]] = []
    tracer = SimpleNamespace(called=lambda file, line: calls.append((file, line)))
    monkeypatch.setitem(sys.modules, "sitecustomize", tracer)
    names: dict[str, Any] = {}
    exec(traced(text, "f.py"), names)
    names["C"]().h()
    assert calls == [("f.py", 6), ("f.py", 1), ("f.py", 3)]
    assert names["f"].__doc__ == "D."


class Copy:
    """In place of a copy of the repository: the tests named in `failing` kill every mutant."""

    def __init__(self, folder: Path, failing: Collection[str]) -> None:
        self.folder, self.failing, self.ran = folder, failing, list[str]()

    def outcome(self, mutant: Mutant, tests: list[str], timeout: float):
        self.ran = list(tests)
        failed = [test for test in tests if test in self.failing]
        return (KILLED, failed[:1]) if failed else (SURVIVED, tests)


@pytest.fixture
def outcome(tmp_path):
    """The outcome of `MUTANT`, and the tests that ran, for tests with these texts."""

    def outcome_of(texts: dict[str, str], *failing: str) -> tuple[str, list[str]]:
        trace = tmp_path / "trace.jsonl"
        lines = [{"report": test, "seconds": 1, "failed": False} for test in texts]
        calls = [
            {"test": f"{test} (call)", "child": False, "file": "f.py", "line": 3} for test in texts
        ]
        trace.write_text("\n".join(map(json.dumps, [*lines, *calls])))
        tree = Copy(tmp_path, failing)
        drill = Drill(tmp_path, [tree], 60)  # type: ignore[list-item]
        drill.texts = texts
        return drill.outcome(MUTANT, Coverage([trace])), sorted(tree.ran)

    return outcome_of


def test_a_survivor_meets_only_tests_that_are_new_or_changed(outcome):
    assert outcome({"t::a": "1", "t::b": "1"}) == (SURVIVED, ["t::a", "t::b"])
    assert outcome({"t::a": "1", "t::b": "1"}) == (SURVIVED, [])
    assert outcome({"t::a": "1", "t::b": "2"}) == (SURVIVED, ["t::b"])
    assert outcome({"t::a": "1", "t::b": "2", "t::c": "1"}, "t::c") == (KILLED, ["t::c"])


def test_a_kill_holds_until_the_test_that_failed_changes(outcome):
    assert outcome({"t::a": "1", "t::b": "1"}, "t::b") == (KILLED, ["t::a", "t::b"])
    assert outcome({"t::a": "2", "t::b": "1"}) == (KILLED, [])
    assert outcome({"t::a": "2", "t::b": "2"}) == (SURVIVED, ["t::a", "t::b"])
    assert outcome({"t::a": "2"}) == (SURVIVED, [])


def test_a_mutant_that_no_test_calls_survives(outcome):
    assert outcome({}) == (NOT_CALLED, [])


def test_the_text_of_a_test_includes_what_it_shares_but_no_import_and_no_other_test():
    before = texts_of("X = 1\ndef test_a(): f(X)\n", "t")["t::test_a"]
    more = "import os\nX = 1\ndef test_a(): f(X)\ndef test_b(): g()\n"
    assert texts_of(more, "t")["t::test_a"] == before
    assert texts_of("X = 2\ndef test_a(): f(X)\n", "t")["t::test_a"] != before
    assert texts_of("X = 1\ndef test_a(): g(X)\n", "t")["t::test_a"] != before
