"""A person logs in with a real browser: from a page to the identity provider, and back to that page."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.service.http.chromium import CHROMIUM, PATIENCE_MS, QUIET
from tests.service.oidc.identity_provider import SECRET, IdentityProvider
from tests.service.running import PROGRAM

from stretto.demo.own_service import OwnService

pytestmark = [pytest.mark.processes, pytest.mark.large]


def test_a_person_logs_in_and_is_back_on_the_page_where_it_began(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with IdentityProvider() as identities, playwright.sync_playwright() as started:
        (tmp_path / "secret").write_text(SECRET, encoding="ascii")
        settings = identities.settings(client_secret_file="secret")
        (tmp_path / "oidc.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        emulated = ("--backend", "emulated", "--cluster", "sia-hetero-64")
        options = [*emulated, "--oidc", str(tmp_path / "oidc.yaml")]
        service = OwnService(tmp_path, options, PROGRAM, host="localhost")
        browser = started.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        try:
            service.begin()
            page = browser.new_page(base_url=service.url)
            page.set_default_timeout(PATIENCE_MS)
            said: list[str] = []
            page.on("pageerror", lambda error: said.append(str(error)))
            page.goto("/queue?user=ada")
            page.get_by_role("link", name="Log in with Our lab").click()
            page.wait_for_url(re.compile(r"/queue\?user=ada$"))
            page.get_by_text("live", exact=True).wait_for()
            assert page.get_by_text("ada").first.is_visible()
            page.reload()
            page.get_by_text("live", exact=True).wait_for()
            cookies: list[Any] = page.context.cookies()
            assert [(cookie["name"], cookie["httpOnly"]) for cookie in cookies] == [("stretto_session", True)]
            assert page.evaluate("document.cookie") == ""
            assert said == []
        finally:
            browser.close()
            service.end()
