"""A tainted node is no cordoned one: jobs that tolerate its taints use it. All that shows nodes says so."""

import asyncio
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, RenderableType
from tests.service.fake_backend import FakeBackend
from tests.service.http.chromium import CHROMIUM, PATIENCE_MS, QUIET
from tests.service.http.rig import Rig, a_rig, play

from stretto.cli.cluster import state_of_node, table_of_nodes
from stretto.cli.top import screen

TAINTS = ("team=a:NoSchedule", "spot:NoExecute")
WHY = "its taints team=a:NoSchedule, spot:NoExecute keep pods away that do not tolerate them"


def tainted() -> FakeBackend:
    """Of two nodes with four GPUs each the second is tainted."""
    backend = FakeBackend()
    backend.known["n1"] = replace(backend.known["n1"], shut=WHY, taints=TAINTS)
    return backend


def as_text(frame: RenderableType) -> str:
    console = Console(width=160, file=StringIO())
    with console.capture() as captured:
        console.print(frame)
    return captured.get()


async def shown(rig: Rig) -> list[dict[str, Any]]:
    async with rig.client("olga") as olga:
        nodes: list[dict[str, Any]] = (await olga.get("/api/v1/nodes")).json()["nodes"]
        return nodes


async def by_state(rig: Rig, name: str) -> dict[str, float]:
    """A figure of Prometheus by state, where it is not 0."""
    async with rig.client("olga") as olga:
        text = (await olga.get("/metrics")).text
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {each.labels["state"]: each.value for each in samples if each.name == name and each.value}


@pytest.mark.sqlite
def test_lists_and_figures_have_a_word_of_their_own_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, backend=tainted(), decides=False) as rig:
            plain, other = await shown(rig)
            assert (plain["taints"], other["taints"]) == ([], [*TAINTS])
            assert other["closed"], "whoever knows nothing of taints is not to count on it"
            header, rows = table_of_nodes([plain, other])
            states = [dict(zip(header, row, strict=True)) for row in rows]
            assert [(each["state"], each["why"]) for each in states] == [("up", "-"), ("tainted", WHY)]
            seen = as_text(screen([plain, other], [], {}, {}, 160, 40))
            assert "tainted: team=a:NoSchedule, spot:NoExecute" in seen
            assert await by_state(rig, "stretto_nodes") == {"open": 1.0, "tainted": 1.0}
            assert await by_state(rig, "stretto_gpus") == {"free": 4.0, "tainted": 4.0}

    play(story)


@pytest.mark.sqlite
@pytest.mark.parametrize(("verb", "word"), [("cordon", "cordoned"), ("drain", "drained")])
def test_one_that_somebody_has_closed_as_well_is_closed_to_all(tmp_path: Path, verb: str, word: str) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, backend=tainted(), decides=False) as rig, rig.client("olga") as olga:
            closed = (await olga.post(f"/api/v1/nodes/n1/{verb}")).json()
            assert (state_of_node(closed), closed["taints"]) == (word, [])
            assert await by_state(rig, "stretto_nodes") == {"open": 1.0, "closed": 1.0}
            opened = (await olga.post("/api/v1/nodes/n1/uncordon")).json()
            assert (state_of_node(opened), opened["taints"]) == ("tainted", [*TAINTS])

    play(story)


def seen_in_a_browser(url: str) -> dict[str, str]:
    """Notes beside nodes, by node, and what is said of the type of their GPUs."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        page = browser.new_page(base_url=url)
        page.set_default_timeout(PATIENCE_MS)
        page.goto("/")
        page.locator(".node").nth(1).wait_for()
        nodes = [(each.locator(".name"), each.locator(".note")) for each in page.locator(".node").all()]
        said = {name.inner_text(): ", ".join(notes.all_inner_texts()) for name, notes in nodes}
        shut = {"shut": str(page.locator(".node.shut").count())}
        type_of = {"type": page.locator(".card p.quiet").first.inner_text()}
        browser.close()
    return {**said, **shut, **type_of}


@pytest.mark.processes
@pytest.mark.slow
def test_the_dashboard_names_its_taints(tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")

    async def story() -> None:
        rig_of = a_rig(tmp_path, backend=tainted(), decides=False, open_on_loopback=True)
        async with rig_of as rig, rig.listening() as (host, port):
            seen = await asyncio.to_thread(seen_in_a_browser, f"http://{host}:{port}")
        expected = {"n0": "", "n1": f"tainted: {', '.join(TAINTS)}", "shut": "0"}
        assert seen == {**expected, "type": "4 free, 4 free on tainted nodes"}

    play(story)
