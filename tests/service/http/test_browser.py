"""The dashboard in a real browser: every page has its data, changes by itself, and fits its window."""

import re
from typing import Any

import pytest
from tests.service.http.chromium import JOB, PATIENCE_MS, fits
from tests.service.running import Running

from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.large]


def test_the_cluster_is_shown_with_who_holds_it(page: Any) -> None:
    page.goto("/")
    page.get_by_role("heading", name="a100 2 nodes").wait_for()
    page.locator(".node .part[href='/jobs/1']").first.wait_for()
    page.get_by_text("live").wait_for()
    assert fits(page)


def test_the_queue_lists_jobs_and_finds_them_and_the_address_says_what_is_shown(page: Any) -> None:
    page.goto("/queue")
    page.get_by_role("link", name="train-0").wait_for()
    page.get_by_label("Find jobs").fill("train-3")
    page.get_by_role("link", name="train-0").wait_for(state="detached")
    assert "find=train-3" in page.url
    page.reload()
    page.get_by_role("link", name="train-3").wait_for()
    assert page.get_by_role("link", name="train-0").count() == 0
    assert fits(page)


def test_what_happens_is_shown_without_a_reload_and_a_job_is_cancelled_from_its_page(
    page: Any, running: Running
) -> None:
    page.goto("/queue")
    page.get_by_role("link", name="train-0").wait_for()
    with running.client() as client:
        name = str(client.submit(JOB.replace("NAME", "comes-later"))["id"])
        page.get_by_role("link", name=f"comes-later {name}").click()
        page.get_by_role("heading", name="comes-later").wait_for()
        assert page.url.endswith(f"/jobs/{name}")
        page.get_by_role("button", name="Cancel").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text(f"stretto cancel {name}").wait_for()
        assert client.describe(name)["state"] != "CANCELLED", "it asks before"
        assert fits(page)
        dialog.get_by_role("button", name="Cancel").click()
        assert client.wait(name)["state"] == "CANCELLED"
    page.locator(".title .state.cancelled").wait_for()


def test_a_job_is_scaled_held_and_released_from_its_page(page: Any, running: Running) -> None:
    with running.client() as client:
        name = str(client.submit(JOB.replace("NAME", "to-be-scaled"))["id"])
        until(lambda: client.describe(name)["gpus"] > 0, what="the job has GPUs")
        page.goto(f"/jobs/{name}")
        page.get_by_role("button", name="Scale").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Fewest GPUs").fill("2")
        dialog.get_by_label("Most").fill("2")
        dialog.get_by_text(f"stretto scale {name} --min 2 --max 2").wait_for()
        assert fits(page)
        dialog.get_by_role("button", name="Scale").click()
        page.get_by_text("Scale: done").wait_for()
        shown = client.describe(name)
        assert (shown["gpus_min"], shown["gpus_max"]) == (2, 2)
        page.get_by_role("button", name="Hold").click()
        page.get_by_role("dialog").get_by_role("button", name="Hold").click()
        page.get_by_role("button", name="Release").click()
        page.get_by_role("dialog").get_by_text(f"stretto release {name}").wait_for()
        assert client.describe(name)["reason"] == "HELD"
        page.get_by_role("dialog").get_by_role("button", name="Release").click()
        page.get_by_role("button", name="Hold").wait_for()
        page.get_by_role("button", name="Scale").wait_for()
        client.change(name, "cancel")
        client.wait(name)


def test_the_speeds_that_policies_are_shown_have_their_source(page: Any, running: Running) -> None:
    with running.client() as client:
        shown = client.describe("1")["speeds"]["entries"]
    page.goto("/jobs/1")
    page.get_by_text("Speeds that policies are shown").click()
    rows = page.get_by_role("region", name="Speeds that policies are shown").locator("tbody tr")
    rows.first.wait_for()
    assert rows.count() == len(shown) > 0
    assert rows.first.locator("td").first.inner_text() == shown[0]["gpu_type"]
    assert rows.first.locator("td").last.inner_text() in ("measured", "fitted", "assumed")
    assert fits(page)


