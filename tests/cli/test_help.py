"""Every help page: complete sentences, all options described, an example, any width."""

import functools
import io
import os
import re
import shlex
import subprocess
import sys

import pytest
from cyclopts import App
from rich.console import Console

from mupscale.cli import main
from mupscale.cli.app import app, dotted
from mupscale.cli.console import filled


def below(parent: App, *path: str) -> list[tuple[str, ...]]:
    names = [name for name in parent if not name.startswith("-")]
    return [path, *(line for name in names for line in below(parent[name], *path, name))]


COMMANDS = below(app)


def command_at(path: tuple[str, ...]) -> App:
    return functools.reduce(App.__getitem__, path, app)


def described(path: tuple[str, ...]) -> dict[str, str]:
    """What the help page says, by the option it is about; the command itself by its name."""
    command = command_at(path)
    arguments = (
        command.assemble_argument_collection(parse_docstring=True)
        if command.default_command
        else []
    )
    texts = {one.name: one.parameter.help or "" for one in arguments if one.name != "*"}
    return {"mupscale " + " ".join(path): command.help} | texts


def fragments(text: str) -> list[str]:
    """The sentences that are not complete: a lowercase start, or an end without a full stop.

    Those that begin with the name of a thing to type, such as `gpt:check`, may begin with it.
    """
    bad: list[str] = []
    for paragraph in filled(text).split("\n\n"):
        if paragraph.startswith("Example: "):
            continue
        if not paragraph.endswith((".", "?")):
            bad.append(paragraph)
        for sentence in re.split(r"(?<=\.) (?=[^a-z.])", paragraph):
            words = sentence.split()
            if len(words) < 3 or not re.match(r"[A-Z0-9]|\S*[:._*/-]\S", words[0]):
                bad.append(sentence)
            if re.match(r"(Of|As|With|Unless|Whose|Below)\b(?!.*,)", sentence):
                bad.append(sentence)
    return bad


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Of the base.",
        "of weights and batches",
        "Range of the rate, 2^-8,2^-4",
        "Seeds.",
        "As for derive.",
    ],
)
def test_a_fragment_is_noticed(text):
    assert fragments(text)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_sentence_of_the_help_is_complete(path):
    assert not {name: bad for name, text in described(path).items() if (bad := fragments(text))}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_that_it_understands(path):
    examples = re.findall(r"^Example: (.*)$", filled(command_at(path).help), flags=re.MULTILINE)
    assert examples
    for example in examples:
        words = dotted(shlex.split(example.split("mupscale ", 1)[1]))
        assert words[: len(path)] == [*path] or path == ("paper",)
        app.parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("columns", [1, 20, 40, 80, 160])
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_fits_any_width(path, columns):
    console = Console(width=columns, file=io.StringIO())
    app.help_print([*path], console=console)
    lines = console.file.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= max(columns, 40)


def test_help_answers_at_once_in_one_column():
    """Cyclopts alone wraps names in an endless loop there."""
    command = [sys.executable, "-m", "mupscale", "sweep", "--help"]
    done = subprocess.run(
        command, env=os.environ | {"COLUMNS": "1"}, capture_output=True, timeout=60, check=True
    )
    assert b"--vary" in done.stdout


def test_defaults_stand_in_the_sentence(capsys):
    main(["check", "--help"])
    page = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert "Optimizer steps of each run (default: 4)." in page
    assert "[default" not in page
    assert "[required]" not in page
