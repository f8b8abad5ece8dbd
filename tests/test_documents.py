"""Every code block of the documents runs, and what they say a command prints is what it prints."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

import mupscale
from mupscale.cli.app import app
from mupscale.reading import ROLES, Reading
from mupscale.studies import Study, StudyConfig
from mupscale.studies.measured import analysis_of
from mupscale.theory import RULES
from website.refresh import DOCUMENTS, ROOT, clean_folder, printed, refreshed


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", document.read_text(encoding="utf-8"), flags=re.M | re.S
    )


@pytest.fixture
def elsewhere():
    with clean_folder():
        yield


WITH_PYTHON = [d for d in DOCUMENTS if blocks(d, "python")]
CONSOLE = [(d.name, block) for d in DOCUMENTS for block in blocks(d, "console")]


# Commands that take minutes, or need a cluster or a model of the reader's, are indented; they are
# read, not run.
INDENTED = sorted(
    {
        (d.name, line)
        for d in [
            *DOCUMENTS,
            ROOT / "examples" / "README.md",
            *sorted((ROOT / "results").rglob("README.md")),
        ]
        for line in re.findall(r"^    (mupscale .*)$", d.read_text(encoding="utf-8"), flags=re.M)
    }
)
TOML = [(d.name, block) for d in DOCUMENTS for block in blocks(d, "toml")]


@pytest.mark.parametrize(("name", "command"), INDENTED)
def test_a_command_that_is_not_run_here_is_understood(name, command):
    function, _, _ = app.parse_args(
        shlex.split(command, comments=True)[1:], exit_on_error=False, print_error=False
    )
    assert function.__module__.startswith("mupscale.cli")  # not a help page in its place


@pytest.mark.parametrize(("name", "block"), TOML)
def test_a_study_file_is_taken(name, block):
    given = tomllib.loads(block)
    if set(given) == {"reading"}:  # a mupscale.toml
        assert Reading.from_dict(given["reading"])
        return
    whole = {"name": "shown", "space": {"lr": ["2^-8", "2^-4"]}}
    if "trainer" not in given:
        whole |= {
            "model": {"name": "study"},
            "data": {"sequence": 64},
            "length": {"steps": 10, "batch": 4},
        }
    if "variants" not in given:
        whole |= {"vary": {"n_kv_heads": [12, 3]}}
    assert StudyConfig.from_dict(whole | given).cells()


@pytest.mark.parametrize("document", WITH_PYTHON, ids=lambda d: d.name)
def test_python_blocks_run_one_after_the_other(document, elsewhere):
    namespace: dict[str, object] = {"__name__": "document"}
    for block in blocks(document, "python"):
        exec(compile(block, str(document), "exec"), namespace)
    for test in [
        value for name, value in namespace.items() if name.startswith("test_") and callable(value)
    ]:
        test()


@pytest.mark.parametrize(("name", "block"), CONSOLE)
def test_a_command_prints_what_the_document_shows(name, block, elsewhere):
    """If it does not: make refresh."""
    command, _, shown = block.partition("\n")
    assert command.startswith("$ mupscale ")
    output = printed(command.removeprefix("$ "))
    assert shown in ("", output)


def test_refreshing_writes_what_a_command_prints(elsewhere):
    document = "Before.\n\n```console\n$ mupscale --version\n{}```\n\nAfter.\n"
    assert refreshed(document.format("0.0\n")) == document.format(f"{mupscale.__version__}\n")
    assert refreshed(document.format("")) == document.format("")


def test_a_unit_of_ones_own_takes_at_most_fifteen_lines():
    document = ROOT / "docs" / "add-a-unit.md"
    code = blocks(document, "python")[0]
    lines = [
        line
        for line in code[code.index("@dataclass") : code.index("scaling =")].splitlines()
        if line.strip()
    ]
    assert len(lines) <= 15
    namespace: dict[str, object] = {"__name__": "document"}
    exec(code, namespace)
    assert str(namespace["scaling"]) == blocks(document, "text")[0].rstrip()


def test_the_table_of_presets_is_that_of_the_code():
    rows = [
        line.strip("| ").split(" | ")
        for line in (ROOT / "docs" / "rules.md").read_text().splitlines()
    ]
    shown = {
        row[0].strip("`"): row[1:] for row in rows if row[0].strip("`") in RULES and len(row) == 6
    }
    assert shown == {
        r.name: [r.width, r.kv_factor, r.decay, r.depth, r.eps] for r in RULES.values()
    }


def test_the_table_of_roles_has_them_all():
    text = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \| [a-z].* \|$", text[text.index("| role |") :], flags=re.M)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(ROLES)


def test_the_table_of_the_dense_study_is_that_of_its_records():
    folder = ROOT / "results" / "gqa-dense"
    found = analysis_of(Study.open(folder))
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    rows = {
        row[0].strip("`"): row[1:]
        for line in lines
        if len(row := line.strip("| ").split(" | ")) == 5
    }
    for rule in found.transfers:
        optima = [cell.found["lr"] for cell in found.cells if cell.rule == rule.rule]
        losses = [cell.loss for cell in found.cells if cell.rule == rule.rule]
        shown = [
            f"{o.value:.2f} [{o.low:.2f}, {o.high:.2f}], {loss:.3f}"
            for o, loss in zip(optima, losses, strict=True)
        ]
        drift = rule.drift
        assert rows[rule.rule] == [*shown, f"{drift.value:.2f} [{drift.low:.2f}, {drift.high:.2f}]"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (document.parent / target).exists(), target


def test_nothing_is_mentioned_that_a_reader_does_not_have():
    made_here = {".venv", "runs"}  # not of the project: git ignores both
    files = [
        p
        for p in ROOT.rglob("*")
        if p.suffix in {".py", ".md", ".toml", ".cff", ".txt"}
        and p.relative_to(ROOT).parts[0] not in made_here
    ]
    home = re.compile(r"/(work|root|home)/\w|[.][.]/shared")
    assert [
        p.name
        for p in files
        if p.name != Path(__file__).name and home.search(p.read_text(encoding="utf-8"))
    ] == []
