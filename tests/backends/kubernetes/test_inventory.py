"""GPUs of nodes: how many, of which type, and what keeps our pods away."""

import msgspec
import pytest

from stretto.backends.kubernetes.inventory import (
    gpus_of,
    gpus_requested,
    keeps_away,
    node_state,
    quantity,
    short_type,
)
from stretto.backends.kubernetes.objects import Node, Pod, Taint


def a_node(**changes: object) -> Node:
    """A ready node of eight GPUs, as the API shows it."""
    node = {
        "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "spec": {},
        "status": {
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "63500m", "memory": "256Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [
                {"type": "Hostname", "address": "n1"},
                {"type": "InternalIP", "address": "10.0.0.7"},
            ],
        },
    }
    for key, value in changes.items():
        section, _, name = key.partition("_")
        node[section] = {**node[section], name: value}  # type: ignore[dict-item]
    return msgspec.convert(node, Node)


def a_pod(phase: str = "Running", requests: tuple[int, ...] = (2,), first: tuple[int, ...] = ()) -> Pod:
    """A pod whose containers ask for GPUs; `first`: what its init containers ask for."""

    def containers(gpus: tuple[int, ...]) -> list[object]:
        return [{"name": str(each), "resources": {"limits": {"nvidia.com/gpu": str(each)}}} for each in gpus]

    spec = {"nodeName": "n1", "containers": containers(requests), "initContainers": containers(first)}
    return msgspec.convert({"spec": spec, "status": {"phase": phase}}, Pod)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8.0),
        ("500m", 0.5),
        ("256Gi", 256 * 2.0**30),
        ("1e3", 1000.0),
        ("2k", 2000.0),
        ("", 0.0),
        ("many", 0.0),
        ("1.5Ti", 1.5 * 2.0**40),
        ("3Zi", 0.0),
    ],
)
def test_quantities_are_read_as_the_api_writes_them(text: str, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", "h100"),
        ("Tesla-T4", "t4"),
        ("NVIDIA-A100-SXM4-80GB", "a100"),
        ("nvidia-tesla-v100", "v100"),
        ("nvidia-l4", "l4"),
        ("NVIDIA-RTX-A6000", "rtxa6000"),
        ("NVIDIA-L40S", "l40s"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "a100-1g.5gb"),
        ("NVIDIA-A10-SHARED", "a10"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "a100-1g.5gb"),
        ("AMD_Instinct_MI300X_OAM", "mi300x"),
        ("NVIDIA-GeForce-RTX-2080-Ti", "rtx2080ti"),
        ("something-new", "something-new"),
    ],
)
def test_products_have_the_names_that_people_use(product: str, name: str) -> None:
    assert short_type(product) == name


def test_gpus_are_counted_by_what_the_node_can_give_and_not_by_labels() -> None:
    assert (gpus_of(a_node()).count, gpus_of(a_node()).type) == (8, "h100")
    without = gpus_of(a_node(status_allocatable={"cpu": "64"}))
    assert (without.count, without.type) == (0, "h100")
    assert "device plug-in" in without.remark


def test_the_label_and_the_resource_may_be_named() -> None:
    node = a_node(
        metadata_labels={"team/gpu": "Tesla-T4"}, status_allocatable={"amd.com/gpu": "2", "x/gpu": "4"}
    )
    assert (gpus_of(node).resource, gpus_of(node).type) == ("amd.com/gpu", "gpu")
    named = gpus_of(node, ("x/gpu",), "team/gpu")
    assert (named.count, named.type, named.resource) == (4, "t4", "x/gpu")