def test_shares_and_usage_are_shown_by_queue_and_user(page: Any, running: Running) -> None:
    page.goto("/people")
    page.get_by_role("heading", name="Shares").wait_for()
    page.locator("section[aria-labelledby=shares] tbody tr").first.wait_for()
    with running.client() as client:
        names = [row["name"] for row in client.shares()["shares"]]
        # Time that a policy cost a job is charged to the cluster, which then has a row of its own.
        user = max(client.usage(), key=lambda row: float(row["gpu_seconds"]))["user"]
    shown = page.locator("section[aria-labelledby=shares] tbody th").all_inner_texts()
    assert [text.split()[0] for text in shown] == names
    page.locator("section[aria-labelledby=usage] tbody th", has_text=user).wait_for()
    assert fits(page)


def test_budgets_are_shown_with_what_is_used_of_them(page: Any, running: Running) -> None:
    page.goto("/people")
    page.get_by_text("No budget has been set.").wait_for()
    with running.client() as client:
        client.set_budget("of-all", {"gpu_hours": 1e-6, "period": "month", "warn": 0.5, "hold": 1e1})
        try:
            row = page.locator("section[aria-labelledby=budgets] tbody tr")
            row.get_by_text("holds its jobs").wait_for()
            row.get_by_text("all jobs", exact=True).wait_for()
            (shown,) = client.budgets()
            row.locator(f"time[datetime='{shown['until']}']").wait_for()
            assert fits(page)
        finally:
            client.delete_budget("of-all")
    page.get_by_text("No budget has been set.").wait_for()


def test_decisions_say_why_and_what_changed_and_lead_to_the_jobs(page: Any, running: Running) -> None:
    page.goto("/decisions")
    page.get_by_role("heading", name="Decisions").wait_for()
    started = page.locator("details", has_text="start").last
    started.locator("summary").click()
    started.get_by_role("link").first.click()
    page.get_by_role("heading", name="train-").wait_for()
    assert "/jobs/" in page.url
    page.go_back()
    page.get_by_role("heading", name="Prices").wait_for()
    assert fits(page)


def test_a_job_that_waits_says_when_it_is_foreseen_to_start_and_what_would_start_it(
    page: Any, running: Running
) -> None:
    # Of 16 such GPUs eight are held by a job that asked for no other number, so that another gets no 16.
    job = "{name: NAME, model: resnet18, run: 'true', resources: {accelerators: 'a100:GPUS'}}"
    with running.client() as client:
        holder = str(client.submit(job.replace("NAME", "holds").replace("GPUS", "8"))["id"])
        name = ""
        try:
            until(lambda: client.describe(holder)["gpus"] == 8, what="it runs")
            name = str(client.submit(job.replace("NAME", "too-many").replace("GPUS", "16"))["id"])
            page.goto(f"/jobs/{name}")
            page.get_by_role("heading", name="Why it waits").wait_for()
            page.get_by_text(f"stretto explain {name}").wait_for()
            said = re.compile("It is foreseen to start|When it starts cannot be said yet")
            page.get_by_text(said).wait_for()
            holding = page.get_by_role("region", name="jobs that hold GPUs that suit it")
            holding.get_by_role("link", name=f"holds {holder}").wait_for()
            assert fits(page)
        finally:
            for each in filter(None, (name, holder)):
                client.change(each, "cancel")
                client.wait(each)


def test_many_pages_of_jobs_are_alive_at_once_and_have_their_log_and_events(
    browser: Any, running: Running
) -> None:
    context = browser.new_context(base_url=running.url)
    context.set_default_timeout(PATIENCE_MS)
    try:
        for name in ("1", "2", "3", "4"):  # more streams than these would be refused by the browser
            page = context.new_page()
            page.goto(f"/jobs/{name}")
            page.locator("pre.log", has_text=f"emulated worker {name}.").wait_for()
            page.locator(".events b", has_text="Submitted").wait_for()
        page.get_by_role("button", name="Hold").click()
        page.get_by_role("dialog").get_by_role("button", name="Hold").click()
        page.get_by_text("Hold: done").wait_for()
        page.locator(".events b", has_text="Held").wait_for()
        with running.client() as client:
            client.change("4", "release")
    finally:
        context.close()
