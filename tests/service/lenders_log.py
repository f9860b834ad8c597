"""What the log of a service says of nodes that were lent."""

from tests.service.running import Running


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
