"""The package loads no code from files and starts no shell, checked on its syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mupscale

PACKAGE = Path(mupscale.__file__).parent

UNPICKLERS = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
FORBIDDEN = {
    "eval", "exec", "builtins.eval", "builtins.exec", "os.system", "os.popen",
    "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
    "yaml.unsafe_load", "yaml.full_load", "pandas.read_pickle", "cloudpickle.load",
    "cloudpickle.loads",
}  # fmt: skip
SAFE_ONLY_WITH = {
    "torch.load": ("weights_only", "True"),
    "yaml.load": ("Loader", "yaml.SafeLoader"),
}
UNSAFE_WITH = {"allow_pickle"}
"""Keywords that must be False or absent, whatever is called."""

# Jobs travel to local workers through a pipe that only the parent writes to.
ALLOWED = {
    "engines/local.py": {"import cloudpickle"},
    "engines/worker.py": {"import cloudpickle", "cloudpickle.loads"},
}


def aliases(tree: ast.AST) -> dict[str, str]:
    """The full name behind each imported name: {"load": "pickle.load"}."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                known[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return known


def full_name(node: ast.AST, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = full_name(node.value, known)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def imported_modules(node: ast.AST, known: dict[str, str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    by_name = ("importlib.import_module", "__import__")
    if isinstance(node, ast.Call) and full_name(node.func, known) in by_name:
        return [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
    return []


def dangers(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    known = aliases(tree)
    safe_calls: set[ast.AST] = set()
    for node in ast.walk(tree):  # outer nodes come first, so a call before the name it calls
        for module in imported_modules(node, known):
            if module.partition(".")[0] in UNPICKLERS:
                yield f"import {module}"
        if isinstance(node, ast.Call):
            given = {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg}
            if given.get("shell", "False") != "False":
                yield "shell=True"
            yield from (name for name in UNSAFE_WITH if given.get(name, "False") != "False")
            keyword, value = SAFE_ONLY_WITH.get(full_name(node.func, known) or "", (None, None))
            if keyword is not None and given.get(keyword) == value:
                safe_calls.add(node.func)
        if isinstance(node, ast.Name | ast.Attribute) and node not in safe_calls:
            name = full_name(node, known)
            if name in FORBIDDEN or name in SAFE_ONLY_WITH:
                yield str(name)


def test_package_loads_no_code_from_files_and_starts_no_shell():
    """A file that is unpickled runs code: records, checkpoints and studies are JSON, TOML and
    safetensors.
    """
    found = {
        path.relative_to(PACKAGE).as_posix(): set(dangers(path.read_text(encoding="utf-8")))
        for path in PACKAGE.rglob("*.py")
    }
    assert {path: names for path, names in found.items() if names} == ALLOWED


@pytest.mark.parametrize(
    ("source", "danger"),
    [
        ("import pickle", "import pickle"),
        ("from pickle import load", "import pickle"),
        ("from pickle import load as read\nread(f)", "import pickle"),
        ("def f():\n    import marshal as m", "import marshal"),
        ("import shelve", "import shelve"),
        ("from dill import loads", "import dill"),
        ("import importlib\nimportlib.import_module('pickle')", "import pickle"),
        ("from importlib import import_module as get\nget('dill')", "import dill"),
        ("__import__('marshal')", "import marshal"),
        ("import joblib", "import joblib"),
        ("import cloudpickle as c\nc.loads(b)", "cloudpickle.loads"),
        ("import subprocess\nsubprocess.run(text, shell=True)", "shell=True"),
        ("from subprocess import run\nrun(text, shell=chosen)", "shell=True"),
        ("import os\nos.system(text)", "os.system"),
        ("from os import system as go\ngo(text)", "os.system"),
        ("import os as o\nstart = o.popen", "os.popen"),
        ("from subprocess import getoutput\ngetoutput(text)", "subprocess.getoutput"),
        ("eval(text)", "eval"),
        ("run = exec", "exec"),
        ("import builtins\nbuiltins.eval(text)", "builtins.eval"),
        ("import torch\ntorch.load(path)", "torch.load"),
        ("import torch\ntorch.load(path, weights_only=False)", "torch.load"),
        ("import torch as t\nt.load(path)", "torch.load"),
        ("from torch import load\nload(path)", "torch.load"),
        ("import torch\nread = torch.load", "torch.load"),
        ("import yaml\nyaml.load(text)", "yaml.load"),
        ("import yaml\nyaml.load(text, Loader=yaml.Loader)", "yaml.load"),
        ("import numpy as np\nnp.load(path, allow_pickle=True)", "allow_pickle"),
    ],
)
def test_danger_is_found(source, danger):
    assert danger in set(dangers(source))


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "import json\njson.load(file)",
        "import safetensors.torch\nsafetensors.torch.load(content)",
        "import torch\ntorch.load(path, weights_only=True)",
        "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)\nyaml.safe_load(text)",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "import os\nos.path.exists('eval')  # os.system(text)",
    ],
)
def test_harmless_code_is_not_reported(source):
    assert list(dangers(source)) == []
