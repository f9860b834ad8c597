"""A selector of a job's pods that some of its nodes do not meet is refused when it is submitted."""

from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.in_memory import backend_in_memory, until
from tests.backends.kubernetes.memory_server import a_node

from stretto.backends.protocol import NotNow, WorkerStart
from stretto.jobfile import JobSpec
from stretto.model import InputError

pytestmark = pytest.mark.sockets


def job(selector: Any, gpu_type: str = "") -> JobSpec:
    resources = {"accelerators": [{"gpu_type": gpu_type, "gpus": 1}]}
    section = {"pod": {"nodeSelector": selector}}
    return JobSpec.from_json({"run": "true", "name": "j", "resources": resources, "kubernetes": section})


@pytest.mark.parametrize(
    ("selector", "gpu_type", "words"),
    [
        ({"pool": "a"}, "h100", "1 of the 2 nodes of h100 have pool=a, and jobs get any of a type"),
        ({"disk": "nvme"}, "", "nodes of t4 have no disk=nvme: expected resources.accelerators to name h100"),
        ({"disk": "tape"}, "h100", "no node of h100 has disk=tape"),
        ({"disk": "tape"}, "", "no node of h100, t4 has disk=tape"),
        ("nvme", "", "expected labels of nodes, got 'nvme'"),
        ({"disk": "nvme"}, "h100", ""),
        ({"kubernetes.io/os": "linux"}, "", ""),
        ({}, "", ""),
        ({"disk": "nvme"}, "b300", ""),  # there is none yet
    ],
)
async def test_a_selector_suits_all_nodes_of_the_types_of_its_job(
    tmp_path: Path, selector: Any, gpu_type: str, words: str
) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        server.put("nodes", a_node("k2", gpus=1, product="Tesla-T4"))
        labels = {"k0": {"pool": "a", "disk": "nvme"}, "k1": {"disk": "nvme"}, "k2": {}}
        for name, own in labels.items():
            server.change("nodes", name, {"metadata": {"labels": {"kubernetes.io/os": "linux", **own}}})
        known = backend.node_informer.items
        await until(lambda: ("", "k2") in known and "kubernetes.io/os" in known["", "k2"].metadata.labels)
        if words:
            with pytest.raises(InputError, match=words) as refused:
                await backend.check(job(selector, gpu_type))
            assert str(refused.value).startswith("kubernetes.pod.nodeSelector: ")
        else:
            await backend.check(job(selector, gpu_type))


async def test_a_label_that_is_gone_since_is_named_when_a_worker_starts(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        asks = {"kubernetes": {"pod": {"nodeSelector": {"disk": "nvme"}}}}
        worker = WorkerStart("7.1.0", "7", "k0", (0,), ("true",), {}, asks=asks)
        with pytest.raises(NotNow, match="node k0 has no label disk=nvme, which its nodeSelector names"):
            await backend.start(worker)
        server.change("nodes", "k0", {"metadata": {"labels": {"disk": "nvme"}}})
        await until(lambda: "disk" in backend.node_informer.items["", "k0"].metadata.labels)
        assert (await backend.start(worker)).phase == "starting"
