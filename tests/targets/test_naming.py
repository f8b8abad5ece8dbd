"""A `mupscale.toml` beside a model is found from whatever name the model has, and from nowhere
else.
"""

import itertools
import sys

import pytest

from mupscale.errors import OptionError
from mupscale.reading import Reading
from mupscale.targets import Family, reading_beside, reading_file, resolve

FRESH = itertools.count()
TEXT = """
[reading]
ignore = ["odd_scale"]
[reading.roles]
"layers.*.a.weight" = "hidden"
"""
SAID = Reading({"layers.*.a.weight": "hidden"}, ("odd_scale",))
SOURCE = """
from torch import nn
def build(width=4):
    return nn.Linear(width, width)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def package(here):
    """A package under a name that no test before has imported, with the file in a folder inside of
    it.
    """
    name = f"beside_{next(FRESH)}"
    inner = here / name / "models"
    inner.mkdir(parents=True)
    (here / name / "__init__.py").touch()
    (inner / "__init__.py").write_text("from .own import build")
    (inner / "own.py").write_text(SOURCE)
    (inner / "mupscale.toml").write_text(TEXT)
    return name


def test_beside_a_module_and_beside_the_init_of_a_package(package, here):
    for name in (
        f"{package}.models.own:build",
        f"{package}.models.own:build,width=8",
        f"{package}.models:build",
    ):
        assert reading_file(name) == here / package / "models" / "mupscale.toml"
        assert resolve(name).reading == Family(name).reading == reading_beside(name) == SAID


def test_looking_does_not_run_the_module(package, here):
    (here / package / "models" / "__init__.py").write_text("")
    (here / package / "models" / "own.py").write_text("raise SystemExit('run')")
    assert reading_beside(f"{package}.models.own:build") == SAID
    assert f"{package}.models.own" not in sys.modules


def test_a_module_that_was_imported_from_elsewhere_is_asked_where_it_is(package, here, monkeypatch):
    name = f"{package}.models.own:build"
    resolve(name)
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    assert reading_beside(name) == SAID


def test_beside_a_config_however_it_is_named(here, config_of):
    config_of("gpt2", n_layer=1).save_pretrained(here / "saved")
    (here / "saved" / "mupscale.toml").write_text(TEXT)
    names = [
        "hf:saved",
        "hf:saved/",
        "hf:./saved/config.json",
        "saved/config.json",
        "saved/config.json,n_layer=2",
    ]
    for name in names:
        assert resolve(name).reading == Family(name).reading == SAID, name
        assert reading_file(name) == here / "saved" / "mupscale.toml"


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "hf:gpt2", "gpt:kvr_4", "torch.nn:Linear", "no_such_module:f", "what"]
)
def test_a_file_in_the_current_folder_says_nothing_about_other_models(name, here):
    (here / "mupscale.toml").write_text(TEXT)
    assert reading_file(name) is None
    assert reading_beside(name) == Reading()


def test_a_type_wins_over_a_folder_of_its_name(here, config_of):
    config_of("gpt2").save_pretrained(here / "llama")
    (here / "llama" / "mupscale.toml").write_text(TEXT)
    assert reading_file("hf:llama") is None
    assert reading_beside("hf:./llama") == SAID


def test_a_path_that_is_too_long_is_nowhere():
    assert reading_file("hf:" + "a/" * 3000 + "b") is None


def test_a_file_that_is_wrong_is_named(package, here):
    file = here / package / "models" / "mupscale.toml"
    file.write_text("[reading]\nrolls = {}")
    with pytest.raises(
        LookupError, match=r"setting of reading in .*mupscale.toml 'rolls'. Did you mean 'roles'"
    ):
        resolve(f"{package}.models.own:build")
    file.write_text("")
    with pytest.raises(OptionError, match=r"mupscale.toml has no \[reading\] table"):
        _ = Family(f"{package}.models.own:build").reading


def test_a_family_is_recorded_as_before():
    """Folders of checks that were begun earlier go on: their first line holds this text."""
    assert repr(Family("gpt:check")) == "Family(name='gpt:check')"


def test_a_module_without_a_file_has_no_folder(here):
    (here / "spread").mkdir()  # a namespace package
    assert reading_file("spread:build") is None
    assert reading_file("builtins:dict") is None
