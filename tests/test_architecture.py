"""The rooms of the package: data flows downward only, and nothing imports in a circle."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mupscale

PACKAGE = Path(mupscale.__file__).parent

# Each room may import those above it. A room that does not exist yet keeps its place.
ROOMS = [
    "errors", "text", "records", "theory", "analysis", "norms", "reading", "planning", "optim",
    "models", "targets", "data", "training", "engines", "checks", "studies", "recipes", "reports",
    "paper", "cli",
]  # fmt: skip
# The front doors open onto every room; mupscale/__init__ does so lazily, which the tests below
# check.
DOORS = {"mupscale", "mupscale.__main__", "mupscale.testing"}


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def only_for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(node: ast.AST):
    """Every statement that can run, those inside functions included."""
    for child in ast.iter_child_nodes(node):
        if not only_for_checkers(child):
            yield child
            yield from statements(child)


def imports(path: Path, package: Path, modules: set[str]) -> set[str]:
    """The package's own modules that a file imports, wherever in the file it does."""
    found: set[str] = set()
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write the import in full"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {node.module or ""}
            found |= {node.module or ""} if names - modules else set()
    return {name for name in found if name in modules and name != module_name(path, package)}


def import_graph(package: Path) -> dict[str, set[str]]:
    files = sorted(package.rglob("*.py"))
    modules = {module_name(path, package) for path in files}
    return {module_name(path, package): imports(path, package, modules) for path in files}


def room(module: str) -> str:
    return module.split(".")[1]


def upward_imports(graph: dict[str, set[str]]) -> list[str]:
    return [
        f"{module} imports {imported}"
        for module, targets in graph.items()
        for imported in targets
        if module not in DOORS
        and imported not in DOORS
        and ROOMS.index(room(imported)) > ROOMS.index(room(module))
    ]


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Modules that reach themselves. A package and the modules it gathers count as one door, not as
    a circle.
    """
    inner = {
        m: {t for t in targets if not m.startswith(f"{t}.")} - DOORS for m, targets in graph.items()
    }

    def reaches(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(inner.get(start, ()))
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting += inner.get(module, ())
        return seen

    return [module for module in inner if module in reaches(module)]


GRAPH = import_graph(PACKAGE)


def test_every_module_stands_in_a_room():
    assert {room(module) for module in GRAPH if module not in DOORS} <= set(ROOMS)


def test_no_room_imports_one_below_it():
    assert upward_imports(GRAPH) == []


def test_no_module_imports_itself_in_a_circle():
    assert cycles(GRAPH) == []


def test_inside_a_room_modules_import_each_other_directly():
    """Importing one's own package from inside it is the circle that import order hides."""
    assert [
        f"{m} imports {t}"
        for m, targets in GRAPH.items()
        for t in targets - DOORS
        if m.startswith(f"{t}.")
    ] == []


@pytest.mark.parametrize(
    ("files", "check", "expected"),
    [
        (
            {"theory/a.py": "def f():\n    from mupscale.cli import b", "cli/b.py": ""},
            upward_imports,
            1,
        ),
        ({"theory/a.py": "import mupscale.norms.b", "norms/b.py": ""}, upward_imports, 1),
        ({"cli/a.py": "from mupscale.theory import b", "theory/b.py": ""}, upward_imports, 0),
        (
            {
                "theory/a.py": "from mupscale.theory.b import x",
                "theory/b.py": "import mupscale.theory.a",
            },
            cycles,
            2,
        ),
        ({"theory/a.py": "from mupscale.theory.b import x", "theory/b.py": ""}, cycles, 0),
    ],
)
def test_the_walk_sees_what_it_should(files, check, expected, tmp_path):
    package = tmp_path / "mupscale"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in (package, path.parent):
            (folder / "__init__.py").touch()
    assert len(check(import_graph(package))) == expected


def loaded_by(code: str) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(result.stdout.split())


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import mupscale", {"torch", "sympy", "numpy", "scipy", "cyclopts"}),
        ("import mupscale.theory", {"torch", "numpy", "matplotlib"}),
        ("import mupscale.reports", {"torch", "matplotlib"}),
        (
            "from mupscale.cli import main; main(['--help'])",
            {"torch", "sympy", "numpy", "matplotlib"},
        ),
        (
            "from mupscale.cli import main; main(['derive', '--help'])",
            {"torch", "sympy", "numpy", "matplotlib"},
        ),
        ("from mupscale.cli import main; main(['table', '--json'])", {"torch", "matplotlib"}),
    ],
)
def test_nothing_is_loaded_before_it_is_used(code, unwanted):
    assert loaded_by(code) & unwanted == set()


def test_every_public_name_can_be_had():
    for name in mupscale.__all__:
        assert getattr(mupscale, name) is not None
    assert set(mupscale.__all__) <= set(dir(mupscale))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mupscale.nothing


def class_homes(package: Path) -> dict[str, list[str]]:
    homes: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module_name(path, package))
    return homes


def test_no_class_name_exists_twice():
    twice = {name: homes for name, homes in class_homes(PACKAGE).items() if len(homes) > 1}
    assert not twice


def test_a_class_name_that_exists_twice_is_noticed(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    for name in ("first", "second"):
        (package / f"{name}.py").write_text("class Row:\n    pass\n")
    assert class_homes(package) == {"Row": ["package.first", "package.second"]}
