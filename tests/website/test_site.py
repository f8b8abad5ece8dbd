"""The site builds strictly, opens without a network, and its links lead somewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from mupscale.theory import OPTIMIZERS, derive
from mupscale.theory.units import NAMED
from website import derivations, pages, reference
from website.doctests import fenced

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a built page links to, loads, and can be linked to by."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loaded += [given["src"]] if "src" in given else []
        self.loaded += [given["href"]] if tag == "link" and "href" in given else []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it, elsewhere."""
    folder = tmp_path_factory.mktemp("site")
    pages.lay_out(folder / "pages")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = settings.replace("build/pages", str(folder / "pages")).replace(
        "[src]", f"[{ROOT / 'src'}]"
    )
    settings = settings.replace("website/doctests.py", str(ROOT / "website" / "doctests.py"))
    (folder / "mkdocs.yml").write_text(settings, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "-f",
        str(folder / "mkdocs.yml"),
    ]
    built = subprocess.run(
        [*command, "-d", str(folder / "site")], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def opened(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path) for path in site.rglob("*.html")}


def test_no_link_is_dead(opened: dict[Path, Page]) -> None:
    dead: list[str] = []
    for path, page in opened.items():
        if path.name == "404.html":  # its links count from the root of a server
            continue
        for link in page.links:
            place = urlsplit(link)
            if place.scheme or place.netloc:
                continue
            target = (path.parent / unquote(place.path)).resolve() if place.path else path
            known = opened[target].anchors if target in opened else {""}
            if not target.is_file() or (
                place.fragment and target in opened and unquote(place.fragment) not in known
            ):
                dead.append(f"{path.name}: {link}")
    assert dead == []


def test_nothing_is_loaded_from_elsewhere(opened: dict[Path, Page]) -> None:
    loaded = {address for page in opened.values() for address in page.loaded}
    assert {address for address in loaded if urlsplit(address).netloc} == set()


def test_every_guide_is_in_the_navigation() -> None:
    navigation = yaml.dump(
        yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)["nav"]
    )
    for guide in (ROOT / "docs").glob("*.md"):
        assert f"docs/{guide.name}" in navigation


def test_every_unit_and_optimizer_is_derived_on_the_page() -> None:
    text = derivations.page()
    assert [f"### {name}\n" in text for name in NAMED] == [True] * len(NAMED)
    assert [f"### Under {name}\n" in text for name in OPTIMIZERS if name != "adamw"] == [True] * (
        len(OPTIMIZERS) - 1
    )
    for step in derive("kv").steps:
        assert step.reason in text
        assert step.source in text
    assert "$" not in re.sub(r"<math.*?</math>", "", text)


def test_every_public_name_has_its_entry(site: Path) -> None:
    shown = Page(site / "reference" / "api.html").anchors
    import mupscale.planning
    import mupscale.theory

    for room in (mupscale.planning, mupscale.theory):
        assert set(reference.public(room).values()) <= shown


def test_examples_in_docstrings_are_code() -> None:
    told = "Twice.\n\n>>> double([2])\n[4]\n>>> double([3])\n[6]\n\nMore."
    assert (
        fenced(told)
        == "Twice.\n\n```pycon\n>>> double([2])\n[4]\n>>> double([3])\n[6]\n```\n\nMore."
    )
