"""The report of a large sweep: how long it takes to make, its size, and how fast it responds in a
browser.

    python benchmarks/report_size.py

Synthetic trials over learning rate and decay, four rules on five models. Sorting and filtering are
timed in the page, from a click until the next frame is painted. The first figures are drawn when
the page opens, the others when they scroll into view.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from mupscale.reports.page import study_page
from tests.reports.page.studies import many

CLICK = """act => new Promise(done => {
    const began = performance.now();
    eval(act);
    requestAnimationFrame(() => setTimeout(() => done((performance.now() - began) / 1000)));
})"""
ACTS = {
    "sort by loss": "document.querySelector('#trial-table th[data-key=loss] button').click()",
    "sort by name": "document.querySelector('#trial-table th[data-key=trial] button').click()",
    "filter by rule": "const s = document.querySelector('select[data-key=rule]'); s.value = '1'; "
    "s.dispatchEvent(new Event('change'))",
    "search": "const i = document.querySelector('#trial-search'); i.value = 'width 512'; "
    "i.dispatchEvent(new Event('input'))",
    "next page": "document.querySelector('#trial-next').click()",
}


def main() -> None:
    print(
        "trials  analyse (s)  page (s)  size (MB)  open (s)  "
        + "  ".join(f"{name} (s)" for name in ACTS)
    )
    for trials in (500, 10_000):
        began = time.perf_counter()
        data = many(trials)
        analysed = time.perf_counter()
        page = study_page(data).encode()
        made = time.perf_counter()
        opened, acts = _in_browser(page)
        cells = [
            f"{trials:>6,}",
            f"{analysed - began:>11.2f}",
            f"{made - analysed:>8.2f}",
            f"{len(page) / 1e6:>9.1f}",
        ]
        cells += [
            f"{opened:>8.2f}",
            *(f"{seconds:>{len(name) + 4}.3f}" for name, seconds in acts.items()),
        ]
        print("  ".join(cells), flush=True)


def _in_browser(page: bytes) -> tuple[float, dict[str, float]]:
    from playwright.sync_api import sync_playwright

    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        path.write_bytes(page)
        browser = playwright.chromium.launch(executable_path=chromium)
        # The acts are put into the page from outside, which its own policy would refuse.
        tab = browser.new_context(bypass_csp=True).new_page()
        began = time.perf_counter()
        tab.goto(path.as_uri())
        tab.locator("#trial-table tbody tr").first.wait_for(state="attached")
        opened = time.perf_counter() - began
        acts = {name: tab.evaluate(CLICK, act) for name, act in ACTS.items()}
        browser.close()
    return opened, acts


if __name__ == "__main__":
    main()
