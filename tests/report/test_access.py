"""The pages of reports for all people and windows: axe-core finds nothing serious, and nothing overflows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.chromium import CHROMIUM, QUIET, WIDTHS, fits

from stretto.report import render
from stretto.report.fragment import comparison_fragment, run_fragment
from stretto.report.reproduction_page import render_reproduction
from stretto.report.usage_page import render_usage

from .made_runs import a_comparison, a_run
from .made_usage import a_report
from .test_reproduction_page import PAGE

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed"),
]

SERIOUS = {"serious", "critical"}
LONG = "stretto usage --by user --by month --out a/page/with/a/rather/long/name/so/that/it/needs/room.html"


def in_a_notebook(shown: str) -> str:
    return f"<!doctype html><html lang=en><title>notebook</title><body>{shown}</body></html>"


PAGES = {
    "comparison": lambda: render(a_comparison(("stretto", "sia", "fifo"), jobs=30, command=LONG)),
    "reproduction": lambda: render_reproduction(PAGE),
    "usage": lambda: render_usage(a_report(command=LONG * 3)),
    "no usage": lambda: render_usage(a_report([])),
    "run in a notebook": lambda: in_a_notebook(
        run_fragment(a_comparison(runs=(a_run("sia", "made", jobs=30),)))
    ),
    "comparison in a notebook": lambda: in_a_notebook(
        comparison_fragment(a_comparison(("stretto", "sia", "fifo"), jobs=30))
    ),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, where Playwright is installed too."""
    library = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with library.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


def opened(browser: Any, name: str, folder: Path, **context: Any) -> Any:
    """The page with all that is folded open."""
    path = folder / "page.html"
    path.write_text(PAGES[name](), encoding="utf-8")
    page = browser.new_context(**context).new_page()
    page.goto(path.as_uri())
    page.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(browser: Any, name: str, scheme: str, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    # Its script comes from the test, which is what the policy of pages forbids.
    page = opened(browser, name, tmp_path, color_scheme=scheme, bypass_csp=True)
    violations = axe.run(page).response["violations"]
    page.context.close()
    assert {
        each["id"]: each["nodes"][0]["html"][:200] for each in violations if each["impact"] in SERIOUS
    } == {}


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_window(browser: Any, name: str, tmp_path: Path) -> None:
    page = opened(browser, name, tmp_path)
    too_wide = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        too_wide += [] if fits(page) else [width]
    page.context.close()
    assert too_wide == []
