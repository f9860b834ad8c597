"""Where in the network a node is: its zone, its rack and its NVLink domain, where labels say so.

A rack is the smallest group of nodes below one switch that a convention names. Names of clouds are theirs;
the others are those of NVIDIA's Topograph.
"""

from collections.abc import Mapping, Sequence

from stretto.backends.node_topology import NodeTopology

ZONE_LABELS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
RACK_LABELS = (  # in this order
    "topology.kubernetes.io/rack",  # habit: Kubernetes itself has no word for it
    "fabric.topograph.run/tier-0",
    "network.topology.nvidia.com/leaf",  # of Topograph before 1.0
    "cloud.google.com/gce-topology-subblock",
    "topology.k8s.aws/network-node-layer-4",  # of those instances that have four layers
    "topology.k8s.aws/network-node-layer-3",
)
NVLINK_LABELS = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
)


def topology_of(labels: Mapping[str, str], rack_label: str = "") -> NodeTopology:
    """Where a node with these labels is. rack_label: the only one that names racks; "": RACK_LABELS."""
    return NodeTopology(
        _first(labels, ZONE_LABELS),
        _first(labels, (rack_label,) if rack_label else RACK_LABELS),
        _first(labels, NVLINK_LABELS),
    )


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
