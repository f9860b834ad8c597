"""The dashboard for those who do not see it or see it badly: axe-core finds nothing serious on any page."""

from typing import Any

import pytest
from tests.service.http.chromium import PATIENCE_MS
from tests.service.running import Running

pytestmark = [pytest.mark.processes, pytest.mark.large]

SERIOUS = {"serious", "critical"}
PAGES = {  # and what is there once it has its data
    "/": ".node .part",
    "/queue": "table.jobs tbody tr",
    "/timeline?hours=1&ahead=0.5&job=1": ".changes tbody tr",
    "/whatif?policy=fifo": "table.sides tbody tr",
    "/people": "section[aria-labelledby=shares] tbody tr",
    "/decisions": "details summary",
    "/jobs/1": "pre.log",
}


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_axe_finds_nothing_serious(browser: Any, running: Running, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    # Its script comes from the test and not from the service, which is what the policy of pages forbids.
    context = browser.new_context(base_url=running.url, color_scheme=scheme, bypass_csp=True)
    context.set_default_timeout(PATIENCE_MS)
    found = {}
    try:
        page = context.new_page()
        for path, is_there in PAGES.items():
            page.goto(path)
            page.locator(is_there).first.wait_for()
            page.get_by_text("live", exact=True).wait_for()
            for broken in axe.run(page).response["violations"]:
                if broken["impact"] in SERIOUS:
                    found[path, broken["id"]] = [node["html"][:200] for node in broken["nodes"][:3]]
        assert found == {}
    finally:
        context.close()
