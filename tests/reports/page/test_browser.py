"""The page in a real browser: it draws, sorts, filters, prints, is accessible, and asks nobody for
anything.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mupscale.reports.page import PageData, StudyProgress, study_page
from tests.reports.page import studies

PAGES = {
    "recorded": studies.recorded,
    "surfaces": lambda: studies.page_of(studies.surfaces(), name="surfaces"),
    "hostile": studies.hostile,
    "large": lambda: studies.many(10_000),
    "empty": lambda: studies.page_of([], progress=StudyProgress(ended=0, expected=9, done=False)),
}


@dataclass
class Visit:
    """An open page, and everything that went wrong on it."""

    page: object
    faults: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture
def visit(browser, folder) -> Iterator:
    contexts = []

    def open_page(
        name: str, *, width: int = 1440, made: PageData | None = None, **options
    ) -> Visit:
        path = folder / f"{name}.html"
        if made is not None or not path.exists():
            path.write_bytes(study_page(made or PAGES[name]()).encode(errors="replace"))
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        found = Visit(page)
        page.on("console", lambda said: found.faults.append(f"console {said.type}: {said.text}"))
        page.on("pageerror", lambda error: found.faults.append(f"error: {error}"))
        page.on(
            "dialog",
            lambda dialog: (found.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        )
        page.on("requestfailed", lambda request: found.faults.append(f"failed: {request.url}"))
        page.on("request", lambda request: _outside(request, path, found))
        page.goto(path.as_uri())
        return found

    yield open_page
    for context in contexts:
        context.close()


def _outside(request, path: Path, found: Visit) -> None:
    if request.url.partition("#")[0] != path.as_uri() and not request.url.startswith("data:"):
        found.faults.append(f"request: {request.url}")


def draw_all(page) -> int:
    """Scroll until every chart has come into view; how many are drawn."""
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        page.wait_for_function("chart => chart.dataset.drawn === 'yes'", arg=chart.element_handle())
    return page.locator(".chart .scatterlayer").count()


def column(page, key: str) -> list[str]:
    place = [
        heading.get_attribute("data-key") for heading in page.locator("#trial-table th").all()
    ].index(key)
    return page.locator(f"#trial-table tbody td:nth-child({place + 1})").all_inner_texts()


@pytest.mark.parametrize("width", [375, 1440])
@pytest.mark.parametrize(
    ("name", "charts"), [("recorded", 3), ("surfaces", 2 + 2 * 4), ("empty", 0)]
)
def test_it_opens_draws_all_and_asks_nobody(visit, name, charts, width):
    found = visit(name, width=width)
    assert draw_all(found.page) == charts
    for scheme in ("dark", "light"):
        found.page.emulate_media(color_scheme=scheme)
        ground = found.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 200) == (scheme == "dark")
        assert found.page.evaluate("document.documentElement.scrollWidth") == width
    assert found.faults == []


@pytest.mark.parametrize(
    ("name", "scheme"), [("recorded", "light"), ("recorded", "dark"), ("surfaces", "dark")]
)
def test_it_has_no_serious_fault_of_accessibility(visit, name, scheme):
    from axe_playwright_python.sync_playwright import Axe

    # Axe is put into the page from outside, which the page's own policy would refuse.
    found = visit(name, color_scheme=scheme, bypass_csp=True)
    draw_all(found.page)
    found.page.locator("summary").last.click()
    # What is inside a chart is one image to a reader.
    result = Axe().run(found.page, context={"exclude": [[".main-svg"]]}).response
    serious = [
        (one["id"], one["nodes"][0]["html"][:200])
        for one in result["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert "color-contrast" in {one["id"] for one in result["passes"]}


def test_headings_are_in_order_and_the_skip_link_comes_first(visit):
    page = visit("recorded").page
    levels = [
        int(tag[1])
        for tag in page.eval_on_selector_all(
            "h1,h2,h3,h4", "found => found.map(one => one.tagName)"
        )
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#answer"


def test_every_chart_has_words_and_a_table(visit):
    page = visit("surfaces").page
    assert all(
        len(chart.get_attribute("aria-label")) > 20 for chart in page.locator(".chart").all()
    )
    assert page.locator("details.chart-data table").count() == 3


def test_sorting_by_a_heading_orders_all_trials_by_mouse_and_by_keyboard(visit):
    found = visit("recorded")
    page = found.page
    losses = sorted(trial["loss"] for trial in studies.recorded().trials)
    heading = page.locator("#trial-table th[data-key=loss]")
    heading.locator("button").click()
    assert column(page, "loss") == [f"{loss:.4f}" for loss in losses[:50]]
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert column(page, "loss") == [f"{loss:.4f}" for loss in losses[::-1][:50]]
    assert heading.get_attribute("aria-sort") == "descending"
    page.locator("#trial-next").click()
    assert column(page, "loss") == [f"{loss:.4f}" for loss in losses[::-1][50:100]]
    assert found.faults == []


def test_filtering_leaves_what_matches(visit):
    page = visit("recorded").page
    page.locator("#trial-selects select[data-key=rule]").select_option(label="mup")
    assert page.locator("#trial-count").inner_text().startswith("153 of 459 trials")
    page.locator("#trial-search").fill("n_kv_heads-12/0001")
    assert column(page, "trial") == ["mup.n_kv_heads-12/0001"]
    page.locator("#trial-search").fill("nothing like this")
    assert page.locator("#trial-count").inner_text() == "No trial matches; there are 459."
    page.locator("#trial-clear").click()
    assert page.locator("#trial-count").inner_text().startswith("459 trials")


def test_pointing_at_a_run_says_what_it_is(visit):
    found = visit("recorded")
    page = found.page
    draw_all(page)
    point = (
        page.locator(".chart >> nth=0")
        .locator(".scatterlayer .trace")
        .first.locator(".points path")
        .nth(20)
    )
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    said = page.locator(".chart >> nth=0").locator(".hoverlayer .hovertext")
    said.first.wait_for()
    assert "loss" in said.first.text_content()
    assert found.faults == []


def test_a_chart_zooms_resets_hides_a_model_and_takes_a_log_axis(visit):
    found = visit("recorded")
    page = found.page
    draw_all(page)
    layout = "document.querySelector('.chart')._fullLayout"
    state = f"() => (({{ xaxis: x, yaxis: y }}) => [x.range, y.type])({layout})"
    whole = page.evaluate(state)
    box = page.locator(".chart >> nth=0").locator(".nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 160, steps=4)
    page.mouse.up()
    page.wait_for_function(f"before => ({state})()[0][0] > before", arg=whole[0][0])
    page.locator("button[data-act=reset]").first.click()
    assert page.evaluate(state)[0] == pytest.approx(whole[0])
    page.locator("button[data-act=log]").click()
    assert page.evaluate(state)[1] == "log"
    traces = page.evaluate("document.querySelector('.chart').data.length")
    page.locator("#legend button").first.click()
    assert page.evaluate("document.querySelector('.chart').data.length") == traces - 3
    assert page.locator("#legend button").first.get_attribute("aria-pressed") == "false"
    assert found.faults == []


def test_a_page_that_turns_dark_repaints_its_charts(visit):
    page = visit("recorded", color_scheme="light").page
    draw_all(page)
    colour = "document.querySelector('.chart').data[0].marker.color"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"before => {colour} !== before", arg=light)


def test_printing_shows_every_chart_in_the_light_and_no_controls(visit):
    found = visit("surfaces", color_scheme="dark")
    page = found.page
    page.emulate_media(media="print")
    page.wait_for_function("document.querySelectorAll('.chart[data-drawn=yes]').length === 10")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.querySelector('.chart')._fullLayout.font.color") == "#33383e"
    assert not page.locator(".filters").is_visible()
    assert page.locator(".chart").first.is_visible()
    assert len(page.pdf()) > 50_000
    assert found.faults == []


def test_less_motion_where_less_is_asked_for(visit):
    behaviour = "getComputedStyle(document.documentElement).scrollBehavior"
    assert visit("surfaces", reduced_motion="reduce").page.evaluate(behaviour) == "auto"
    assert visit("surfaces").page.evaluate(behaviour) == "smooth"


def test_without_scripts_it_still_says_its_answer_and_results(visit):
    page = visit("recorded", java_script_enabled=False).page
    assert page.locator(".rule").count() == 3
    assert all(one.is_visible() for one in page.locator(".rule").all())
    assert page.locator("#answer table").is_visible()
    assert page.locator("#transfer table").first.is_visible()
    assert not page.locator(".chart").first.is_visible()
    assert page.locator("noscript").count() == 2


@pytest.mark.parametrize("width", [375, 1440])
def test_hostile_names_stay_text(visit, width):
    found = visit("hostile", width=width)
    page = found.page
    assert draw_all(page) == 2
    data = studies.hostile()
    assert page.locator("h1").text_content() == data.name
    assert page.locator("img, iframe, object, embed, link, base, form").count() == 0
    assert page.locator("script").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.querySelector('.chart').data[0].meta").startswith(
        "&lt;/script&gt;"
    )
    page.locator("#trial-search").fill("onerror")
    assert page.locator("#trial-table tbody tr").count() > 0
    assert found.faults == []


def test_ten_thousand_trials_sort_and_filter(visit):
    found = visit("large")
    page = found.page
    losses = sorted(trial["loss"] for trial in studies.many(10_000).trials)
    page.locator("#trial-table th[data-key=loss] button").click()
    assert column(page, "loss") == [f"{loss:.4f}" for loss in losses[:50]]
    page.locator("#trial-search").fill("width 1024/0004")
    assert page.locator("#trial-table tbody tr").count() == 1
    assert page.locator("#trial-table tr").count() <= 52
    assert found.faults == []


def test_a_watched_page_follows_the_file_keeps_its_place_and_stops_with_the_study(visit, folder):
    going = dataclasses.replace(
        studies.page_of(studies.curves(), name="watched"),
        progress=StudyProgress(ended=10, expected=20, done=False),
        refresh_seconds=1,
    )
    found = visit("watched", made=going)
    page = found.page
    page.locator("#trial-selects select[data-key=rule]").select_option(label="mup")
    page.evaluate("window.scrollTo({ top: 700, behavior: 'instant' })")
    later = dataclasses.replace(going, progress=StudyProgress(ended=15, expected=20, done=False))
    (folder / "watched.html").write_text(study_page(later), encoding="utf-8")
    page.get_by_text("15 of 20 trials have ended.").wait_for(state="attached")
    page.wait_for_function("Math.abs(window.scrollY - 700) < 2")
    assert (
        page.locator("#trial-selects select[data-key=rule]").evaluate(
            "select => select.selectedOptions[0].text"
        )
        == "mup"
    )
    final = dataclasses.replace(
        going, progress=StudyProgress(ended=20, expected=20), refresh_seconds=None
    )
    (folder / "watched.html").write_text(study_page(final), encoding="utf-8")
    page.get_by_text("all 20 trials have ended.").wait_for(state="attached")
    page.evaluate("window.stays = true")
    page.wait_for_timeout(1500)
    assert page.evaluate("window.stays") is True
    assert found.faults == []
