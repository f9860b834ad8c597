"""Size over time and what-if in a real browser: read by pointer, by keys and as tables, at every width."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.service.http.chromium import CHROMIUM, JOB, PATIENCE_MS, a_service, fits
from tests.service.running import Running

from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.large]
SOON = "/timeline?hours=0.25&ahead=0.5"


def a_lane(page: Any, name: str) -> Any:
    return page.locator(".lanes li", has=page.get_by_role("link", name=name, exact=True))


def test_a_change_says_its_reason_to_the_keys_the_pointer_and_in_a_table(page: Any) -> None:
    page.goto(SOON)
    picture = a_lane(page, "train-0 1").get_by_role("slider")
    picture.focus()
    page.keyboard.press("Home")
    assert "sia decided so: a job was submitted" in picture.get_attribute("aria-valuetext")
    page.locator(".tip", has_text="sia decided so: a job was submitted").wait_for()
    page.keyboard.press("Escape")
    page.locator(".tip").wait_for(state="detached")
    box = picture.locator("line.now").bounding_box()
    page.mouse.move(box["x"], box["y"] + box["height"] / 2)
    page.locator(".tip", has_text="sia decided so").wait_for()
    a_lane(page, "train-0 1").get_by_role("button").click()
    assert "job=1" in page.url
    rows = page.get_by_role("region", name="changes of train-0").locator("tbody tr")
    rows.last.get_by_text("sia decided so: a job was submitted or released").wait_for()
    assert fits(page)
    page.get_by_role("button", name="Close").click()
    rows.first.wait_for(state="detached")
    assert "job=" not in page.url


def test_right_of_now_there_is_the_forecast_as_a_fan(page: Any) -> None:
    page.goto(SOON)
    page.get_by_text(
        re.compile(r"Right of now: (the middle of \d simulated futures|one simulated future) under sia")
    ).wait_for()
    for band in (page.locator(".sum path.band"), a_lane(page, "train-0 1").locator("path.band")):
        left, right = (float(band.evaluate(f"e => e.getBBox().{side}")) for side in ("x", "width"))
        now = float(page.locator(".sum line.now").get_attribute("x1"))
        assert abs(left - now) < 25, "it begins now"
        assert right > 0.8 * (1000 - now)
    picture = a_lane(page, "train-0 1").get_by_role("slider")
    picture.press("End")
    assert "foreseen to end" in picture.get_attribute("aria-valuetext")


def test_a_forecast_that_was_made_before_now_is_drawn_from_now_on(page: Any) -> None:
    def aged(route: Any) -> None:
        answer = route.fetch()
        body = answer.json()
        body["now_s"] -= 300.0
        route.fulfill(response=answer, json=body)

    page.route("**/timeline/forecast*", aged)
    page.goto(SOON)
    page.get_by_text("Right of now:").wait_for()
    for band in (page.locator(".sum path.band"), a_lane(page, "train-0 1").locator("path.band")):
        left = float(band.evaluate("e => e.getBBox().x"))
        assert left >= float(page.locator(".sum line.now").get_attribute("x1")) - 1


def test_jobs_are_found_and_the_address_says_what_is_shown(page: Any) -> None:
    page.goto(SOON)
    a_lane(page, "train-0 1").wait_for()
    page.get_by_label("Find jobs").fill("train-3")
    a_lane(page, "train-0 1").wait_for(state="detached")
    page.get_by_label("Ahead").select_option("none")
    page.get_by_text("No forecast is asked for.").wait_for()
    assert {"find=train-3", "ahead=0"} <= set(page.url.partition("?")[2].split("&"))
    page.reload()
    a_lane(page, "train-3 4").wait_for()
    assert page.locator(".lanes li").count() == 1
    assert page.locator("path.band").count() == 0
    assert fits(page)


def test_a_short_past_is_not_squeezed_into_a_corner_by_a_long_forecast(page: Any) -> None:
    for asked, ahead in (("hours=0.25", "0.5"), ("hours=4", "2"), ("hours=0.25&ahead=2", "2")):
        page.goto(f"/timeline?{asked}")
        a_lane(page, "train-0 1").wait_for()
        assert page.get_by_label("Ahead").input_value() == ahead


def test_what_happens_is_drawn_without_a_reload(page: Any, running: Running) -> None:
    name = f"comes-at-{page.viewport_size['width']}"
    page.goto(f"/timeline?hours=0.25&ahead=0&find={name}")
    page.get_by_text("No job fits.").wait_for()
    with running.client() as client:
        job = str(client.submit(JOB.replace("NAME", name))["id"])
        lane = a_lane(page, f"{name} {job}")
        lane.wait_for()
        until(lambda: client.describe(job)["gpus"] > 0, what="it has GPUs")
        lane.get_by_role("button").get_by_text(re.compile(r"\d+ GPUs?")).wait_for()
        client.change(job, "cancel")
        client.wait(job)
        lane.get_by_role("button").get_by_text("cancelled").wait_for()
        picture = lane.get_by_role("slider")
        picture.press("End")
        assert "the job ended: cancelled" in picture.get_attribute("aria-valuetext")


def test_a_what_if_stands_beside_what_is_with_its_command(page: Any, running: Running) -> None:
    page.goto("/whatif")
    page.get_by_label("Policy").select_option("fifo")
    page.get_by_label("More nodes of 8 × a100").fill("2")
    without = page.get_by_label("Without job")
    without.fill("nobody")
    without.press("Enter")
    page.get_by_text("There is no open job nobody.").wait_for()
    without.fill("1")
    without.press("Enter")
    page.get_by_text("stretto whatif --policy fifo --add a100:8x2 --without 1").wait_for()
    page.get_by_role("button", name="Forecast").click()
    page.get_by_role("columnheader", name="then: fifo").wait_for()
    rows = page.get_by_role("region", name="jobs, now and then").locator("tbody tr")
    rows.filter(has=page.get_by_role("link", name="train-0 1", exact=True)).get_by_text("left out").wait_for()
    page.get_by_role("row", name=re.compile(r"Mean JCT of the \d+ jobs on both sides")).wait_for()
    assert fits(page)
    page.reload()  # the address asks again by itself
    page.get_by_role("columnheader", name="then: fifo").wait_for()
    with running.client() as client:
        answer = client.whatif(policy="fifo", without=["1"])
    assert rows.count() == len(answer["present"]["jobs"])
    page.get_by_role("button", name="leave job 1 in").click()
    page.get_by_role("button", name="Forecast").click()
    page.get_by_role("row", name="Mean JCT of all jobs").wait_for()


def test_a_what_if_that_takes_long_says_so_and_is_cancelled(page: Any) -> None:
    page.route("**/api/v1/whatif", lambda route: None)  # it is never answered
    page.goto("/whatif")
    page.get_by_role("button", name="Forecast").click()
    page.get_by_text(re.compile(r"Simulating futures… [1-9] s")).wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("It was cancelled.").wait_for()
    assert page.get_by_role("button", name="Forecast").is_enabled()


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    service = a_service(tmp_path_factory.mktemp("empty"))
    try:
        service.begin()
        yield service
    finally:
        service.end()


def test_without_jobs_there_is_the_next_command_and_of_a_thousand_those_in_sight_are_drawn(
    browser: Any, empty: Running
) -> None:
    context = browser.new_context(viewport={"width": 1024, "height": 800}, base_url=empty.url)
    context.set_default_timeout(PATIENCE_MS)
    try:
        page = context.new_page()
        page.goto("/whatif")
        page.get_by_role("button", name="Forecast").click()
        page.get_by_text("No job waits or runs.").wait_for()
        page.goto("/timeline")
        page.get_by_text("No job was there in this time.").wait_for()
        page.get_by_text("stretto submit job.yaml").wait_for()
        with empty.client() as client:
            client.submit("{name: many, run: 'true', hold: true, array: 0-999}")
        page.get_by_role("heading", name="Size over time 1,000 jobs").wait_for()
        page.get_by_role("link", name="many 1_0", exact=True).wait_for()
        assert page.locator(".lanes li").count() < 60
        page.get_by_role("link", name="many 1_999", exact=True).wait_for(state="detached")
        page.locator(".lanes ol").evaluate("e => scrollTo(0, e.getBoundingClientRect().bottom)")
        page.get_by_role("link", name="many 1_999", exact=True).wait_for()
        assert page.locator(".lanes li").count() < 60
        assert fits(page)
    finally:
        context.close()
