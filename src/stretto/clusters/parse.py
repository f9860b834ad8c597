"""A cluster file, checked entry by entry, becomes a cluster and the lenders that stand behind it."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stretto.clusters.entries import Entry, entry_of, items_of, place_of
from stretto.clusters.topology import Levels, levels_of
from stretto.model import Cluster, GpuType, InputError, Node, NodeId
from stretto.suggestions import did_you_mean

TOP_KEYS = ("name", "topology", "gpu_types", "nodes", "lenders")
TYPE_KEYS = ("memory_gb", "speed", "aliases", "max_nodes_per_job", "stand_ins")
NODE_KEYS = ("type", "gpus", "count", "cpus", "memory_gb", "names", "in")
LENDER_KEYS = (*NODE_KEYS, "name", "demand", "headroom")

LENDER_NAME = r"[A-Za-z0-9._-]{1,63}"  # it is a part of addresses, of marks on nodes and of metrics
MOST_NODES = 1_000_000  # chosen: far beyond any cluster; a slip should not fill the memory


@dataclass(frozen=True, slots=True)
class Lender:
    """A cluster that lends inference servers, and how much of them it needs itself (Lyra, section 4)."""

    name: str
    gpu_type: str
    gpus: int  # of each server
    count: int  # servers
    demand: str = ""  # file with the share of servers in use over time, as written; "" = none given
    headroom: float = 0.0  # share of the servers that is never lent


@dataclass(frozen=True)
class ClusterFile:
    """What a cluster file says. The nodes of lenders are among the nodes of the cluster, after its own."""

    cluster: Cluster
    lenders: tuple[Lender, ...] = ()


def cluster_file_of(document: Any, where: str, name: str) -> ClusterFile:
    """The content of a cluster file. `where` starts each message; `name` serves where the file gives none.

    Raises InputError for unknown and missing keys and for wrong values.
    """
    file = entry_of(document, where, TOP_KEYS)
    types = _types(entry_of(file.values.get("gpu_types", {}), f"{where}: gpu_types"))
    levels = levels_of(file)
    named: Counter[str] = Counter()  # how many nodes have been called after a type or lender
    nodes: list[Node] = []
    for number, item in enumerate(items_of(file, "nodes"), start=1):
        entry = entry_of(item, f"{where}: nodes, entry {number}", NODE_KEYS)
        gpu_type = _known_type(entry, types)
        nodes += _nodes(entry, gpu_type, gpu_type, "", named, levels)
    if not nodes:
        raise InputError(f"{file.at('nodes')}: nodes must have at least one entry")
    lenders: list[Lender] = []
    for number, item in enumerate(items_of(file, "lenders"), start=1):
        entry = entry_of(item, f"{where}: lenders, entry {number}", LENDER_KEYS)
        lender = _lender(entry, number, types)
        if any(lender.name == other.name for other in lenders):
            raise InputError(f"{entry.at('name')}: name must differ from other lenders, got {lender.name!r}")
        lenders.append(lender)
        nodes += _nodes(entry, lender.gpu_type, lender.name, lender.name, named, levels)
    used = dict.fromkeys(node.gpu_type for node in nodes)
    cluster = Cluster(
        name=file.text("name", default=name),
        types=tuple(types[gpu_type] for gpu_type in used),
        nodes=tuple(nodes),
        levels=levels.names,
    )
    return ClusterFile(cluster, tuple(lenders))


def lender_name(entry: Entry, default: str | None = None) -> str:
    """The name of a lender, as a service takes it. Raises InputError."""
    name = entry.text("name", default)
    if not re.fullmatch(LENDER_NAME, name):
        expected = "1 to 63 letters of ASCII, digits, dots, underscores and hyphens"
        raise InputError(f"{entry.at('name')}: name must be {expected}, got {name!r:.80}")
    return name


def _types(file: Entry) -> Mapping[str, GpuType]:
    types: dict[str, GpuType] = {}
    holder: dict[str, str] = {}  # name or alias -> the type that has it
    for name, item in file.values.items():
        entry = entry_of({} if item is None else item, f"{file.where}, {name}", TYPE_KEYS)
        gpu_type = GpuType(
            name=name,
            memory_gb=entry.number("memory_gb", default=16.0, above=0.0),
            speed=entry.number("speed", default=1.0, above=0.0),
            aliases=entry.texts("aliases"),
            max_nodes_per_job=entry.count("max_nodes_per_job", default=0, at_least=0),
            stand_ins=entry.count("stand_ins", default=1),
        )
        for word in (name, *gpu_type.aliases):
            if word in holder:
                place = place_of(file.values, entry.where, name)
                raise InputError(f"{place}: {word!r} already names the type {holder[word]!r}")
            holder[word] = name
        types[name] = gpu_type
    return types


def _known_type(entry: Entry, types: Mapping[str, GpuType]) -> str:
    name = entry.text("type")
    if name not in types:
        of_alias = [gpu_type.name for gpu_type in types.values() if name in gpu_type.aliases]
        hint = f"did you mean {of_alias[0]!r}?" if of_alias else did_you_mean(name, types)
        raise InputError(
            f"{entry.at('type')}: unknown gpu type {name!r}, {hint}" if types else _no_types(entry, name)
        )
    return name


def _no_types(entry: Entry, name: str) -> str:
    return f"{entry.at('type')}: unknown gpu type {name!r}, expected it among gpu_types, which is empty"


def _nodes(
    entry: Entry, gpu_type: str, called: str, lender: str, named: Counter[str], levels: Levels
) -> list[Node]:
    names = entry.texts("names")
    count = entry.count("count", default=len(names) or 1)
    if names and len(names) != count:
        raise InputError(f"{entry.at('names')}: names must be count={count} names, got {len(names)}")
    if count > MOST_NODES:
        raise InputError(f"{entry.at('count')}: count must be at most {MOST_NODES}, got {count}")
    if not names:
        names = tuple(f"{called}-{named[called] + index}" for index in range(count))
        named[called] += count
    gpus = entry.count("gpus")
    cpus = entry.count("cpus", default=0, at_least=0)
    memory_gb = entry.number("memory_gb", default=0.0)
    domains = levels.of_group(entry, count)
    return [
        Node(NodeId(name), gpu_type, gpus, cpus, memory_gb, lender, path)
        for name, path in zip(names, domains, strict=True)
    ]


def _lender(entry: Entry, number: int, types: Mapping[str, GpuType]) -> Lender:
    headroom = entry.number("headroom", default=0.0)
    if headroom >= 1:
        raise InputError(f"{entry.at('headroom')}: headroom must be a share below 1, got {headroom:g}")
    return Lender(
        name=lender_name(entry, default=f"lender{number}"),
        gpu_type=_known_type(entry, types),
        gpus=entry.count("gpus"),
        count=entry.count("count", default=len(entry.texts("names")) or 1),
        demand=entry.text("demand", default=""),
        headroom=headroom,
    )
