"""Agents that run, with state directories of their own."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .agents import Agent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    yield from running(tmp_path / "state")


@pytest.fixture(scope="module")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """For tests that leave no worker behind."""
    yield from running(tmp_path_factory.mktemp("shared") / "state")


def running(state: Path) -> Iterator[Agent]:
    agent = Agent(state).begin()
    try:
        yield agent
    finally:
        agent.end()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB; skips where this user may not mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
