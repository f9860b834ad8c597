"""How busy GPUs are, in a real browser. NVIDIA's library is a stand-in: see `nvml_stand_in`."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.nvml_stand_in import say, stand_in
from tests.service.http.chromium import fits
from tests.service.running import Running

from stretto.agent.node import LOCK_FOLDERS
from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.large]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with two GPUs, and a job that does nothing with one of them."""
    folder: Path = tmp_path_factory.mktemp("gpus") / secrets.token_hex(8)
    folder.mkdir()
    env = stand_in(folder)
    say(folder, busy=1, used_gb=1.5)
    rule = ("--idle-below", "0.1", "--idle-after", "1s")
    service = Running(folder / "own", "--policy", "fifo", *rule, "--pass-env", "STAND_IN_NVML", env=env)
    try:
        service.begin()
        with service.client() as client:
            client.submit("run: sleep 3600\nname: sleepy\n")
            until(lambda: client.idle_holders()["idle"], what="it is an idle holder")
        yield service
    finally:
        service.end()
        for locks in LOCK_FOLDERS:
            for path in locks.glob(f"gpu-GPU-{folder.name}-*.lock"):
                path.unlink()


def test_the_cluster_shows_how_busy_gpus_are_and_names_idle_holders(page: Any) -> None:
    page.goto("/")
    page.locator(".node .note", has_text="busy 1 %").wait_for()
    page.get_by_text("busy 1 % of the time").wait_for()
    row = page.locator("section[aria-labelledby=idle] tbody tr")
    row.get_by_text("1.5 GB").wait_for()
    assert fits(page)
    row.get_by_role("link", name="sleepy").click()
    page.get_by_text("1 % of the time").wait_for()
    page.get_by_text("1.5 of 80 GB").wait_for()
    assert fits(page)
