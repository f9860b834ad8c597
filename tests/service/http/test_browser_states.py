"""States that a page has words for, in a real browser: of nodes, of held jobs, of jobs with a remark."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.fake_backend import FakeBackend
from tests.service.http.chromium import CHROMIUM, JOB, PATIENCE_MS, QUIET, fits
from tests.service.http.rig import Rig, a_rig, play
from tests.service.running import Running

from stretto.demo.own_service import until
from stretto.service.state.size_changes import DUE
from stretto.service.state.status import BEGINS_ANEW

pytestmark = [pytest.mark.processes, pytest.mark.large]

STATIC = Path(__file__).parents[3] / "src/stretto/service/http/static"


def seen_of_nodes(url: str) -> tuple[dict[str, tuple[str, str]], str, int]:
    """Of each node what its bar and its note say; what is said of their type; parts of hidden jobs."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        page = browser.new_page(base_url=url)
        page.set_default_timeout(PATIENCE_MS)
        page.goto("/")
        page.locator(".node").nth(3).wait_for()
        nodes = {
            each.locator(".name").inner_text(): (
                each.locator(".bar").inner_text().strip(),
                ", ".join(each.locator(".note").all_inner_texts()),
            )
            for each in page.locator(".node").all()
        }
        card = page.locator(".card p.quiet").first.inner_text()
        hidden = page.locator(".node .hidden-job").count()
        browser.close()
    return nodes, card, hidden


async def set_apart(rig: Rig, backend: FakeBackend) -> None:
    """One node is cordoned, one is drained, one is with its lender, one is down."""
    async with rig.client("root") as root:
        await root.post("/api/v1/nodes/n0/cordon", json={"why": "fan is loud"})
        await root.post("/api/v1/nodes/n1/drain", json={"why": "new disks"})
        await root.put("/api/v1/lenders/search", json={"nodes": ["n2"], "headroom": 0.0})
        await root.post("/api/v1/lenders/search/need", json={"nodes": 1})
    await backend.set_up("n3", False)
    state = rig.service.state
    await rig.until(lambda: not state.nodes[3].up and state.nodes[2].lender and not state.nodes[2].on_loan)


def test_nodes_that_are_apart_have_the_words_of_the_command_line_and_their_reason(tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    backend = FakeBackend(nodes_count=4)

    async def story() -> None:
        rig_of = a_rig(tmp_path, backend=backend, open_on_loopback=True)
        async with rig_of as rig, rig.listening() as (host, port):
            await set_apart(rig, backend)
            nodes, card, hidden = await asyncio.to_thread(seen_of_nodes, f"http://{host}:{port}")
        assert nodes == {
            "n0": ("4", "cordoned: fan is loud"),
            "n1": ("4", "drained: new disks"),
            "n2": ("", "search has it"),
            "n3": ("", "down: does not answer"),
        }
        assert hidden == 0, "nothing runs on the lender's node"
        assert card == "0 free, 12 cordoned or down, 4 with their lender"

    play(story)


def test_pages_and_lists_give_the_same_words_for_why_a_decision_was_due() -> None:
    said = (STATIC / "decisions.js").read_text(encoding="utf-8")
    assert [words for words in DUE.values() if f'"{words}"' not in said] == []


@pytest.fixture
def held(running: Running) -> Iterator[str]:
    """A job that is held."""
    with running.client() as client:
        name = str(client.submit(JOB.replace("NAME", "held-back"))["id"])
        client.change(name, "hold")
        until(lambda: client.describe(name)["reason"] == "HELD", what="it is held")
        yield name
        client.change(name, "cancel")
        client.wait(name)


def test_a_held_job_says_what_lets_it_start_and_names_no_holders(page: Any, held: str) -> None:
    page.goto(f"/jobs/{held}")
    page.get_by_text(f"stretto release {held}").wait_for()
    assert page.get_by_role("region", name="jobs that hold GPUs that suit it").count() == 0
    assert fits(page)


def test_the_remark_of_a_job_is_on_its_page(page: Any) -> None:
    def with_remark(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "remark": BEGINS_ANEW})

    page.route("**/api/v1/jobs/1", with_remark)
    page.goto("/jobs/1")
    said = page.locator(".why-box")
    said.get_by_text("without the SDK").wait_for()
    assert said.locator("code").inner_text() == "elastic"
    assert fits(page)
    page.unroute_all(behavior="ignoreErrors")  # the page may just be asking again


def test_all_pages_are_in_sight_in_the_navigation(page: Any) -> None:
    page.goto("/")
    page.get_by_text("live", exact=True).wait_for()
    bar = page.get_by_role("navigation", name="pages")
    assert bar.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_a_long_name_gives_way_to_the_id_of_its_job(page: Any, running: Running) -> None:
    with running.client() as client:
        name = str(client.submit(JOB.replace("NAME", "a-name-of-many-words-" + "and-more-" * 4))["id"])
        try:
            for path, row in (("/queue", "th.who"), ("/timeline?ahead=0", ".lane .who")):
                page.goto(path)
                cell = page.locator(row, has=page.locator(f"a[href='/jobs/{name}']"))
                shown = cell.locator("a .quiet")
                shown.wait_for()
                ends = "e => e.getBoundingClientRect().right"
                assert shown.evaluate(ends) <= cell.evaluate(ends)
                assert fits(page)
        finally:
            client.change(name, "cancel")
            client.wait(name)


def test_of_jobs_too_small_to_be_seen_in_the_sum_none_has_a_colour_there(page: Any) -> None:
    def many(route: Any) -> None:
        answer = route.fetch()
        shown = answer.json()
        areas = [{**each, "held": [1.0 for _ in shown["held"]]} for each in shown["areas"]]
        route.fulfill(response=answer, json={**shown, "gpus": 1024, "areas": areas})

    page.route("**/api/v1/timeline?*", many)
    page.goto("/timeline?ahead=0")
    page.get_by_text("Dotted: all 1,024 GPUs of the cluster. Grey: jobs, each too small").wait_for()
    assert page.locator(".sum .area").count() == 0
    page.locator(".sum .y-axis", has_text="1,000").wait_for()
    assert fits(page)
    page.unroute_all(behavior="ignoreErrors")
