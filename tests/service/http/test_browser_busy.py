"""Pages of a service with long names, large numbers and many of everything, in a real browser."""

from itertools import pairwise
from typing import Any

import pytest
from tests.service.http.chromium import fits
from tests.service.running import Running

pytestmark = [pytest.mark.processes, pytest.mark.large]

LONG = "research.language.instruction-tuning-and-alignment-of-large-models"
PHONE = 720
RIGHT, WIDTH = "e => e.getBoundingClientRect().right", "e => e.getBoundingClientRect().width"


def changed(page: Any, where: str, key: str, **news: Any) -> None:
    """The first row of what a route lists is told otherwise."""

    def told(route: Any) -> None:
        answer = route.fetch()
        shown = answer.json()
        rows = [{**row, **news} if index == 0 else row for index, row in enumerate(shown[key])]
        route.fulfill(response=answer, json={**shown, key: rows})

    page.route(where, told)


def test_long_names_leave_room_for_the_figures_beside_them(page: Any) -> None:
    changed(page, "**/api/v1/shares", "shares", name=LONG, borrowed_gpus=73 / 3)
    page.goto("/people")
    table = page.get_by_role("region", name="shares", exact=True)
    row = table.locator("tbody tr", has_text="instruction-tuning").first
    row.get_by_text("24.3 GPUs").wait_for()
    assert fits(page)
    seen = table if page.viewport_size["width"] > PHONE else row.locator("td").first
    assert seen.evaluate("e => e.scrollWidth <= e.clientWidth")
    assert row.locator("td").first.evaluate(RIGHT) <= table.evaluate(RIGHT)
    assert row.locator("th").inner_text().split()[0] == LONG, "none of it is cut"
    page.unroute_all(behavior="ignoreErrors")


def test_a_budget_that_is_exceeded_by_far_says_how_many_times(page: Any, running: Running) -> None:
    with running.client() as client:
        client.set_budget("tiny", {"gpu_hours": 1.0, "period": "month", "warn": 0.5, "hold": 1.0})
    try:
        changed(page, "**/api/v1/budgets", "budgets", share=1276.7, level="hold", waiting=1252)
        page.goto("/people")
        row = page.locator("section[aria-labelledby=budgets] tbody tr")
        row.get_by_text("1,277 times", exact=True).wait_for()
        row.get_by_text("1,252", exact=True).wait_for()
        assert fits(page)
        page.unroute_all(behavior="ignoreErrors")
    finally:
        with running.client() as client:
            client.delete_budget("tiny")


def test_usage_by_job_names_the_jobs_and_leads_to_them(page: Any) -> None:
    page.goto("/people?by=job")
    page.get_by_role("region", name="usage").get_by_role("link", name="train-0 1").click()
    page.get_by_role("heading", name="train-0").wait_for()


def test_a_price_that_is_next_to_nothing_has_no_row_of_zeros(page: Any) -> None:
    def told(route: Any) -> None:
        answer = route.fetch()
        shown = answer.json()
        row = [0.0000304, *(0.5 for _ in shown["gpu_types"][1:])]
        route.fulfill(response=answer, json={**shown, "steps": [[shown["now_s"] - 60, row]]})

    page.route("**/api/v1/prices?*", told)
    page.goto("/decisions")
    page.locator(".priced .figure", has_text="< 0.001").wait_for()
    assert fits(page)
    page.unroute_all(behavior="ignoreErrors")


def test_what_a_decision_changed_stands_in_one_line(page: Any) -> None:
    why = ["completion", "round"]
    changes = {"stop": 216, "start": 150}
    changed(page, "**/api/v1/decisions?*", "decisions", due=why, changes=changes, actions=[])
    page.goto("/decisions")
    cell = page.get_by_role("cell", name="216 stopped, 150 started")
    cell.wait_for()
    words = "() => { const all = document.createRange(); all.selectNodeContents(e); return all; }"
    assert cell.evaluate(f"e => ({words})().getClientRects().length") == 1
    assert fits(page)
    page.unroute_all(behavior="ignoreErrors")


def test_times_below_a_chart_do_not_touch_each_other(page: Any) -> None:
    span_s, step_s = 2_500, 600  # so that a mark lies an eighth before the end
    now_unix = 1_700_000_000 // step_s * step_s + step_s / 2

    def told(route: Any) -> None:
        answer = route.fetch()
        shown = answer.json()
        row = {"gpus_before": 0, "gpu_type": "t4", "how": "start", "reason": "", "trains_after_s": 1.0}
        resizes = [
            {**row, "lost_s": 1.0, "at_s": 5_000 - span_s, "gpus": 1},
            {**row, "lost_s": 1.0, "at_s": 4_000, "gpus": 2},
        ]
        times = {"now_s": 5_000, "unix_s": now_unix, "resizes": resizes}
        route.fulfill(response=answer, json={**shown, **times})

    page.route("**/training", told)
    page.goto("/jobs/1")
    axis = page.locator("figure", has_text="Size GPUs").locator(".axis")
    axis.get_by_text("now").wait_for()
    edges = (
        "e => [...e.children].map((each) => each.getBoundingClientRect()).map((box) => [box.left, box.right])"
    )
    labels = sorted(axis.evaluate(edges))
    apart = [after[0] - before[1] for before, after in pairwise(labels)]
    assert len(labels) > 2
    assert min(apart) > 4
    page.unroute_all(behavior="ignoreErrors")


def test_the_time_of_an_event_stands_beside_what_happened(page: Any) -> None:
    page.goto("/jobs/1")
    event = page.locator(".events li", has_text="Submitted")
    event.wait_for()
    top = "e => e.getBoundingClientRect().top"
    assert abs(event.locator("time").evaluate(top) - event.locator("b").evaluate(top)) < 4
