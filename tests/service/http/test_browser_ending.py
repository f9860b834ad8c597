"""GPUs on which nothing but the last of a worker is left, in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.chromium import fits
from tests.service.running import Running

from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.large]


@pytest.fixture(scope="module")
def goes_on(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A worker that was told to end goes on as long as this file is there."""
    path = tmp_path_factory.mktemp("goes") / "on"
    path.touch()
    return path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, goes_on: Path) -> Iterator[Running]:
    """A service whose only node is drained, while a worker there does not end."""
    service = Running(tmp_path_factory.mktemp("ending"), "--policy", "fifo", "--slots", "2")
    script = f"trap : TERM; touch {goes_on}.ready; while [ -e {goes_on} ]; do sleep 0.1; done"
    try:
        service.begin()
        with service.client() as client:
            until(client.nodes, what="the node is there")
            client.submit(f"run: '{script}'\nname: stubborn\ngrace_period: 1h\n")
            until(Path(f"{goes_on}.ready").exists, what="it would not end")
            client.close_node(client.nodes()[0]["name"], closed=True, drain=True)
            until(lambda: client.nodes()[0]["ending"], what="it was told to")
        yield service
    finally:
        goes_on.unlink()
        service.end()


def test_the_cluster_shows_gpus_as_ending_that_a_worker_has_not_left_yet(page: Any, running: Running) -> None:
    with running.client() as client:
        (node,) = client.nodes()
    assert (node["ending"], node["free"], node["jobs"]) == (1, node["gpus"] - 1, {})
    page.goto("/")
    page.locator(".node .part.ending", has_text="1").wait_for()
    assert page.locator(".node .part.hidden-job").count() == 0
    assert fits(page)
