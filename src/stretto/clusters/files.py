"""Reading and writing cluster files, and clusters by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from stretto.clusters.built_in import built_in_clusters, document_of
from stretto.clusters.entries import read_text, read_yaml
from stretto.clusters.parse import ClusterFile, Lender, cluster_file_of
from stretto.model import Cluster, InputError, Node
from stretto.suggestions import did_you_mean


def read_cluster(source: Path | str) -> Cluster:
    """The cluster in a file, or the built-in one of that name. Raises InputError."""
    return read_cluster_file(source).cluster


def read_cluster_file(source: Path | str) -> ClusterFile:
    """As `read_cluster`, with the lenders. A built-in name comes before a file of the same name."""
    built_in = built_in_clusters()
    name = str(source)
    if name in built_in:
        return cluster_file_of(document_of(built_in[name]), name, name)
    path = Path(source)
    if not path.exists():
        hint = did_you_mean(name, built_in)
        raise InputError(f"no cluster file and no built-in cluster is called {name!r}, {hint}")
    return cluster_file_of(read_yaml(read_text(path), name), name, path.stem)


def write_cluster(cluster: Cluster, path: Path | str, lenders: Sequence[Lender] = ()) -> None:
    """Write a cluster file that `read_cluster` reads back as an equal cluster. Raises InputError.

    lenders: what is known of those named by the cluster's nodes; a lender has nodes of one kind, at the end.
    """
    text = yaml.safe_dump(_document(cluster, lenders), sort_keys=False, default_flow_style=None, width=10_000)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def _document(cluster: Cluster, lenders: Sequence[Lender]) -> dict[str, Any]:
    types = {
        gpu_type.name: {
            "memory_gb": gpu_type.memory_gb,
            "speed": gpu_type.speed,
            "aliases": list(gpu_type.aliases),
            "max_nodes_per_job": gpu_type.max_nodes_per_job,
            "stand_ins": gpu_type.stand_ins,
        }
        for gpu_type in cluster.types
    }
    by_name = {lender.name: lender for lender in lenders}
    own: list[dict[str, Any]] = []
    lent: list[dict[str, Any]] = []
    for nodes in _runs(cluster.nodes):
        first = nodes[0]
        entry: dict[str, Any] = {
            "type": first.gpu_type,
            "gpus": first.gpus,
            "count": len(nodes),
            "cpus": first.cpus,
            "memory_gb": first.memory_gb,
            "names": [str(node.id) for node in nodes],
        }
        if known := {level: name for level, name in zip(cluster.levels, first.domains, strict=False) if name}:
            entry["in"] = known
        if not first.lender:
            own.append(entry)
            continue
        lender = by_name.get(first.lender)
        more = {"demand": lender.demand, "headroom": lender.headroom} if lender else {}
        lent.append({"name": first.lender, **entry, **more})
    topology = {"topology": list(cluster.levels)} if cluster.levels else {}
    lenders_too = {"lenders": lent} if lent else {}
    return {"name": cluster.name, **topology, "gpu_types": types, "nodes": own, **lenders_too}


def _runs(nodes: Sequence[Node]) -> list[list[Node]]:
    """Neighbours that differ in nothing but their name."""
    runs: list[list[Node]] = []
    for node in nodes:
        if runs and _kind(runs[-1][0]) == _kind(node):
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs


def _kind(node: Node) -> tuple[str, int, int, float, str, tuple[str, ...]]:
    return node.gpu_type, node.gpus, node.cpus, node.memory_gb, node.lender, node.domains
