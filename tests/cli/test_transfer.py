"""`mupscale transfer`: what it prints, its exit status, and that the documents show what it
prints.
"""

import json
import re
import subprocess
import sys

import pytest

from mupscale.cli import main
from mupscale.training.schedule import SCHEDULES
from tests.recipes.studies import DENSE, ROOT, TINY, dense
from website.refresh import clean_folder, printed

DOCUMENT = ROOT / "docs" / "transfer.md"
SHOWN = re.findall(
    r"^```text\n\$ mupscale (.*?)\n(.*?)^```$",
    DOCUMENT.read_text(encoding="utf-8"),
    flags=re.M | re.S,
)


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_document_shows_what_is_printed(command, shown):
    """If it does not: make refresh."""
    with clean_folder():
        assert rounded(printed(f"mupscale {command}")) == rounded(shown)


def rounded(text):
    """Numbers to six digits: the last ones may differ between machines."""
    return re.sub(r"\d+\.\d{5,}(e[-+]\d+)?", lambda number: f"{float(number[0]):.6g}", text)


def test_the_document_shows_both_targets():
    assert {"llama-3-8b", "qwen3-32b"} <= {word for command, _ in SHOWN for word in command.split()}


def test_json_and_markdown(capsys):
    assert main(["transfer", str(DENSE), "--to", TINY, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["rule"]["name"] == "complete-p"
    assert content["base_values"]["lr"]["low"] < content["base_values"]["lr"]["value"]
    assert main(["transfer", str(DENSE), "--to", TINY, "--markdown", "--decay", "tau"]) == 0
    assert "| → tau |" in capsys.readouterr().out


def test_a_schedule_is_an_option(capsys):
    wsd = ["--schedule", "wsd", "--decay-share", "0.1"]
    assert main(["transfer", str(DENSE), "--to", TINY, *wsd, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schedule"] == {"name": "wsd", "decay_share": 0.1, "source": "given"}
    assert any("trained with the schedule cosine" in risk for risk in content["risks"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--schedule wds", "unknown schedule 'wds'. Did you mean 'wsd'? Known: cosine, linear"),
        ("--decay-share 0.2", "decay_share = 0.2 is a setting of the schedule wsd, and cosine"),
        ("--schedule wsd --decay-share 0", "decay_share=0.0 must be a share of the steps"),
        ("--schedule wsd --decay-share 1.5", "decay_share=1.5 must be a share of the steps"),
    ],
)
def test_a_wrong_schedule_is_one_line(capsys, flags, words):
    assert main(["transfer", str(DENSE), "--to", TINY, *flags.split()]) == 2
    err = capsys.readouterr().err
    assert words in " ".join(err.split())
    assert "Traceback" not in err


def test_the_help_names_every_schedule(capsys):
    main(["transfer", "--help"])
    page = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    (names,) = re.findall(r"falls after warmup: (.*?)\(constant", page)
    assert re.findall(r"\w+", names.replace(" or ", " ")) == list(SCHEDULES)


def test_an_export_is_written_whole(tmp_path, capsys):
    path = tmp_path / "recipe.py"
    assert (
        main(["transfer", str(DENSE), "--to", TINY, "--export", "pytorch", "--output", str(path)])
        == 0
    )
    assert capsys.readouterr().out == ""
    compile(path.read_text(), "recipe.py", "exec")


def test_an_inconclusive_study_has_a_status_of_its_own(tmp_path, capsys):
    study = dense(tmp_path, lambda trial: trial if trial["params"]["lr"] < 2**-6.9 else None)
    assert main(["transfer", str(study.folder), "--to", TINY, "--export", "pytorch"]) == 3
    printed = capsys.readouterr()
    assert "INCONCLUSIVE" in printed.out
    assert printed.err.startswith("inconclusive: ")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--to", "llama-9"], 2, "unknown target 'llama-9'"),
        (["--to", TINY, "--rule", "sp"], 2, "unknown rule of this study 'sp'"),
        (["--to", TINY, "--tokens", "1e9", "--tokens-per-parameter", "20"], 2, "Give one"),
        (["--to", TINY, "--json", "--markdown"], 2, "exclude each other"),
        (["--to", TINY, "--std", "0"], 2, "std=0.0 must be"),
        (["--to", "command-r-plus"], 2, "multiplies"),
        ([], 2, "--to"),
    ],
)
def test_a_mistake_is_one_message(arguments, status, message, capsys):
    assert main(["transfer", str(DENSE), *arguments]) == status
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (lambda _: None, 2, "no finished trial yet"),
        (
            lambda trial: {**trial, "status": "diverged", "loss": None},
            1,
            "no trial finished",
        ),
    ],
    ids=["empty", "all diverged"],
)
def test_a_study_without_an_optimum(change, status, message, tmp_path, capsys):
    study = dense(tmp_path, change)
    assert main(["transfer", str(study.folder), "--to", TINY]) == status
    assert message in capsys.readouterr().err
    assert main(["transfer", str(tmp_path / "nothing"), "--to", TINY]) == 2


def test_one_trial_is_inconclusive(tmp_path, capsys):
    study = dense(
        tmp_path,
        lambda trial: trial if trial["cell"].startswith("mup.") and not trial["number"] else None,
    )
    assert main(["transfer", str(study.folder), "--to", TINY]) == 3
    assert "INCONCLUSIVE" in capsys.readouterr().out


def test_help_loads_nothing_heavy():
    code = (
        "from mupscale.cli import main; main(['transfer', '--help']); "
        "import sys; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")
    assert "Example: mupscale transfer runs/gqa --to llama-3-8b" in done.stdout
