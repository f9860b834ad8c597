"""A browser, and a service to look at: for tests of the dashboard alone."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.service.http.chromium import CHROMIUM, JOB, PATIENCE_MS, QUIET, WIDTHS, a_service
from tests.service.running import Running

from stretto.demo.own_service import until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with six jobs, of which the first has GPUs."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    service = a_service(tmp_path_factory.mktemp("dashboard"))
    try:
        service.begin()
        with service.client() as client:
            for number in range(6):
                client.submit(JOB.replace("NAME", f"train-{number}"))
            until(lambda: client.describe("1")["gpus"] > 0, what="a job has GPUs")
        yield service
    finally:
        service.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield launched
        launched.close()


# What is right on a telephone and on a wide screen is rarely wrong between them.
AT_TIMES = {width: pytest.mark.long for width in WIDTHS if min(WIDTHS) < width < max(WIDTHS)}


@pytest.fixture(params=[pytest.param(width, marks=AT_TIMES.get(width, ())) for width in WIDTHS])
def page(browser: Any, running: Running, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A window of one width, whose console must stay empty under the content security policy."""
    context = browser.new_context(viewport={"width": request.param, "height": 800}, base_url=running.url)
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda asked: said.append(asked.url) if running.url not in asked.url else None)
    yield opened
    context.close()
    assert said == []