@pytest.mark.parametrize(
    ("labels", "allocatable", "words"),
    [
        (
            {"nvidia.com/gpu.product": "NVIDIA-A10", "nvidia.com/gpu.replicas": "4"},
            {"nvidia.com/gpu": "4"},
            "time-sliced among 4",
        ),
        ({"nvidia.com/gpu.product": "NVIDIA-A10-SHARED"}, {"nvidia.com/gpu": "4"}, "time-sliced"),
        (
            {"nvidia.com/gpu.product": "NVIDIA-A10", "nvidia.com/gpu.sharing-strategy": "mps"},
            {"nvidia.com/gpu": "10"},
            "shared by MPS",
        ),
        (
            {
                "cloud.google.com/gke-accelerator": "nvidia-l4",
                "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
                "cloud.google.com/gke-max-shared-clients-per-gpu": "3",
            },
            {"nvidia.com/gpu": "3"},
            "time-sliced among 3",
        ),
        (
            {"nvidia.com/gpu.product": "A100-SXM4-40GB-MIG-1g.5gb"},
            {"nvidia.com/gpu": "7"},
            "MIG instance",
        ),
        (
            {"cloud.google.com/gke-gpu-partition-size": "1g.5gb"},
            {"nvidia.com/gpu": "7"},
            "MIG instance",
        ),
        (
            {"amd.com/compute-memory-partition": "cpx_nps4"},
            {"amd.com/gpu": "64"},
            "a partition of one: cpx_nps4",
        ),
        ({"amd.com/compute-memory-partition": "spx_nps1"}, {"amd.com/gpu": "8"}, ""),
        (
            {},
            {"nvidia.com/mig-3g.20gb": "2", "nvidia.com/mig-1g.5gb": "1", "nvidia.com/mig-2g.10gb": "0"},
            "in parts (nvidia.com/mig-1g.5gb, nvidia.com/mig-3g.20gb), which are not used",
        ),
        (
            {},
            {"nvidia.com/gpu": "4", "nvidia.com/mig-3g.20gb": "8"},
            "(nvidia.com/mig-3g.20gb), which are not used: --gpu-resource nvidia.com/mig-3g.20gb",
        ),
        ({}, {"nvidia.com/gpu.shared": "16"}, "--gpu-resource nvidia.com/gpu.shared would use these"),
        ({}, {"amd.com/cpx_nps1": "24", "amd.com/spx_nps1": "5"}, "(amd.com/cpx_nps1, amd.com/spx_nps1)"),
    ],
)
def test_shared_and_partitioned_gpus_are_said_to_be(
    labels: dict[str, str], allocatable: dict[str, str], words: str
) -> None:
    remark = gpus_of(a_node(metadata_labels=labels, status_allocatable=allocatable)).remark
    assert words in remark
    assert bool(words) == bool(remark)


@pytest.mark.parametrize(
    ("labels", "resource", "gpu_type"),
    [
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, "nvidia.com/gpu", "h100"),
        ({"k8s.amazonaws.com/accelerator": "nvidia-tesla-a10g"}, "nvidia.com/gpu", "a10g"),
        ({"karpenter.k8s.aws/instance-gpu-name": "h200"}, "nvidia.com/gpu", "h200"),
        ({"eks.amazonaws.com/instance-gpu-name": "l40s"}, "nvidia.com/gpu", "l40s"),
        ({"karpenter.azure.com/sku-gpu-name": "A100"}, "nvidia.com/gpu", "a100"),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "amd.com/gpu", "mi300x"),
        ({"beta.amd.com/gpu.product-name": "AMD_Instinct_MI210"}, "amd.com/gpu", "mi210"),
        ({"gpu.intel.com/product": "Max_1550"}, "gpu.intel.com/i915", "max-1550"),
        ({"accelerator": "nvidia"}, "nvidia.com/gpu", "nvidia"),
        (
            {
                "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
                "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
            },
            "nvidia.com/gpu",
            "a100-1g.5gb",
        ),
        (
            {
                "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
                "amd.com/compute-memory-partition": "cpx_nps4",
            },
            "amd.com/gpu",
            "mi300x-cpx_nps4",
        ),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}, "nvidia.com/mig-3g.20gb", "a100-3g.20gb"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}, "nvidia.com/gpu.shared", "a100"),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "amd.com/spx_nps1", "mi300x"),
    ],
)
def test_types_follow_the_labels_of_each_convention(
    labels: dict[str, str], resource: str, gpu_type: str
) -> None:
    found = gpus_of(a_node(metadata_labels=labels, status_allocatable={resource: "4"}), (resource,))
    assert (found.type, found.count, found.resource) == (gpu_type, 4, resource)


def test_other_pods_hold_what_they_ask_for_until_they_have_ended() -> None:
    assert gpus_requested(a_pod(), "nvidia.com/gpu") == 2
    assert gpus_requested(a_pod("Pending", (1, 2)), "nvidia.com/gpu") == 3
    assert gpus_requested(a_pod("Running", (1,), first=(4,)), "nvidia.com/gpu") == 4
    assert gpus_requested(a_pod("Succeeded"), "nvidia.com/gpu") == 0
    assert gpus_requested(a_pod(), "amd.com/gpu") == 0


