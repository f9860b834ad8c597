"""How busy GPUs are, as an agent says it. NVIDIA's library is a stand-in: see `nvml_stand_in`."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.agents import Agent, until
from tests.agent.nvml_stand_in import say, stand_in

from stretto.agent.gpu_use import GpuUse, device_of_place
from stretto.agent.node import LOCK_FOLDERS, NvidiaDriver


class Told(NvidiaDriver):
    """Says one thing after the other of a GPU."""

    def __init__(self, *said: tuple[float | None, int, int] | None) -> None:
        self.said = list(said)

    def use_of(self, key: str) -> tuple[float | None, int, int] | None:
        return self.said.pop(0)


def shown(*said: tuple[float | None, int, int] | None) -> dict[str, Any] | None:
    use = GpuUse(("GPU-a",), Told(*said))
    for _ in said:
        use.take()
    return use.of_devices()[0]


def test_what_is_shown_is_the_mean_time_and_the_newest_memory() -> None:
    assert shown((0.0, 1, 8), (0.5, 2, 8), (1.0, 3, 8)) == {"busy": 0.5, "used_bytes": 3, "bytes": 8}
    assert shown((None, 1, 8), (None, 2, 8)) == {"busy": None, "used_bytes": 2, "bytes": 8}
    assert shown(None, None) is None


def test_old_samples_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("stretto.agent.gpu_use.time.monotonic", lambda: now[0])
    use = GpuUse(("GPU-a",), Told((1.0, 1, 8), (0.0, 2, 8), None))
    use.take()
    now[0] += 31.0
    use.take()
    assert use.of_devices() == [{"busy": 0.0, "used_bytes": 2, "bytes": 8}]
    now[0] += 31.0
    use.take()  # the driver says nothing any more
    assert use.of_devices() == [None]


@pytest.mark.parametrize(
    ("held", "devices"),
    [
        pytest.param({}, [0, 1, 2], id="each place means its own device"),
        pytest.param({0: 0, 2: 2}, [0, 1, 2], id="workers have those of their places"),
        pytest.param({0: 1}, [1, 0, 2], id="a worker has another: its own is that of the other place"),
        pytest.param({0: 2, 1: 0}, [2, 0, 1], id="the last place means what is left"),
    ],
)
def test_a_place_means_the_device_of_its_worker(held: dict[int, int], devices: list[int]) -> None:
    assert device_of_place(3, held) == devices


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / secrets.token_hex(8)
    folder.mkdir()
    yield folder
    for locks in LOCK_FOLDERS:
        for path in locks.glob(f"gpu-GPU-{folder.name}-*.lock"):
            path.unlink()


@pytest.mark.processes
def test_an_agent_tells_what_nvidias_library_says_of_each_gpu(machine: Path, tmp_path: Path) -> None:
    env = stand_in(machine)
    say(machine, busy=37)
    agent = Agent(tmp_path / "agent", gpus=None, env=env).begin()
    try:

        def use() -> Any:
            return agent.ask("GET", "/v1/workers").json()["use"]

        until(lambda: use()[0] is not None)
        first, second = use()
        assert first == {"busy": 0.37, "used_bytes": 500_000_000, "bytes": 80_000_000_000}
        assert second == {
            "busy": None,
            "used_bytes": 500_000_000,
            "bytes": 80_000_000_000,
        }
        say(machine, busy=100, used_gb=1.5)
        until(lambda: use()[0]["used_bytes"] == 1_500_000_000)
        assert 0.37 < use()[0]["busy"] < 1.0  # a mean
    finally:
        agent.end()


@pytest.mark.processes
def test_of_places_that_are_no_gpus_nothing_is_said(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent", gpus=2).begin()
    try:
        assert agent.ask("GET", "/v1/workers").json()["use"] == []
    finally:
        agent.end()
