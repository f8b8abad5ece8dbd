"""Mutation drill: change one thing in the source, and see whether a test of that room notices.

The rooms are theory, planning, analysis and studies. A mutant flips a comparison or `and`/`or`,
swaps an arithmetic operator, changes a number, drops a `not`, negates a condition, removes a
keyword argument or replaces a return value. It runs in a temporary copy, against tests/ROOM and the
doctests of src/mupscale/ROOM. It is killed when a test fails or runs out of time.

First each test file runs once with a tracer that records which functions each test calls, in
child processes too. A mutant then runs the tests that call its function, fastest first, followed by
other tests of the same source file, up to `--seconds` of test time.

Not mutated, because no test can or should notice: strings (messages, docstrings), what is raised or
asserted, annotations, decorators, `__repr__` and `__str__`, TYPE_CHECKING blocks, calls that only
warn, log or report progress, and keywords such as `strict` and `encoding`.

Why not a library: mutmut 3.8 always runs every mutant, leaves constants outside of functions alone
and mutates the text of messages; cosmic-ray 8.7 has one test command for all files and neither
removes keyword arguments nor replaces return values.

Results are kept in runs/mutations/DIGEST, where DIGEST depends on src and tests. The same command
continues an interrupted drill.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("theory", "planning", "analysis", "studies")
QUIET_CALLS = {"warn", "info", "debug", "warning", "remark", "report", "cast", "field"}
QUIET_KEYWORDS = {"strict", "encoding", "errors", "stacklevel", "repr", "flush", "daemon"}
QUIET_FUNCTIONS = {"__repr__", "__str__", "_repr_html_"}
FLIPPED = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
SWAPPED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: bytes `start` to `end` of a file become `new`."""

    file: str
    line: int
    function: int
    "First line of the enclosing function, 0 outside of functions."
    start: int
    end: int
    old: str
    new: str
    what: str

    @property
    def place(self) -> str:
        return f"{self.file.removeprefix('src/mupscale/')}:{self.line}"


def changes(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that may stand in place of this one."""
    match node:
        case ast.Compare(left, [op], [right]):
            yield ast.Compare(left, [FLIPPED[type(op)]()], [right])
            whole = isinstance(right, ast.Constant) and type(right.value) is int
            if type(op) in BOUNDARY and whole:  # for real numbers the boundary rarely matters
                yield ast.Compare(left, [BOUNDARY[type(op)]()], [right])
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.BinOp(left, op, right) if type(op) in SWAPPED:
            if not (_is_text(left) or _is_text(right)):
                yield ast.BinOp(left, SWAPPED[type(op)](), right)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1 if isinstance(value, int) or not value else value * 2)
        case ast.IfExp(test, body, other) if isinstance(test, ast.Name | ast.Attribute | ast.Call):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, other)
        case ast.Call(function, arguments, keywords):
            for keyword in keywords:
                if keyword.arg and keyword.arg not in QUIET_KEYWORDS:
                    others = [one for one in keywords if one is not keyword]
                    yield ast.Call(function, arguments, others)


def _is_text(node: ast.AST) -> bool:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return text or isinstance(node, ast.JoinedStr)


def _is_quiet(node: ast.AST) -> bool:
    """Whether nothing below this node is mutated."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr():
            return True
        case ast.If(test):
            return "TYPE_CHECKING" in ast.unparse(test)
        case ast.FunctionDef(name):
            return name in QUIET_FUNCTIONS
        case ast.Call(function):
            return ast.unparse(function).rpartition(".")[2] in QUIET_CALLS
        case ast.keyword(name):
            return name in QUIET_KEYWORDS
        case ast.Subscript(value):
            return ast.unparse(value) in ("Literal", "Annotated")
    return False


def mutants_of(text: str, file: str) -> Iterator[Mutant]:
    """Every mutant of a source file.

    >>> [one.what for one in mutants_of("def f(n): return not n < 3", "f.py")]
    ['not n < 3 → None', 'not n < 3 → n < 3', 'n < 3 → n >= 3', 'n < 3 → n <= 3', '3 → 4']
    """
    source = text.encode()
    lines = [0, *(place + 1 for place, byte in enumerate(source) if byte == ord("\n"))]

    def mutant(node: ast.expr, new: ast.expr, function: int) -> Mutant:
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        old, changed = ast.unparse(node), ast.unparse(new)
        what = f"{old} → {changed}"
        if isinstance(node, ast.Call) and isinstance(new, ast.Call):
            (removed,) = {one.arg for one in node.keywords} - {one.arg for one in new.keywords}
            what = f"{ast.unparse(node.func)}(…) without {removed}"
        return Mutant(file, node.lineno, function, start, end, old, changed, what[:120])

    def below(node: ast.AST, function: int) -> Iterator[Mutant]:
        if _is_quiet(node):
            return
        if isinstance(node, ast.FunctionDef):
            function = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        if isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Constant):
            yield mutant(node.value, ast.Constant(None), function)
        condition = node.test if isinstance(node, ast.If | ast.While) else None
        if isinstance(condition, ast.Name | ast.Attribute | ast.Call):
            yield mutant(condition, ast.UnaryOp(ast.Not(), condition), function)
        yield from (mutant(node, new, function) for new in changes(node))  # type: ignore[arg-type]
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list", "bases"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from below(child, function)

    yield from below(ast.parse(text), 0)


