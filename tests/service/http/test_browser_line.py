"""The queue, decisions and usage in a real browser: places, reasons, times, and what the address says."""

import re
from collections.abc import Iterator
from statistics import median
from time import monotonic
from typing import Any

import pytest
from tests.service.http.chromium import JOB, PATIENCE_MS, fits
from tests.service.running import Running

from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.large]
LARGE = "{name: NAME, model: resnet18, run: 'true', resources: {accelerators: 'a100:8'}, expected_time: 9m}"
LIVE_S = 1.0  # the promise of the page


@pytest.fixture(scope="module")
def waiting(running: Running) -> Iterator[list[str]]:
    """Jobs that want more of one type than there is: some run, and the others wait."""
    with running.client() as client:
        names = [str(client.submit(LARGE.replace("NAME", f"large-{number}"))["id"]) for number in range(4)]
        until(lambda: any(client.describe(name)["reason"] for name in names), what="one of them waits")
        yield names
        for name in names:
            client.change(name, "cancel")
            client.wait(name)


def test_jobs_that_wait_have_their_place_and_their_reason_in_words(
    page: Any, running: Running, waiting: list[str]
) -> None:
    page.goto("/queue?find=large&state=waiting")
    rows = page.locator("table.jobs tbody tr:not(.gap)")
    rows.first.wait_for()
    page.get_by_text("Those that wait come in the order").wait_for()
    with running.client() as client:
        line = dict(client.ask("GET", "/api/v1/line")["line"])
        shown = {name: client.describe(name) for name in line}
    for row in rows.all():
        name = row.locator("th a").get_attribute("href").rpartition("/")[2]
        assert not shown[name]["gpus"]
        why = row.locator("td.why").inner_text()
        assert why
        assert not re.search("[A-Z]_[A-Z]", why), "a word for programs"
    assert fits(page)


def test_why_a_job_waits_is_opened_beside_the_queue_and_is_in_the_address(
    page: Any, waiting: list[str]
) -> None:
    page.goto("/queue?find=large&state=waiting")
    button = page.locator("td.why button").first
    button.click()
    page.get_by_role("heading", name=re.compile("Why .* waits")).wait_for()
    page.get_by_text("GPUs that suit it are held by these jobs").wait_for()
    page.get_by_role("region", name="jobs that hold GPUs that suit it").locator("tbody tr").first.wait_for()
    assert re.search(r"job=\d+", page.url)
    assert button.get_attribute("aria-expanded") == "true"
    assert fits(page)
    page.reload()
    page.get_by_role("heading", name=re.compile("Why .* waits")).wait_for()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("heading", name=re.compile("Why .* waits")).wait_for(state="detached")


def test_starts_and_ends_are_shown_once_they_are_foreseen(page: Any, waiting: list[str]) -> None:
    page.goto("/queue")
    page.locator("td.when", has_text=re.compile("ends in|ends soon")).first.wait_for()
    page.get_by_text(re.compile(r"simulated futures? under sia start")).wait_for()
    page.locator("td.when", has_text=re.compile("starts in|starts soon|not within")).first.wait_for()
    assert fits(page)


def test_the_stroke_key_leads_to_the_search(page: Any) -> None:
    page.goto("/queue")
    find = page.get_by_label("Find jobs")
    find.wait_for()
    page.keyboard.press("/")
    page.keyboard.type("train/1")
    assert find.input_value() == "train/1"


def test_what_happens_is_shown_within_a_second(browser: Any, running: Running) -> None:
    """From the answer to a submission until its row is there; the middle of several: machines are shared."""
    context = browser.new_context(base_url=running.url)
    context.set_default_timeout(PATIENCE_MS)
    took_s = []
    try:
        page = context.new_page()
        page.goto("/queue?find=quick")
        page.get_by_text("No job fits.").wait_for()
        with running.client() as client:
            for number in range(7):
                name = str(client.submit(JOB.replace("NAME", f"quick-{number}"))["id"])
                began_s = monotonic()
                page.get_by_role("link", name=f"quick-{number} {name}").wait_for()
                took_s.append(monotonic() - began_s)
                client.change(name, "cancel")
                client.wait(name)
    finally:
        context.close()
    assert median(took_s) < LIVE_S, took_s


def test_a_decision_is_made_again_on_its_page_with_its_command(page: Any, running: Running) -> None:
    page.goto("/decisions")
    page.get_by_role("button", name=re.compile("replay decision")).first.click()
    page.get_by_text("✓ It comes out as it was written.").wait_for()
    seq = re.search(r"again=(\d+)", page.url)
    assert seq is not None
    page.get_by_text(f"stretto simulate --from-log {running.store} --decision {seq[1]}").wait_for()
    page.get_by_role("region", name="what it changed").locator("tbody tr").first.wait_for()
    assert fits(page)
    page.reload()
    page.get_by_text("✓ It comes out as it was written.").wait_for()


def test_decisions_that_changed_nothing_are_shown_on_demand(page: Any) -> None:
    page.goto("/decisions")
    rows = page.locator("table.decided tbody tr")
    rows.first.wait_for()
    assert page.locator("table.decided").get_by_text("nothing changed").count() == 0
    before = rows.count()
    page.get_by_role("button", name="all", exact=True).click()
    page.locator("table.decided").get_by_text("nothing changed").first.wait_for()
    assert "show=all" in page.url
    assert rows.count() > before


def test_prices_over_time_are_read_by_keys_with_their_unit(page: Any) -> None:
    page.goto("/decisions")
    picture = page.get_by_role("slider", name="Price over time, in the unit of the policy's objective")
    picture.focus()
    picture.press("End")
    assert re.search(r"for one more (t4|a100|rtx2080ti)", picture.get_attribute("aria-valuetext"))
    page.get_by_label("Back").select_option("24 h")
    assert "hours=24" in page.url
    assert fits(page)


def test_usage_is_asked_by_period_and_column_with_its_command(page: Any) -> None:
    page.goto("/people")
    page.locator("label", has_text="By").locator("select").select_option(label="queue")
    page.locator("label", has_text="Period").locator("select").select_option(label="7 days")
    assert {"by=queue", "period=7d"} <= set(page.url.partition("?")[2].split("&"))
    page.get_by_text(re.compile(r"stretto usage --by queue --from \d{4}-\d\d-\d\d --zone \S+")).wait_for()
    page.locator("section[aria-labelledby=usage] tbody th", has_text="no queue").wait_for()
    assert fits(page)
    page.reload()
    page.locator("section[aria-labelledby=usage] tbody th", has_text="no queue").wait_for()
    assert page.locator("label", has_text="Period").locator("select").input_value() == "7d"


def test_the_page_of_a_job_shows_its_sizes_and_what_resizes_cost(page: Any, running: Running) -> None:
    with running.client() as client:
        until(lambda: client.describe("1")["gpus"] > 0, what="it has GPUs")
        resizes = client.ask("GET", "/api/v1/jobs/1/training")["resizes"]
    page.goto("/jobs/1")
    rows = page.get_by_role("region", name="resizes").locator("tbody tr")
    rows.first.wait_for()
    assert rows.count() >= len(resizes) > 0
    assert rows.last.locator("td").nth(3).inner_text() == "start"
    rows.last.get_by_text("sia decided so: a job was submitted or released").wait_for()
    assert fits(page)
