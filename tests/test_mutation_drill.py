"""The mutants of `drills/mutations.py`: each is another program, and none changes only words."""

import ast
from pathlib import Path

import pytest

from drills.mutations import ROOMS, Coverage, Mutant, mutants_of, sampled

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


def test_a_sample_is_the_same_for_the_same_seed():
    assert sampled("theory", 5, seed=0) == sampled("theory", 5, seed=0) != sampled("theory", 5, 1)


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
    mutant = Mutant("f.py", 4, 3, 0, 1, "1", "2", "1 → 2")
    tests = Coverage([trace])
    assert tests.tests_for(mutant, seconds=60) == ["t::fast", "t::slow", "t::other"]
    assert tests.tests_for(mutant, seconds=2) == ["t::fast"]
