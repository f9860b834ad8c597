"""What the log of a service says of nodes that were lent."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.service.running import Running


@dataclass(frozen=True)
class Return:
    """A node that went back to its lender. Times are by the service's clock."""

    node: str
    called_back_s: float  # when a settlement took it from training
    empty_s: float  # when the last worker there had ended; that time, where none was there
    handed_over_s: float  # when its cluster had been told, which the log says then

    @property
    def took_s(self) -> float:
        """From the settlement until the lender has it."""
        return self.handed_over_s - self.called_back_s

    @property
    def hand_over_s(self) -> float:
        """What of it is no worker's: to see that it is empty, tell the cluster, and write it down."""
        return self.handed_over_s - self.empty_s


def returns(log: Iterable[tuple[int, float, str, dict[str, Any]]]) -> list[Return]:
    """Every node that went back after it was on loan, in the order of hand-overs."""
    node_of: dict[str, str] = {}
    called_s: dict[str, float] = {}
    empty_s: dict[str, float] = {}
    done = []
    for _, at_s, kind, body in log:
        if kind == "WorkersWanted":
            node_of |= {worker["id"]: worker["node"] for worker in body["workers"]}
        elif kind == "WorkersEnded":
            empty_s |= {node_of[worker["id"]]: at_s for worker in body["workers"] if worker["id"] in node_of}
        elif kind == "Decided":
            called_s |= dict.fromkeys(body.get("loans", {}).get("returned", ()), at_s)
        elif kind == "NodesHandedOver" and body["to"]:
            for node in sorted(set(body["nodes"]) & called_s.keys()):
                since_s = called_s.pop(node)
                done.append(Return(node, since_s, max(empty_s.get(node, since_s), since_s), at_s))
    return done


def workers_with_lenders(running: Running) -> list[str]:
    """Workers that were to be on a node in its lender's hands, by the log from its beginning."""
    node_of: dict[str, str] = {}
    with_lender: set[str] = set()
    wrong = []
    for _, _, kind, body in running.log_of_all():
        if kind == "WorkersWanted":
            node_of |= {worker["id"]: worker["node"] for worker in body["workers"]}
        elif kind == "WorkersRan":
            wrong += [name for name in body["workers"] if node_of.get(name) in with_lender]
        elif kind == "WorkersEnded":
            for worker in body["workers"]:
                node_of.pop(worker["id"], None)
        elif kind == "NodesHandedOver":
            change = with_lender.update if body["to"] else with_lender.difference_update
            change(body["nodes"])
            wrong += [name for name, node in node_of.items() if node in with_lender]
    return wrong


def settled(running: Running, what: str) -> list[str]:
    """Names that settlements had under `lent`, `returned`, `preempted` or `scaled_in`, in their order."""
    return [
        name
        for _, _, kind, body in running.log_of_all()
        if kind == "Decided"
        for name in body.get("loans", {}).get(what, ())
    ]
