"""What pages say where the service is away, answers with errors, or does not know who looks any more."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.chromium import CHROMIUM, JOB, PATIENCE_MS, fits
from tests.service.http.pictures import LOOPBACK, Scene, logged_in
from tests.service.running import Running

from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.large]

WIDTH = 360
PAGES = {  # and what is there once it has its data
    "/": ".node .part",
    "/queue": "table.jobs tbody tr",
    "/timeline?ahead=0": ".lanes li .area",
    "/whatif": "form.whatif option:text-is('fifo')",
    "/people": "section[aria-labelledby=usage] tbody tr",
    "/decisions": "section[aria-labelledby=decided] tbody tr",
    "/jobs/1": ".events b",
}
RAW = ("Failed to fetch", "NetworkError", "{", "undefined", "NaN", "[object")  # what is for programs
AWAY = "The service does not answer. What is shown is of"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A service that asks for tokens, with two jobs that have GPUs."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    folder: Path = tmp_path_factory.mktemp("broken")
    service = Running(folder, *("--backend", "emulated", "--cluster", "sia-hetero-64", "--policy", "sia"))
    service.host = LOOPBACK
    shown = Scene("broken", service)
    try:
        service.begin()
        with service.client() as root:
            for number in range(2):
                root.submit(JOB.replace("NAME", f"train-{number}"))
            until(lambda: root.describe("2")["gpus"] > 0, what="both have GPUs")
        yield shown
    finally:
        service.end()


@pytest.fixture
def page(browser: Any, scene: Scene) -> Iterator[Any]:
    """A narrow window of an administrator."""
    context = logged_in(browser, scene, scene.root, WIDTH, "light")
    yield context.new_page()
    context.close()


def words_of(page: Any) -> str:
    """What a page says; it fits its window, and nothing on it is for programs."""
    assert fits(page)
    said = str(page.locator("body").inner_text())
    assert [raw for raw in RAW if raw in said] == []
    return said


def opened(page: Any, path: str) -> Any:
    page.goto(path)
    page.locator(PAGES[path]).first.wait_for(state="attached")
    page.get_by_text("live", exact=True).wait_for()
    return page


def problem(status: int, detail: str) -> dict[str, Any]:
    """What a route answers with."""
    body = json.dumps({"status": status, "title": "x", "detail": detail})
    return {"status": status, "content_type": "application/problem+json", "body": body}


def test_pages_say_since_when_the_service_is_away_and_go_on_once_it_is_back(
    browser: Any, scene: Scene
) -> None:
    # A browser has six connections to one address, and each page that is in sight has one for its stream.
    windows = [logged_in(browser, scene, scene.root, WIDTH, "light") for _ in PAGES]
    pages = [opened(window.new_page(), path) for window, path in zip(windows, PAGES, strict=True)]
    scene.service.kill()
    try:
        for each in pages:
            each.bring_to_front()
            each.get_by_role("alert").filter(has_text=AWAY).wait_for()
            assert "Nothing yet." not in words_of(each)
        job = pages[-1]
        job.get_by_role("button", name="Cancel").click()
        job.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        job.get_by_text("so that it is not known whether it was done").wait_for()
        job.get_by_role("button", name="Log out").click()
        job.get_by_text("the service does not answer", exact=True).wait_for()
    finally:
        scene.service.begin()
    anew = "Nothing was decided since the service began."
    for each, (path, there) in zip(pages, PAGES.items(), strict=True):
        each.bring_to_front()
        each.get_by_text("live", exact=True).wait_for()
        each.get_by_text(AWAY).wait_for(state="detached")
        if path == "/decisions":
            each.get_by_text(anew).or_(each.locator(there).first).wait_for()
            continue
        each.locator(there).first.wait_for(state="attached")
        words_of(each)
    for window in windows:
        window.close()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_page_whose_data_do_not_come_says_why(page: Any, status: int) -> None:
    said = problem(status, "the store does not answer")
    for path, where in (
        ("/people", "**/api/v1/shares"),
        ("/people", "**/api/v1/usage?*"),
        ("/people", "**/api/v1/budgets"),
        ("/decisions", "**/api/v1/decisions?*"),
        ("/decisions", "**/api/v1/prices?*"),
        ("/timeline", "**/api/v1/timeline?*"),
        ("/timeline", "**/api/v1/timeline/forecast?*"),
        ("/whatif?policy=fifo", "**/api/v1/whatif"),
        ("/jobs/1", "**/api/v1/jobs/1"),
        ("/jobs/1", "**/api/v1/jobs/1/training"),
        ("/jobs/1", "**/api/v1/jobs/1/log?*"),
        ("/jobs/1", "**/api/v1/jobs/1/events?*"),
    ):
        page.route(where, lambda route: route.fulfill(**said))
        page.goto(path)
        words = page.get_by_text("the store does not answer").first
        words.wait_for()
        words_of(page)
        page.unroute_all(behavior="ignoreErrors")
        if path == "/jobs/1":
            words.wait_for(state="detached")  # it is asked again, by itself


def test_a_part_that_is_not_renewed_is_said_while_the_rest_is_live(page: Any) -> None:
    for path, where in (
        ("/people", "**/api/v1/usage?*"),
        ("/decisions", "**/api/v1/decisions?*"),
        ("/timeline?ahead=0", "**/api/v1/timeline?*"),
        ("/queue", "**/api/v1/line?*"),
    ):
        opened(page, path)
        page.locator(PAGES[path]).first.wait_for()
        page.route(where, lambda route: route.fulfill(**problem(500, "this is a fault of the service")))
        late = page.get_by_role("alert").filter(has_text="A part of this page is not renewed since")
        late.filter(has_text="this is a fault of the service. It is tried again.").wait_for()
        words_of(page)
        page.unroute_all(behavior="ignoreErrors")
        late.wait_for(state="detached")


def test_an_answer_of_something_else_leaves_no_page_empty(page: Any) -> None:
    html = {"status": 200, "content_type": "text/html", "body": "<h1>Gateway</h1>"}
    page.route("**/api/v1/shares", lambda route: route.fulfill(**html))
    page.goto("/people")
    page.get_by_text("the answer is not of this service").wait_for()
    page.route("**/api/v1/shares", lambda route: route.fulfill(json={}))
    page.reload()
    page.get_by_role("alert").get_by_text("This page cannot be shown").wait_for()
    page.get_by_role("link", name="Queue").click()
    page.locator(PAGES["/queue"]).first.wait_for()
    page.unroute_all(behavior="ignoreErrors")


def test_a_stream_that_is_refused_says_why(page: Any) -> None:
    page.route(
        "**/api/v1/overview?*", lambda route: route.fulfill(**problem(429, "at most 9 streams at once"))
    )
    page.goto("/queue")
    page.get_by_role("alert").get_by_text("sends no news: at most 9 streams at once. It is tried").wait_for()
    words_of(page)
    page.unroute_all(behavior="ignoreErrors")
    page.get_by_text("live", exact=True).wait_for()


def test_a_stream_that_falls_silent_is_not_called_live(page: Any) -> None:
    page.clock.install()
    opened(page, "/")
    page.route("**/api/v1/session", lambda route: route.abort())
    page.clock.fast_forward(60_000)
    page.get_by_role("alert").filter(has_text=AWAY).wait_for()
    page.unroute_all(behavior="ignoreErrors")
    page.clock.fast_forward(5_000)
    page.get_by_text("live", exact=True).wait_for()


def test_a_session_that_ends_leads_to_the_login_and_leaves_nothing_behind(browser: Any, scene: Scene) -> None:
    with scene.service.client() as root:
        token = str(root.make_token("short", "zoe", "operator")["token"])
        context = logged_in(browser, scene, token, WIDTH, "light")
        page = opened(context.new_page(), "/people")
        root.revoke_token("short")
        page.get_by_text("Your session has ended. Log in to go on.").wait_for()
        words_of(page)
        page.get_by_label("Your token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("alert").get_by_text("unknown or revoked token").wait_for()
        scene.tokens["yan"] = str(root.make_token("yan", "yan", "user")["token"])
    page.route("**/api/v1/overview?*", lambda route: None)  # what was there before is not shown to another
    page.get_by_label("Your token").fill(scene.tokens["yan"])
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("connecting", exact=True).wait_for()
    page.get_by_role("link", name="Queue").click()
    page.get_by_text("Waiting for the service").wait_for()
    assert page.get_by_role("link", name="train-0").count() == 0
    page.unroute_all(behavior="ignoreErrors")
    context.close()


def test_a_login_says_that_the_service_does_not_answer(browser: Any, scene: Scene) -> None:
    context = browser.new_context(base_url=scene.service.url)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/whatif")
    page.get_by_label("Your token").fill("stretto_x")
    page.route("**/login", lambda route: route.abort())
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("alert").get_by_text("the service does not answer").wait_for()
    words_of(page)
    context.close()


def test_whom_the_login_has_let_in_already_is_led_to_the_cluster(page: Any) -> None:
    page.goto("/login")
    page.locator(PAGES["/"]).first.wait_for()
    assert page.evaluate("location.pathname") == "/"


def test_an_address_that_is_cut_within_a_character_shows_no_empty_page(page: Any) -> None:
    page.goto("/jobs/1")
    page.locator(PAGES["/jobs/1"]).first.wait_for()
    page.evaluate("history.pushState(null, '', '/jobs/%E4%B')")
    page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
    page.get_by_text("Jobs that there are, and were").wait_for()
    words_of(page)


def test_policies_that_did_not_come_at_first_are_there_once_the_service_is_back(page: Any) -> None:
    page.clock.install()
    page.route("**/api/v1/policies", lambda route: route.abort())
    page.goto("/whatif")
    page.locator("form.whatif").wait_for()
    assert page.locator(PAGES["/whatif"]).count() == 0
    page.route("**/api/v1/session", lambda route: route.abort())
    page.clock.fast_forward(60_000)  # nothing was heard in that time
    page.get_by_text("lost", exact=True).wait_for()
    page.unroute_all(behavior="ignoreErrors")
    page.clock.fast_forward(5_000)
    page.locator(PAGES["/whatif"]).wait_for(state="attached")


def test_the_policy_of_the_address_is_named_before_there_is_a_list_of_policies(page: Any) -> None:
    page.route("**/api/v1/policies", lambda route: route.abort())
    page.route("**/api/v1/whatif", lambda route: route.fulfill(**problem(503, "there is no time")))
    page.goto("/whatif?policy=fifo")
    page.get_by_text("there is no time").wait_for()
    chosen = page.get_by_label("Policy").evaluate("e => e.selectedOptions[0]?.text")
    assert chosen == "fifo"
    page.unroute_all(behavior="ignoreErrors")


def test_what_never_came_is_not_said_to_be_old(page: Any) -> None:
    asked: list[str] = []

    def refused(route: Any) -> None:
        asked.append(route.request.url)
        route.fulfill(**problem(500, "this is a fault of the service"))

    page.clock.install()
    page.route("**/api/v1/shares", refused)
    page.goto("/people")
    for times in range(1, 5):
        page.get_by_text("this is a fault of the service. It is tried again.").wait_for()
        while len(asked) < times:
            page.wait_for_timeout(20)
        page.clock.fast_forward(6_000)
    assert page.get_by_role("alert").count() == 0
    page.unroute_all(behavior="ignoreErrors")
