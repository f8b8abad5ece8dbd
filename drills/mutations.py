"""Mutation drill: change one thing in the source, and see whether a test of that room notices.

The rooms are theory, planning, analysis and studies. A mutant flips a comparison or `and`/`or`,
swaps an arithmetic operator, changes a number, drops a `not`, negates a condition, removes a
keyword argument or replaces a return value. It runs in a temporary copy, against tests/ROOM and the
doctests of src/mupscale/ROOM. It is killed when a test fails or runs out of time.

First each test file runs once in a copy in which each function records which test calls it, in
child processes too. A test that fails there is left out. A mutant then runs the tests that call its
function, fastest first, followed by other tests of the same source file, up to `--seconds` of test
time. What lies outside of functions meets all tests of the room.

Not mutated, because no test can or should notice: strings (messages, docstrings), what is raised or
asserted, annotations, decorators, `__repr__` and `__str__`, TYPE_CHECKING blocks, calls that only
warn, log or report progress, and keywords such as `strict` and `encoding`.

Why not a library: mutmut 3.8 always runs every mutant, leaves constants outside of functions alone
and mutates the text of messages; cosmic-ray 8.7 has one test command for all files and neither
removes keyword arguments nor replaces return values.

Results are kept in runs/mutations/DIGEST, where DIGEST depends on src and on what the tests share.
The same command continues an interrupted drill. After you add a test it traces only that test's
file, and tries survivors again with the tests that they have not met. A kill holds as long as the
test that failed is unchanged.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

import pytest

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

KILLED, TIMED_OUT, SURVIVED = "killed", "timed out", "survived"
NOT_CALLED = "survived, called by no test"
# Killed when the samples of seed 0 were first tried, with 60 seconds of tests per mutant.
FIRST = {"theory": 14, "planning": 17, "analysis": 13, "studies": 13}

# No test can notice these: (file, line of source, change) → why.
EQUIVALENT = {
    (
        "analysis/voronoi.py",
        "np.reshape(polygon, (-1, 2)) + place",
        "1 → 2",
    ): "NumPy takes any negative length as the one to compute",
    (
        "planning/storing.py",
        "return json.dumps(head | dict(content), ensure_ascii=False, allow_nan=False, indent=1)"
        ' + "\\n"',
        "json.dumps(…) without allow_nan",
    ): "the checksum has raised before",
    (
        "planning/storing.py",
        "plain = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False)",
        "json.dumps(…) without allow_nan",
    ): "writing the text raises as well",
}


@dataclass(frozen=True)
class Mutant:
    """One change: bytes `start` to `end` of a file become `new`."""

    file: str
    line: int
    source: str
    "The line, without the space around it."
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

    @property
    def equivalent(self) -> str:
        """Why no test can notice it, "" if one should."""
        return EQUIVALENT.get((self.place.rpartition(":")[0], self.source, self.what), "")


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
    texts = text.split("\n")

    def mutant(node: ast.expr, new: ast.expr, function: int) -> Mutant:
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        old, changed = ast.unparse(node), ast.unparse(new)
        what = f"{old} → {changed}"
        if isinstance(node, ast.Call) and isinstance(new, ast.Call):
            (removed,) = {one.arg for one in node.keywords} - {one.arg for one in new.keywords}
            what = f"{ast.unparse(node.func)}(…) without {removed}"
        words = texts[node.lineno - 1].strip()
        return Mutant(file, node.lineno, words, function, start, end, old, changed, what[:120])

    def below(node: ast.AST, function: int) -> Iterator[Mutant]:
        if _is_quiet(node):
            return
        if isinstance(node, ast.FunctionDef):
            function = _first_line(node)
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


def mutants_in(room: str) -> list[Mutant]:
    files = sorted((ROOT / "src/mupscale" / room).rglob("*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    return [mutant for file, text in texts.items() for mutant in mutants_of(text, file)]


def sampled(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """A random sample that hardly changes when other lines of the source do."""
    earlier: Counter[tuple[str, str, str]] = Counter()
    ranked: list[tuple[str, int]] = []
    for place, one in enumerate(mutants):
        change = one.file, one.old, one.new
        ranked.append((_digest(repr((seed, earlier[change], *change))), place))
        earlier[change] += 1
    return [mutants[place] for _, place in sorted(ranked)[:count]]


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def texts_of(text: str, file: str) -> dict[str, str]:
    """A digest of each test of a file, with all that the tests of the file share but imports."""
    body = ast.parse(text).body
    tests = [node for node in body if getattr(node, "name", "").lower().startswith("test")]
    shared = [
        ast.dump(node)
        for node in body
        if node not in tests and not isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return {f"{file}::{test.name}": _digest(*shared, ast.dump(test)) for test in tests}  # type: ignore[attr-defined]


# Python imports this at the start of every process, and pytest loads it as a plugin. Each function
# is written when a test first calls it, so that a process that is killed loses nothing.
TRACER = '''"""PYTEST_DONT_REWRITE"""
import json, os

if "TRACE_FILE" in os.environ:
    output = os.open(os.environ["TRACE_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    main, known = os.environ.setdefault("TRACE_PROCESS", str(os.getpid())), set()

    def write(**line):
        os.write(output, (json.dumps(line) + "\\n").encode())

    def called(file, line):
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        if (test, file, line) not in known:
            known.add((test, file, line))
            write(test=test, child=str(os.getpid()) != main, file=file, line=line)

    def pytest_runtest_logreport(report):
        write(report=report.nodeid, seconds=report.duration, failed=report.failed)
'''


def traced(text: str, file: str) -> str:
    """The source with a call of the tracer in each function.

    It costs less than `sys.settrace`, which sees every call in every library.

    >>> print(traced("def f(): return 1", "f.py"))
    def f():
        __import__('sitecustomize').called('f.py', 1)
        return 1
    """
    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            call = f"__import__('sitecustomize').called({file!r}, {_first_line(node)})"
            after_docstring = 0 if ast.get_docstring(node) is None else 1
            node.body[after_docstring:after_docstring] = ast.parse(call).body
    return ast.unparse(module)


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


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

    def tests_for(self, mutant: Mutant, seconds: float, first: str = "") -> list[str]:
        """Callers of the function, then other tests of the file, each fastest first. All tests of
        the room for what lies outside of functions: a test may read it without any call.
        """
        inside = mutant.function > 0
        callers = self.of_function[mutant.file, mutant.function] if inside else set()
        others = self.of_file[mutant.file] if inside else set[str]()
        others = others or set(self.seconds)
        ordered = sorted(callers, key=self.seconds.__getitem__)
        ordered += sorted(others - callers, key=self.seconds.__getitem__)
        ordered.sort(key=lambda test: first not in test)
        chosen, spent = list[str](), 0.0
        for test in (one for one in ordered if one not in self.failed):
            spent += self.seconds[test]
            if chosen and spent > seconds:
                break
            chosen.append(test)
        return chosen


# Tests run in children of a process that has imported what takes long, but nothing of ours.
PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = ["pytest", "sympy", "scipy.stats", "scipy.optimize", "torch", "optuna"]


def _run_pytest(
    folder: str, arguments: Sequence[str], environment: dict[str, str], failed: Connection
) -> None:
    class Report:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failed.send(report.nodeid.partition("[")[0])

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:  # the file cannot even be imported
                failed.send(report.nodeid)

    os.setsid()
    os.chdir(folder)
    sys.dont_write_bytecode = False
    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(":")
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    status = pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[Report()])
    os._exit(status)  # whatever the tests left running


class Tree:
    """A copy of src and tests, with links to the rest of the repository."""

    def __init__(self, folder: Path, source: Path = ROOT) -> None:
        self.folder, self._time = folder, 1_000_000_000
        ignored = shutil.ignore_patterns("__pycache__")
        for entry in source.iterdir():
            if entry.name in ("src", "tests"):
                shutil.copytree(entry, folder / entry.name, ignore=ignored)
            elif entry.name not in (".git", "runs", "tracing"):
                (folder / entry.name).symlink_to(entry)
        (folder / "tracing").mkdir()
        (folder / "tracing/sitecustomize.py").write_text(TRACER)

    def pytest(
        self, arguments: Sequence[str], timeout: float | None, **more: str
    ) -> tuple[int | None, list[str]]:
        """The exit status, None after the time limit, and the tests or files that failed."""
        environment = {"PYTHONPATH": f"{self.folder}/src:{self.folder}/tracing", **more}
        receiver, sender = PROCESSES.Pipe(duplex=False)
        what = str(self.folder), arguments, environment, sender
        process = PROCESSES.Process(target=_run_pytest, args=what)
        process.start()
        sender.close()
        process.join(timeout)
        status = process.exitcode
        with contextlib.suppress(ProcessLookupError):  # the tests' own children too
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        failed: list[str] = []
        with contextlib.suppress(EOFError):
            while receiver.poll():
                failed.append(receiver.recv())
        return status, failed

    def trace_(self) -> None:
        """Make each function record which test calls it."""
        for path in (one for room in ROOMS for one in self._sources(room)):
            file = str(path.relative_to(self.folder))
            self._write(path, traced(path.read_text(encoding="utf-8"), file).encode())

    def _sources(self, room: str) -> Iterator[Path]:
        return (self.folder / "src/mupscale" / room).rglob("*.py")

    def trace_of(self, target: str, output: Path) -> Path:
        part = output.with_suffix(f".{os.getpid()}")
        part.unlink(missing_ok=True)
        status, _ = self.pytest([target, "-p", "sitecustomize"], None, TRACE_FILE=str(part))
        if status not in (0, 1):
            sys.exit(f"pytest {target} ended with status {status} before any mutation")
        return part.rename(output)

    def outcome(
        self, mutant: Mutant, tests: Sequence[str], timeout: float
    ) -> tuple[str, Sequence[str]]:
        """How it ended, and the tests that show it: the one that failed, or all."""
        path = self.folder / mutant.file
        source = path.read_bytes()
        new = source[: mutant.start] + f"({mutant.new})".encode() + source[mutant.end :]
        try:
            self._write(path, new)
            status, failed = self.pytest(["-x", *tests], timeout)
        finally:
            self._write(path, source)
        if status == 0:
            return SURVIVED, tests
        first = [test for test in tests if failed and f"{test}::".startswith(f"{failed[0]}::")]
        return (TIMED_OUT, tests) if status is None else (KILLED, first[:1] or tests)

    def _write(self, path: Path, source: bytes) -> None:
        """With a new time: Python takes compiled code of the same time and size as current."""
        path.write_bytes(source)
        self._time += 1
        os.utime(path, (self._time, self._time))


class Drill:
    """Traces and outcomes, kept in a folder. Each worker takes a free tree."""

    def __init__(
        self, folder: Path, trees: Sequence[Tree], seconds: float, first: str = ""
    ) -> None:
        self.outcomes_file, self.folder = folder / "outcomes.jsonl", folder
        self.seconds, self.first = seconds, first
        self.pool, self.trees = ThreadPoolExecutor(len(trees)), SimpleQueue[Tree]()
        for tree in trees:
            self.trees.put(tree)
        self.outcomes_file.touch()
        # Mutant → how it ended, and each test that shows it with the digest of its text.
        self.outcomes: dict[str, tuple[str, dict[str, str]]] = {}
        for line in self.outcomes_file.read_text(encoding="utf-8").splitlines():
            key, *outcome = json.loads(line)
            self.outcomes[key] = outcome[0], outcome[1]
        self.texts: dict[str, str] = {}
        self.source = trees[0].folder  # the repository itself may be edited meanwhile
        for path in (self.source / "tests").rglob("test_*.py"):
            file = str(path.relative_to(self.source))
            self.texts |= texts_of(path.read_text(encoding="utf-8"), file)

    @contextlib.contextmanager
    def _tree(self) -> Iterator[Tree]:
        tree = self.trees.get()
        try:
            yield tree
        finally:
            self.trees.put(tree)

    def text(self, test: str) -> str:
        return self.texts.get("::".join(test.split("::")[:2]), "")  # "": a doctest of src

    def coverage(self, room: str) -> Coverage:
        tests = sorted((self.source / "tests" / room).glob("test_*.py"))
        targets = [*(str(path.relative_to(self.source)) for path in tests), f"src/mupscale/{room}"]
        outputs = {target: self._output(target) for target in targets}
        missing = {target: output for target, output in outputs.items() if not output.exists()}
        if missing:
            with tempfile.TemporaryDirectory() as folder:
                tree = Tree(Path(folder), self.source)
                tree.trace_()
                list(self.pool.map(tree.trace_of, missing, missing.values()))
        return Coverage(list(outputs.values()))

    def _output(self, target: str) -> Path:
        path = self.source / target
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        return self.folder / f"{target.replace('/', '-')}-{_digest(text)}.jsonl"

    def outcome(self, mutant: Mutant, coverage: Coverage) -> str:
        key = json.dumps(asdict(mutant))
        end, shown = self.outcomes.get(key, (SURVIVED, {}))
        held = [test for test, text in shown.items() if self.text(test) == text]
        if end != SURVIVED and len(held) == len(shown):
            return end
        passed = set(held) if end == SURVIVED else set()
        tests = coverage.tests_for(mutant, self.seconds, self.first)
        tests = [test for test in tests if test not in passed]
        if not tests:
            return SURVIVED if passed else NOT_CALLED
        spent = sum(coverage.seconds[test] for test in tests)
        with self._tree() as tree:
            end, tests = tree.outcome(mutant, tests, 300 + 20 * spent)  # a busy machine
        show = [*passed, *tests] if end == SURVIVED else tests
        self.outcomes[key] = end, {test: self.text(test) for test in show}
        with self.outcomes_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, *self.outcomes[key]]) + "\n")
        print(f"{end}: {mutant.place}: {mutant.what}", file=sys.stderr, flush=True)
        return end


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--rooms", nargs="+", default=ROOMS, choices=ROOMS, help="Rooms to mutate.")
    option("--mutants", type=int, default=20, help="Mutants per room (default: 20).")
    option("--seed", type=int, default=0, help="Seed of the sample (default: 0).")
    option("--only", default="", help="Only mutants of the sample whose FILE:LINE contains this.")
    option("--seconds", type=float, default=120, help="Test time per mutant (default: 120).")
    option("--first", default="", help="Tests whose name contains this run first: new ones.")
    option("--workers", type=int, default=os.cpu_count(), help="Default: one per core.")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each copy is compiled once
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # as tests/conftest.py
    PROCESSES.set_forkserver_preload(PRELOADED)
    paths = sorted(path for top in ("src", "tests") for path in (ROOT / top).rglob("*.py"))
    shared = [path for path in paths if not path.name.startswith("test_")]
    texts = (f"{one.relative_to(ROOT)}\n{one.read_text(encoding='utf-8')}" for one in shared)
    folder = ROOT / "runs/mutations" / _digest(*texts)
    folder.mkdir(parents=True, exist_ok=True)
    print(
        f"{options.mutants} mutants per room, sampled with seed {options.seed}; each runs tests "
        "of its room: those that\ncall its function, then those of its file, up to "
        f"{options.seconds:g} seconds\n\n"
        f"{'room':<10}{'mutants':>9}{'sampled':>9}{'killed':>8}{'equivalent':>12}{'survived':>10}"
        f"{'score':>8}",
        flush=True,
    )
    with contextlib.ExitStack() as stack:
        new_folder = tempfile.TemporaryDirectory
        places = [stack.enter_context(new_folder()) for _ in range(options.workers)]
        # Now, with the copies: the source may be edited while the drill runs.
        mutants = {room: mutants_in(room) for room in options.rooms}
        trees = [Tree(Path(place)) for place in places]
        drill = Drill(folder, trees, options.seconds, options.first)
        ended: dict[Mutant, str] = {}
        left_out: set[str] = set()
        for room, found in mutants.items():
            sample = sampled(found, options.mutants, options.seed)
            sample = [mutant for mutant in sample if options.only in mutant.place]
            coverage = drill.coverage(room)
            tried = [mutant for mutant in sample if not mutant.equivalent]
            outcomes = drill.pool.map(lambda one: drill.outcome(one, coverage), tried)  # noqa: B023
            ended |= dict(zip(tried, outcomes, strict=True))
            ended |= {mutant: "equivalent" for mutant in sample if mutant.equivalent}
            left_out |= coverage.failed
            print(_row(room, len(found), [ended[mutant] for mutant in sample]), flush=True)
    count = sum(map(len, mutants.values()))
    print(_row("all", count, list(ended.values())), end="\n\n")
    for mutant, end in ended.items():
        if end != KILLED:
            reason = f": {mutant.equivalent}" if mutant.equivalent else ""
            print(f"{end}: {mutant.place}: {mutant.what}{reason}")
    for test in sorted(left_out):
        print(f"left out, since it fails in the traced copy: {test}")
    before = ", ".join(f"{room} {killed}" for room, killed in FIRST.items())
    print(
        "\nscore: the killed among those that are not equivalent\n"
        f"killed of 20 per room (seed 0) before tests were written for the survivors: {before}\n"
        f"that first score, {sum(FIRST.values())} of {20 * len(FIRST)}, estimates what tests see "
        "elsewhere; two of the others fell to\ntests that existed, but were not chosen or not "
        "finished in that run"
    )


def _row(room: str, count: int, ends: Sequence[str]) -> str:
    killed, equivalent = ends.count(KILLED) + ends.count(TIMED_OUT), ends.count("equivalent")
    able = len(ends) - equivalent
    return (
        f"{room:<10}{count:>9}{len(ends):>9}{killed:>8}{equivalent:>12}{able - killed:>10}"
        f"{killed / max(1, able):>8.0%}"
    )


if __name__ == "__main__":
    main()
