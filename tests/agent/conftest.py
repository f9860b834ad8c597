"""An agent that runs, and a disk that is soon full."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .agents import Agent


@pytest.fixture(scope="module")
def module_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    agent = Agent(tmp_path_factory.mktemp("agent") / "state").begin()
    try:
        yield agent
    finally:
        agent.end()


@pytest.fixture
def agent(module_agent: Agent) -> Iterator[Agent]:
    """An agent without workers, which a test may kill and start again."""
    yield module_agent
    module_agent.clear()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB; skips where this user may not mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
