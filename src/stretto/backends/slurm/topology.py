"""Where in the network a node is: its switches or its block, as `scontrol show topology` prints them.

A rack is what hangs on one leaf switch of `topology/tree`, and a zone what hangs on one switch of the level
above. Jobs are rarely larger than that. A block of `topology/block` (Slurm 23.11 and newer) is meant for
nodes that reach each other's GPUs by NVLink, and counts as such a domain.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from stretto.backends.node_topology import NOWHERE, NodeTopology
from stretto.backends.slurm.parsers import pairs_in

LEVELS = {"0": "rack", "1": "zone"}  # of switches
NAMES = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")  # of a hostlist: commas within brackets part no names
RANGES = re.compile(r"([^\[]*)\[([^\]]*)\](.*)")


def topology_in(text: str) -> dict[str, NodeTopology]:
    """By node, of the lines of `scontrol show topology`; of a node that they do not name nothing is known."""
    where: dict[str, NodeTopology] = {}
    for pairs in map(pairs_in, text.splitlines()):
        if "SwitchName" in pairs:
            level, name = LEVELS.get(pairs.get("Level", "")), pairs["SwitchName"]
        else:
            level, name = "nvlink_domain", pairs.get("BlockName", "")
        if level and name:
            for node in hosts_in(pairs.get("Nodes", "")):
                where[node] = replace(where.get(node, NOWHERE), **{level: name})
    return where


def hosts_in(hostlist: str) -> Iterator[str]:
    """The names of a text like `a[1-3,07],r[1-2]n[1-2],v1`; what is in parentheses, as `(null)`, is none."""
    for name in NAMES.findall(hostlist):
        if not name.startswith("("):
            yield from _expanded(name)


def _expanded(name: str) -> Iterator[str]:
    if not (matched := RANGES.fullmatch(name)):
        yield name
        return
    before, ranges, behind = matched.groups()
    rest = list(_expanded(behind))
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            for number in range(int(first), int(last or first) + 1):
                yield from (f"{before}{number:0{len(first)}}{end}" for end in rest)
