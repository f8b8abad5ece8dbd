"""The picture of the width study shows what its records say, and README.md shows it once they are
complete.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.paper.made_widths import BEST, write_part, write_widths
from website.picture import drawn
from website.width_picture import EXPERIMENT, RESULTS, recorded, save, width_picture, with_picture

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets"


def loss(rule: str, width: int, seed: int, rate: float) -> float:
    doublings = math.log2(width / 64)
    own = BEST - (0.0 if rule == "gqa-mup" else 1.2 * doublings)
    return 2 - 0.1 * doublings + 0.01 * (seed - 42) + 0.05 * (rate - own) ** 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("made")
    write_widths(folder, loss)
    return recorded(folder)


def stored(path: Path) -> list:
    with Image.open(path) as image:
        return json.loads(image.text["Description"])


def test_it_shows_the_curves_the_optima_and_the_loss_at_the_tuned_rate(made):
    figure = width_picture(made)
    left, right = figure.axes
    for axes, drift in ((left, -1.2), (right, 0.0)):
        lines = [np.asarray(line.get_xydata()) for line in axes.lines]
        curves = [line for line in lines if len(line) >= 7]
        assert [len(curve) for curve in curves] == [9, 9, 9, 7]
        marks = [line[0] for line in lines if len(line) == 1]
        optima, given = marks[:4], marks[4]
        for place, optimum in enumerate(optima):
            assert optimum == pytest.approx([BEST + place * drift, 2.01 - 0.1 * place], abs=0.02)
        assert given == pytest.approx([BEST, 1.705 + 0.05 * (3 * drift) ** 2], abs=2e-3)
    assert left.get_ylim() == right.get_ylim()
    texts = [[text.get_text() for text in axes.texts] for axes in (left, right)]
    assert any(text.startswith("at 512, this rate costs 0.648 [") for text in texts[0])
    assert any(text.startswith("at 512, this rate costs 0.000 [") for text in texts[1])


def test_light_and_dark_show_the_same(made, tmp_path: Path):
    light, dark = save(made, tmp_path)
    assert stored(light) == stored(dark) == drawn(width_picture(made))
    with Image.open(light) as one, Image.open(dark) as other:
        assert one.size == other.size
        corners = [np.asarray(image.convert("L"))[0, 0] for image in (one, other)]
    assert corners[0] > 240
    assert corners[1] < 40


def test_while_runs_are_missing_it_shows_those_there_are_and_the_readme_keeps_its_picture(
    tmp_path: Path,
):
    for width in (64, 128):
        write_part(EXPERIMENT.part("cpu", width), tmp_path / str(width), loss)
    found = recorded(tmp_path)
    for axes in width_picture(found).axes:
        assert sum(len(line.get_xydata()) == 9 for line in axes.lines) == 2
        assert any("not run yet" in text.get_text() for text in axes.texts)
    with pytest.raises(SystemExit, match="108 of 235 runs have ended"):
        with_picture((ROOT / "README.md").read_text(encoding="utf-8"), found)


def test_one_command_puts_it_into_the_readme(made):
    before = (ROOT / "README.md").read_text(encoding="utf-8")
    after = with_picture(before, made)
    assert after.count("<picture>") == after.count("docs/assets/width-dark.png") == 1
    assert "![Left:" not in after
    assert before.split("## Two commands")[1] == after.split("## Two commands")[1]
    assert with_picture(after, made) == after
    assert "0.648 [" in after
    prose = [line for line in after.split("\n") if "](" not in line and not line.startswith("|")]
    assert max(map(len, prose)) <= 100


def test_the_readme_shows_it_only_as_the_results_have_it():
    """Otherwise: python -m website.width_picture docs/assets --readme"""
    if "width-light.png" not in (ROOT / "README.md").read_text(encoding="utf-8"):
        assert not recorded(RESULTS).complete
        return
    now = drawn(width_picture(recorded(RESULTS)))
    for name in ("light", "dark"):
        for line, ours in zip(stored(ASSETS / f"width-{name}.png"), now, strict=True):
            np.testing.assert_allclose(line, ours, atol=2e-3)