def sampled(room: str, count: int, seed: int) -> list[Mutant]:
    """A sample of a room's mutants, the same for the same source and seed."""
    files = sorted((ROOT / "src/mupscale" / room).rglob("*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    found = [mutant for file, text in texts.items() for mutant in mutants_of(text, file)]
    return random.Random(f"{room} {seed}").sample(found, min(count, len(found)))


# Python imports this at the start of every process, and pytest loads it as a plugin. Each function
# is written when a test first calls it, so that a process that is killed loses nothing.
TRACER = '''"""PYTEST_DONT_REWRITE"""
import json, os, sys, threading

if "TRACE_FILE" in os.environ:
    output = os.open(os.environ["TRACE_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    package, known = os.environ["TRACE_PACKAGE"], set()
    main = os.environ.setdefault("TRACE_PROCESS", str(os.getpid()))

    def write(**line):
        os.write(output, (json.dumps(line) + "\\n").encode())

    def note(frame, event, argument):
        code = frame.f_code
        if code.co_filename.startswith(package):  # only calls: no local trace is returned
            test = os.environ.get("PYTEST_CURRENT_TEST", "")
            if (test, code) not in known:
                known.add((test, code))
                write(test=test, child=str(os.getpid()) != main, line=code.co_firstlineno,
                      file=code.co_filename[len(package):])

    threading.settrace(note)
    sys.settrace(note)

    def pytest_runtest_logreport(report):
        write(report=report.nodeid, seconds=report.duration, failed=report.failed)
'''


class Coverage:
    """Which tests call which function, from the traces of a room's test files."""

    def __init__(self, traces: Sequence[Path]) -> None:
        self.seconds: Counter[str] = Counter()
        self.of_function: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        self.of_file: defaultdict[str, set[str]] = defaultdict(set)
        self.failed: set[str] = set()
        for trace in traces:
            lines = [json.loads(line) for line in trace.read_text().splitlines()]
            tests = {line["report"].partition("[")[0] for line in lines if "report" in line}
            for line in lines:
                if "report" in line:
                    name = line["report"].partition("[")[0]
                    self.seconds[name] += line["seconds"]
                    self.failed |= {name} if line["failed"] else set()
                    continue
                test, _, phase = line["test"].rpartition(" (")
                # What a fixture or a child process calls may decide any test of the file.
                shared = line["child"] or phase != "call)"
                callers = tests if shared else {test.partition("[")[0]}
                self.of_function[line["file"], line["line"]] |= callers
                self.of_file[line["file"]] |= callers

    def tests_for(self, mutant: Mutant, seconds: float) -> list[str]:
        """Callers of the function, then other tests of the file, each fastest first."""
        callers = self.of_function[mutant.file, mutant.function] if mutant.function else set()
        others = self.of_file[mutant.file] or set(self.seconds)
        ordered = sorted(callers, key=self.seconds.__getitem__)
        ordered += sorted(others - callers, key=self.seconds.__getitem__)
        chosen, spent = list[str](), 0.0
        for test in (one for one in ordered if one not in self.failed):
            spent += self.seconds[test]
            if chosen and spent > seconds:
                break
            chosen.append(test)
        return chosen


class Tree:
    """A copy of src and tests, with links to the rest of the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._time = folder, 1_000_000_000
        ignored = shutil.ignore_patterns("__pycache__")
        for entry in ROOT.iterdir():
            if entry.name in ("src", "tests"):
                shutil.copytree(entry, folder / entry.name, ignore=ignored)
            elif entry.name not in (".git", "runs"):
                (folder / entry.name).symlink_to(entry)
        (folder / "tracing").mkdir()
        (folder / "tracing/sitecustomize.py").write_text(TRACER)

    def pytest(self, arguments: Sequence[str], timeout: float | None, **more: str) -> int | None:
        """The exit status, None after the time limit."""
        paths = f"{self.folder}/src:{self.folder}/tracing"
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):  # the tests' own children too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def trace(self, target: str, output: Path) -> None:
        part = output.with_suffix(".part")
        part.unlink(missing_ok=True)
        more = {"TRACE_FILE": str(part), "TRACE_PACKAGE": f"{self.folder}/"}
        status = self.pytest([target, "-p", "sitecustomize"], None, **more)
        if status not in (0, 1):
            sys.exit(f"pytest {target} ended with status {status} before any mutation")
        part.rename(output)

    def outcome(self, mutant: Mutant, tests: Sequence[str], timeout: float) -> str:
        if not tests:
            return "survived, called by no test"
        path = self.folder / mutant.file
        source = path.read_bytes()
        new = source[: mutant.start] + f"({mutant.new})".encode() + source[mutant.end :]
        try:
            self._write(path, new)
            return "survived" if self.pytest(["-x", *tests], timeout) == 0 else "killed"
        finally:
            self._write(path, source)

    def _write(self, path: Path, source: bytes) -> None:
        """With a new time: Python takes compiled code of the same time and size as current."""
        path.write_bytes(source)
        self._time += 1
        os.utime(path, (self._time, self._time))


class Drill:
    """Traces and outcomes, kept in a folder. Each worker takes a free tree."""

    def __init__(self, folder: Path, trees: Sequence[Tree], seconds: float) -> None:
        self.outcomes_file, self.folder, self.seconds = folder / "outcomes.jsonl", folder, seconds
        self.pool, self.trees = ThreadPoolExecutor(len(trees)), SimpleQueue[Tree]()
        for tree in trees:
            self.trees.put(tree)
        self.outcomes_file.touch()
        self.outcomes: dict[str, str] = {}
        for line in self.outcomes_file.read_text(encoding="utf-8").splitlines():
            self.outcomes |= json.loads(line)

    def coverage(self, room: str) -> Coverage:
        tests = sorted((ROOT / "tests" / room).glob("test_*.py"))
        targets = [*(str(path.relative_to(ROOT)) for path in tests), f"src/mupscale/{room}"]
        return Coverage(list(self.pool.map(self._trace, targets)))

    def _trace(self, target: str) -> Path:
        output = self.folder / f"{target.replace('/', '-')}.jsonl"
        if not output.exists():
            tree = self.trees.get()
            tree.trace(target, output)
            self.trees.put(tree)
        return output

    def outcome(self, mutant: Mutant, coverage: Coverage) -> str:
        key = json.dumps(asdict(mutant))
        if key not in self.outcomes:
            tests, tree = coverage.tests_for(mutant, self.seconds), self.trees.get()
            spent = sum(coverage.seconds[test] for test in tests)
            self.outcomes[key] = tree.outcome(mutant, tests, 60 + 5 * spent)
            self.trees.put(tree)
            with self.outcomes_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({key: self.outcomes[key]}) + "\n")
            line = f"{self.outcomes[key]}: {mutant.place}: {mutant.what}"
            print(line, file=sys.stderr, flush=True)
        return self.outcomes[key]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--rooms", nargs="+", default=ROOMS, choices=ROOMS, help="Rooms to mutate.")
    option("--mutants", type=int, default=60, help="Mutants per room (default: 60).")
    option("--seed", type=int, default=0, help="Seed of the sample (default: 0).")
    option("--only", default="", help="Only mutants of the sample whose FILE:LINE contains this.")
    option("--seconds", type=float, default=120, help="Test time per mutant (default: 120).")
    option("--workers", type=int, default=os.cpu_count(), help="Default: one per core.")
    options = parser.parse_args()
    sources = sorted(path for top in ("src", "tests") for path in (ROOT / top).rglob("*.py"))
    digest = hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in sources))
    folder = ROOT / "runs/mutations" / digest.hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    print(f"{'room':<10}{'mutants':>9}{'killed':>8}{'survived':>10}{'score':>8}", flush=True)
    with contextlib.ExitStack() as stack:
        new_folder = tempfile.TemporaryDirectory
        places = [stack.enter_context(new_folder()) for _ in range(options.workers)]
        drill = Drill(folder, [Tree(Path(place)) for place in places], options.seconds)
        # Sampled now, from the source that was copied: it may be edited while the drill runs.
        samples = {room: sampled(room, options.mutants, options.seed) for room in options.rooms}
        for room, sample in samples.items():
            coverage = drill.coverage(room)
            mutants = [mutant for mutant in sample if options.only in mutant.place]
            outcomes = list(drill.pool.map(lambda one: drill.outcome(one, coverage), mutants))  # noqa: B023
            killed, count = outcomes.count("killed"), len(mutants)
            score = f"{killed / max(1, count):.0%}"
            print(f"{room:<10}{count:>9}{killed:>8}{count - killed:>10}{score:>8}", flush=True)
            notes += [f"left out, fails without mutation: {test}" for test in coverage.failed]
            pairs = zip(mutants, outcomes, strict=True)
            notes += [f"{end}: {one.place}: {one.what}" for one, end in pairs if end != "killed"]
    print("", *notes, sep="\n")


if __name__ == "__main__":
    main()
