"""What a job file may ask of Kubernetes."""

from typing import Any

import pytest

from stretto.jobfile.kubernetes_section import check_kubernetes, is_gpu
from stretto.model import InputError


def with_resources(kind: str, resource: str, containers: str = "containers") -> dict[str, Any]:
    return {containers: [{"name": "worker", "resources": {kind: {resource: "8"}}}]}


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"nodeName": "n1"}, "kubernetes.pod.nodeName: is set by Stretto"),
        (with_resources("limits", "nvidia.com/gpu"), "limits of nvidia.com/gpu: is set by Stretto"),
        (with_resources("requests", "amd.com/gpu", "initContainers"), "pod.initContainers: requests of amd"),
        (with_resources("limits", "nvidia.com/mig-3g.20gb"), "limits of nvidia.com/mig-3g.20gb"),
        ({"containers": 5}, "kubernetes.pod.containers must be a list of containers, got 5"),
        ({"resourceClaims": [{"name": "gpu"}]}, "kubernetes.pod.resourceClaims: devices of claims"),
        ({"priorityClassName": "system-node-critical"}, "priorityClassName: expected one that is not"),
    ],
)
def test_a_pod_may_not_take_what_nobody_counts(pod: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_kubernetes({"pod": pod})


@pytest.mark.parametrize(
    "pod",
    [
        with_resources("limits", "memory"),
        with_resources("limits", "rdma/hca"),
        {"containers": [{"name": "worker"}, "no object"], "priorityClassName": "batch"},
        {"securityContext": {"runAsUser": 1000}},
    ],
)
def test_what_is_no_gpu_is_its_owners_matter(pod: dict[str, Any]) -> None:
    check_kubernetes({"pod": pod})


def test_gpus_are_known_by_what_device_plugins_call_theirs() -> None:
    named = [
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "amd.com/gpu",
        "gpu.intel.com/i915",
        "aliyun.com/gpu-mem",
    ]
    assert all(map(is_gpu, named))
    assert not any(map(is_gpu, ["cpu", "memory", "ephemeral-storage", "rdma/hca", "hugepages-2Mi"]))
