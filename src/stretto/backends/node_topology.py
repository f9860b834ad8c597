"""Where in the network a node is, in the words that all clusters share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """Each "" where the cluster does not say it."""

    zone: str = ""
    rack: str = ""  # the smallest group of nodes below one switch
    nvlink_domain: str = ""


NOWHERE = NodeTopology()
