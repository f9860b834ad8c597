"""What an agent says of its machine."""

import os
import sys
from types import SimpleNamespace

import pytest

from stretto.agent.node import NvidiaDriver, this_node, type_name

from .agents import Agent


def driver(count: int, name: str | bytes) -> SimpleNamespace:
    """Stands in for nvidia-ml-py with a driver beneath it."""
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: name,
    )


@pytest.mark.processes
def test_a_node_says_what_it_has(agent: Agent) -> None:
    node = agent.ask("GET", "/v1/node").json()
    assert (node["name"], node["gpus"], node["gpu_type"]) == ("n1", 4, "t")
    assert node["cpus"] == len(os.sched_getaffinity(0))
    assert node["memory_gb"] > 0


def test_real_gpus_are_shown_to_workers_by_their_place_on_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(4, b"NVIDIA A100-SXM4-80GB"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    node = this_node("n", None, "")
    assert (node.gpus, node.gpu_type) == (4, "a100")
    assert node.environment([1, 3]) == {"CUDA_VISIBLE_DEVICES": "1,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert node.environment([]) == {"CUDA_VISIBLE_DEVICES": "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_an_agent_gives_only_those_gpus_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(8, "Tesla V100-SXM2-16GB"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    node = this_node("n", None, "mine")
    assert (node.gpus, node.gpu_type) == (2, "mine")
    assert node.environment([1])["CUDA_VISIBLE_DEVICES"] == "5"


def test_places_without_gpus_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(4, "NVIDIA H100"))
    assert this_node("n", 2, "t").environment([0]) == {}


def test_a_machine_without_gpus_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ValueError, match="--gpus"):
        this_node("n", None, "")


@pytest.mark.parametrize(
    ("product", "name"),
    [("NVIDIA H200", "h200"), ("Tesla T4", "t4"), ("NVIDIA A100-PCIE-40GB", "a100"), ("", "gpu")],
)
def test_a_product_has_a_short_name(product: str, name: str) -> None:
    assert type_name(product) == name


def test_what_a_driver_reserves_for_itself_is_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(handle: int, version: int = 1) -> SimpleNamespace:
        return SimpleNamespace(used={1: 645 << 20, 2: 30 << 20}[version], total=80 << 30)

    nvml = driver(1, "NVIDIA H200")
    nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlMemory_v2 = memory, 2
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert NvidiaDriver().use_of("0") == (None, 30 << 20, 80 << 30)
    del nvml.nvmlMemory_v2  # bindings that know the first kind of answer only
    assert NvidiaDriver().use_of("0") == (None, 645 << 20, 80 << 30)