def test_a_ready_node_is_up_with_its_address() -> None:
    node = a_node()
    state = node_state(node, gpus_of(node), 3, [])
    assert (state.name, state.gpus, state.others, state.up, state.shut) == ("n1", 8, 3, True, "")
    assert (state.address, state.cpus, state.memory_gb) == ("10.0.0.7", 63, 256.0)


@pytest.mark.parametrize(
    ("labels", "zone", "rack", "nvlink_domain"),
    [
        ({}, "", "", ""),
        ({"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/rack": "r7"}, "a", "r7", ""),
        ({"failure-domain.beta.kubernetes.io/zone": "b"}, "b", "", ""),
        ({"nvidia.com/gpu.clique": "7f3c.1"}, "", "", "7f3c.1"),
        (
            {"fabric.topograph.run/tier-0": "leaf-1", "accelerator.topograph.run/domain": "nvl1"},
            "",
            "leaf-1",
            "nvl1",
        ),
        ({"network.topology.nvidia.com/leaf": "s1"}, "", "s1", ""),
        ({"cloud.google.com/gce-topology-subblock": "sb4"}, "", "sb4", ""),
        (
            {
                "topology.k8s.aws/network-node-layer-1": "nn-1",
                "topology.k8s.aws/network-node-layer-3": "nn-3",
            },
            "",
            "nn-3",
            "",
        ),
        (
            {
                "topology.k8s.aws/network-node-layer-3": "nn-3",
                "topology.k8s.aws/network-node-layer-4": "nn-4",
            },
            "",
            "nn-4",
            "",
        ),
    ],
)
def test_labels_say_where_a_node_is(labels: dict[str, str], zone: str, rack: str, nvlink_domain: str) -> None:
    node = a_node(metadata_labels=labels)
    state = node_state(node, gpus_of(node), 0, [])
    assert (state.zone, state.rack, state.nvlink_domain) == (zone, rack, nvlink_domain)


def test_the_label_of_racks_may_be_named() -> None:
    node = a_node(metadata_labels={"topology.kubernetes.io/rack": "r7", "team/row": "east"})
    assert node_state(node, gpus_of(node), 0, [], rack_label="team/row").rack == "east"


@pytest.mark.parametrize(
    ("changes", "up", "dead", "shut", "why"),
    [
        ({"spec_unschedulable": True}, True, False, "cordoned", ""),
        (
            {"spec_taints": [{"key": "team", "effect": "NoSchedule"}]},
            True,
            False,
            "its taint team:NoSchedule keeps pods away that do not tolerate it",
            "",
        ),
        (
            {"spec_taints": [{"key": key, "effect": "NoExecute"} for key in ("team", "spot")]},
            True,
            False,
            "its taints team:NoExecute, spot:NoExecute keep pods away that do not tolerate them",
            "",
        ),
        ({"spec_taints": [{"key": "team", "effect": "PreferNoSchedule"}]}, True, False, "", ""),
        (
            {"spec_taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]},
            False,
            True,
            "",
            "out-of-service",
        ),
        (
            {"status_conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]},
            False,
            False,
            "",
            "NodeStatusUnknown",
        ),
        ({"status_conditions": []}, False, False, "", "says nothing"),
    ],
)
def test_what_keeps_a_node_from_use_is_said(
    changes: dict[str, object], up: bool, dead: bool, shut: str, why: str
) -> None:
    node = a_node(**changes)
    state = node_state(node, gpus_of(node), 0, [])
    assert (state.up, state.dead, state.shut) == (up, dead, shut)
    assert why in state.why
    # Where it is the taint alone, jobs that tolerate it may use the node all the same.
    named = tuple(word.strip(",") for word in shut.split() if ":" in word)
    assert state.taints == named


def test_a_node_that_is_listed_no_more_is_dead() -> None:
    state = node_state(a_node(), gpus_of(a_node()), 0, [], gone=True)
    assert (state.up, state.dead) == (False, True)


@pytest.mark.parametrize(
    ("toleration", "away"),
    [
        ({"key": "gpu", "operator": "Exists"}, False),
        ({"operator": "Exists"}, False),
        ({"key": "gpu", "value": "a"}, False),
        ({"key": "gpu", "value": "b"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, True),
        ({"key": "other", "operator": "Exists"}, True),
    ],
)
def test_a_taint_keeps_away_what_does_not_tolerate_it(toleration: dict[str, str], away: bool) -> None:
    assert keeps_away(Taint("gpu", "a", "NoSchedule"), [toleration]) is away
