"""What the pages show and let do, by who looks: users, operators, tokens for reading, and nobody."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.chromium import CHROMIUM, JOB, PATIENCE_MS
from tests.service.http.pictures import LOOPBACK, Scene, logged_in
from tests.service.running import Running

from stretto.client import Client
from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.large]
WIDTH = 1024


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A service that asks for tokens, with a job of ada's and one of bob's."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    folder: Path = tmp_path_factory.mktemp("rights")
    service = Running(folder, *("--backend", "emulated", "--cluster", "sia-hetero-64", "--policy", "sia"))
    service.host = LOOPBACK
    shown = Scene("rights", service)
    try:
        service.begin()
        with service.client() as root:
            for user, role, scope in (
                ("ada", "user", "all"),
                ("bob", "user", "all"),
                ("olga", "operator", "all"),
                ("rita", "operator", "read"),
            ):
                shown.tokens[user] = str(root.make_token(user, user, role, scope=scope)["token"])
            for user in ("ada", "bob"):
                with Client(service.url, shown.tokens[user]) as client:
                    client.submit(JOB.replace("NAME", f"of-{user}"))
            until(lambda: root.describe("2")["gpus"] > 0, what="both have GPUs")
        yield shown
    finally:
        service.end()


def a_page(browser: Any, scene: Scene, user: str, path: str) -> Any:
    page = logged_in(browser, scene, scene.tokens[user], WIDTH, "light").new_page()
    page.goto(path)
    page.get_by_text("live", exact=True).wait_for()
    return page


def test_a_user_sees_its_own_jobs_alone_and_that_others_are_there(browser: Any, scene: Scene) -> None:
    page = a_page(browser, scene, "ada", "/queue")
    page.get_by_role("link", name="of-ada").wait_for()
    assert page.get_by_role("link", name="of-bob").count() == 0
    page.goto("/")
    page.locator(".part.hidden-job").first.wait_for()
    assert page.locator(".node .part[href='/jobs/2']").count() == 0
    page.goto("/jobs/2")
    page.get_by_text("no job '2'").wait_for()
    assert page.get_by_role("button", name="Cancel").count() == 0
    page.goto("/decisions")
    page.locator("table.decided tbody tr").first.wait_for()
    assert page.get_by_role("button", name="replay").count() == 0
    page.context.close()


def test_a_token_for_reading_has_no_actions_and_is_refused_them(browser: Any, scene: Scene) -> None:
    page = a_page(browser, scene, "rita", "/jobs/1")
    page.get_by_text("Your token is for reading only").wait_for()
    assert page.get_by_role("button", name="Cancel").count() == 0
    status = page.evaluate("fetch('/api/v1/jobs/1/cancel', {method: 'POST'}).then((answer) => answer.status)")
    assert status == 403
    page.context.close()


def test_an_action_that_is_refused_says_why(browser: Any, scene: Scene) -> None:
    pairs = "resources: {accelerators: 2, gpus_per_worker: 2}, elastic: {min: 2, max: 8}"
    with Client(scene.service.url, scene.tokens["ada"]) as ada:
        name = str(ada.submit(f"{{name: in-pairs, run: 'true', {pairs}}}")["id"])
    page = a_page(browser, scene, "ada", f"/jobs/{name}")
    page.get_by_role("button", name="Scale").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Most").fill("7")
    dialog.get_by_text(f"stretto scale {name} --min 2 --max 7").wait_for()
    dialog.get_by_role("button", name="Scale").click()
    page.get_by_role("status").get_by_text("sizes must be whole workers of 2 GPUs, got 2 and 7").wait_for()
    page.context.close()


def test_an_operator_cancels_the_job_of_a_user(browser: Any, scene: Scene) -> None:
    with Client(scene.service.url, scene.tokens["bob"]) as bob:
        name = str(bob.submit(JOB.replace("NAME", "to-be-cancelled"))["id"])
    page = a_page(browser, scene, "olga", f"/jobs/{name}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_text(f"stretto cancel {name}").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.locator(".title .state.cancelled").wait_for()
    page.context.close()


def test_without_a_token_there_is_the_login_and_then_the_page_that_was_asked_for(
    browser: Any, scene: Scene
) -> None:
    context = browser.new_context(base_url=scene.service.url)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/queue?state=running")
    page.get_by_label("Your token").fill("stretto_wrong")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("alert").get_by_text("unknown or revoked token").wait_for()
    page.get_by_label("Your token").fill(scene.tokens["bob"])
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="of-bob").wait_for()
    assert page.url.endswith("/queue?state=running")
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Your token").wait_for()
    context.close()
